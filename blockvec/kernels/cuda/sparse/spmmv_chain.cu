// Y = alpha (H - shift I) X + beta Y for the H of a chain of spins or electrons, which is not stored, and row-major X, Y; one tile of columns.
//
//   for each block of rows, those with equal upper bits, assigned in turn to the thread blocks
//     the block's rows of X are copied to shared memory
//     for each row i of the block, each by a group of LANES lanes
//       sum[:]  = X[first row of the other block + position][:]      for a hop between the halves, at most CROSSINGS
//       sum[:] += X[first row of the other block + i][:]             for each hop among the upper bits: contiguous over the groups
//       sum[:] += X[position][:] of the block, in shared memory      for each hop among the lower bits
//       Y[i][:] = alpha (hop sum[:] + (diagonal - shift) X[i][:]) + beta Y[i][:]
//
// Positions after hops among the lower bits are the same in all blocks with equally many lower bits set, so tables of a few hundred kilobytes
// replace the column indices of the matrix, and all elements but those on the diagonal are equal.
//
// Records: RECORD numbers of 16 bits for each row of each kind of block: positions after hops, END after the last; positions after crossings, with
// the lower bit of that bond as highest bit; a number for the diagonal. For electrons the highest bit of a position after a hop is set if
// the hop inverts the sign.
//
// Types and problem: see spmmv.cuh; SHIFTED is its SHIFT, which is 0 there: X is in shared memory when the shift is subtracted. ELECTRONS.
// Config:  LANES, VECTORS, VECTOR; UNROLL: hops in flight; RECORD; MOST_ROWS a block; WARPS per block, BLOCKS per multiprocessor.
// Shared:  MOST_ROWS rows of a tile of X, and one of zeros at END; at the end the dots of all groups.
#include "sparse/spmmv.cuh"

constexpr int THREADS = 32 * WARPS;
constexpr int GROUPS = 32 / LANES;  // per warp
constexpr int PACKS = LANES * VECTORS;
constexpr int PACK_BYTES = VECTOR * sizeof(X);
constexpr int CROSSINGS = 2, INNER = RECORD - CROSSINGS - 1;
constexpr int MOST_OUTER = 64;  // hops among the upper bits: as many as there are bits
constexpr u32 END = MOST_ROWS;
static_assert(RECORD % 8 == 0 && GRAM == 0 && SHIFT == 0);
using Real = typename Kind<Y>::Real;

// A block of rows, as the host packs it. Hops lead to blocks: 2 block + (1 if the hop inverts the sign).
struct Rows {
    i64 first;
    int count, record, outer, outers;
    u32 mask;
    int outside;
    u32 crossing[CROSSINGS];  // 4 block + 2 (1 if the hop inverts the sign) + upper bit of that bond
};

// The other blocks that the hops of a block of rows lead to, those of the crossings first.
struct Others {
    i64 offset[CROSSINGS + MOST_OUTER];  // bytes from X to the first row
    Real sign[CROSSINGS + MOST_OUTER];
    u32 bit[CROSSINGS];  // a hop is possible if the lower bit is not equal to it
};

struct Record {
    u32 words[RECORD / 2];

    __device__ __forceinline__ u32 at(int k) const { return k % 2 ? words[k / 2] >> 16 : words[k / 2] & 0xffff; }

    __device__ __forceinline__ void load(const void* from) {
#pragma unroll
        for (int i = 0; i < RECORD / 8; ++i) load_constant_if(true, reinterpret_cast<uint4*>(words)[i], static_cast<const uint4*>(from) + i);
    }
};

__device__ __forceinline__ void take(const Lane& lane, Sums& sums, Real sign, const PackX (&x)[VECTORS]) {
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (lane.has(v))
#pragma unroll
            for (int i = 0; i < VECTOR; ++i)
                sums.at[v][i] = ELECTRONS ? multiply_add(sums.at[v][i], sign, x[v].at[i]) : add(sums.at[v][i], convert<Y>(x[v].at[i]));
}

// Copies the rows of a block to shared memory.
__device__ __forceinline__ void fetch(char* shared, const char* rows, i64 pitch, int count, int columns) {
    for (int at = threadIdx.x; at < count * PACKS; at += THREADS) {
        const int row = at / PACKS, pack = at % PACKS;
        if (pack * VECTOR >= columns) continue;
        const char* from = rows + row * pitch + pack * PACK_BYTES;
#pragma unroll
        for (int w = 0; w < PackX::WORDS; ++w) async_copy<PackX::BYTES>(shared + at * PACK_BYTES + w * PackX::BYTES, from + w * PackX::BYTES, PackX::BYTES);
    }
}

// By all threads of a block, which are done with its shared memory.
__device__ __forceinline__ void store_dots(char* shared, const Dots& dots, int group, int lane, int columns, Dot* parts) {
    Dot* all = reinterpret_cast<Dot*>(shared);
    __syncthreads();
    if (lane < LANES)
#pragma unroll
        for (int kind = 0; kind < DOT_KINDS; ++kind)
#pragma unroll
            for (int v = 0; v < VECTORS; ++v)
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) all[(group * DOT_KINDS + kind) * TILE + (lane + v * LANES) * VECTOR + i] = dots.at[kind][v][i];
    __syncthreads();
    for (int at = threadIdx.x; at < DOT_KINDS * TILE; at += THREADS) {
        Dot sum{};
        for (int g = 0; g < WARPS * GROUPS; ++g) sum = add(sum, all[g * DOT_KINDS * TILE + at]);
        if (at % TILE < columns) parts[at / TILE * WIDTH + at % TILE] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    KERNEL(const Rows* blocks, const u32* outer, const unsigned short* records, int n_blocks, int bonds, double hop, double diagonal, int tile, Dot* parts,
           const X* x, i64 ldx, Y* y, i64 ldy, Y* z, i64 ldz, Factor alpha, Factor beta, Factor shift, Factor delta, Factor eta, const Y* shifts,
           i64 fused_begin, i64 fused_end) {
    DYNAMIC_SHARED(shared, 16);
    SHARED_ARRAY(Others, other_blocks, [1]);
    Others& others = other_blocks[0];
    const int thread = threadIdx.x, lane = thread % 32 % LANES, in_warp = thread % 32 / LANES, group = thread / 32 * GROUPS + in_warp;
    const bool busy = in_warp < GROUPS;
    const Lane mine = lane_of(x, ldx, y, ldy, z, ldz, alpha, beta, shift, delta, eta, shifts, fused_begin, fused_end, tile, lane);
    const i64 pitch = ldx * static_cast<i64>(sizeof(X));
    const int columns = WIDTH - tile * TILE;
    const char* own_columns = shared + lane * PACK_BYTES;
    Dots dots;
    for (int k = thread; k < PACKS * VECTOR; k += THREADS) reinterpret_cast<X*>(shared)[MOST_ROWS * PACKS * VECTOR + k] = X{};

    for (int at = blockIdx.x; at < n_blocks; at += gridDim.x) {
        const Rows& rows = blocks[at];
        const i64 first = rows.first;
        const int count = rows.count, outers = rows.outers, outside = rows.outside;
        const u32 mask = rows.mask;
        __syncthreads();  // no warp works on the previous block
        fetch(shared, reinterpret_cast<const char*>(x + tile * TILE) + first * pitch, pitch, count, columns);
        async_commit();
        if (thread < CROSSINGS) {
            const u32 hop_to = rows.crossing[thread];
            others.offset[thread] = blocks[hop_to >> 2].first * pitch;
            others.sign[thread] = hop_to & 2 ? Real(-1) : Real(1);
            others.bit[thread] = hop_to & 1;
        } else if (thread < CROSSINGS + outers) {
            const u32 hop_to = __ldg(outer + rows.outer + thread - CROSSINGS);
            others.offset[thread] = blocks[hop_to >> 1].first * pitch;
            others.sign[thread] = hop_to & 1 ? Real(-1) : Real(1);
        }
        async_wait<0>();
        __syncthreads();
#pragma unroll 1
        for (int i = busy ? group : count; i < count; i += WARPS * GROUPS) {
            Record record;
            record.load(records + static_cast<i64>(rows.record + i) * RECORD);
            Sums sums;
            PackX crossed[CROSSINGS][VECTORS];
            bool crosses[CROSSINGS];
            int crossings = 0;
#pragma unroll
            for (int c = 0; c < CROSSINGS; ++c) {
                const u32 to = record.at(INNER + c);
                crosses[c] = to >> 15 != others.bit[c];
                crossings += crosses[c];
                const char* from = address_of(mine.x + others.offset[c], to & 0x7fff, mine.x_pitch);
#pragma unroll
                for (int v = 0; v < VECTORS; ++v) crossed[c][v].load_constant(Lane::x_at(from, v), crosses[c] && mine.has(v));
            }
            const char* same = address_of(mine.x, i, mine.x_pitch);
#pragma unroll 1
            for (int e = CROSSINGS; e < CROSSINGS + outers; e += UNROLL) {
                PackX other[UNROLL][VECTORS];
#pragma unroll
                for (int u = 0; u < UNROLL; ++u) {
                    const bool wanted = e + u < CROSSINGS + outers;
                    const char* from = same + others.offset[wanted ? e + u : e];
#pragma unroll
                    for (int v = 0; v < VECTORS; ++v) other[u][v].load_constant(Lane::x_at(from, v), wanted && mine.has(v));
                }
#pragma unroll
                for (int u = 0; u < UNROLL; ++u)
                    if (e + u < CROSSINGS + outers) take(mine, sums, others.sign[e + u], other[u]);
            }
#pragma unroll
            for (int c = 0; c < CROSSINGS; ++c)
                if (crosses[c]) take(mine, sums, others.sign[c], crossed[c]);
            Lane::Own own;
            mine.load(own, first + i);
#pragma unroll
            for (int k = 0; k < INNER; k += UNROLL) {
                if (record.at(k) == END) break;
                PackX other[UNROLL][VECTORS];
#pragma unroll
                for (int u = 0; u < UNROLL; ++u) {
                    if (k + u >= INNER) continue;
                    const u32 position = ELECTRONS ? record.at(k + u) & 0x7fff : record.at(k + u);
#pragma unroll
                    for (int v = 0; v < VECTORS; ++v)
                        if (mine.has(v)) other[u][v].load(Lane::x_at(own_columns + position * (PACKS * PACK_BYTES), v));
                }
#pragma unroll
                for (int u = 0; u < UNROLL; ++u)
                    if (k + u < INNER) take(mine, sums, record.at(k + u) >> 15 ? Real(-1) : Real(1), other[u]);
            }
            const int number = static_cast<int>(record.at(RECORD - 1));
            const int q = ELECTRONS ? __popc(number & mask) + outside : bonds - 2 * (number + outside + crossings);
            const Real on_diagonal = static_cast<Real>(diagonal * q), of_hop = static_cast<Real>(hop);
#pragma unroll
            for (int v = 0; v < VECTORS; ++v) {
                if (!mine.has(v)) continue;
                PackX x_own;
                x_own.load(Lane::x_at(own_columns + i * (PACKS * PACK_BYTES), v));
#pragma unroll
                for (int k = 0; k < VECTOR; ++k) {
                    Y sum = multiply(of_hop, sums.at[v][k]);
                    sum = multiply_add(sum, on_diagonal, x_own.at[k]);
                    if constexpr (SHIFTED == 1) sum = multiply_add(sum, negate(factor_of<Y>(shift)), x_own.at[k]);
                    if constexpr (SHIFTED == 2) sum = multiply_add(sum, negate(load_constant(shifts + mine.column + v * STRIDE + k)), x_own.at[k]);
                    sums.at[v][k] = sum;
                }
            }
            mine.finish(first + i, sums, own, dots);
        }
    }
    if constexpr (DOTS != 0)
        store_dots(shared, dots, busy ? group : 0, busy ? lane : LANES, columns, parts + static_cast<i64>(blockIdx.x) * (DOT_KINDS * WIDTH) + tile * TILE);
}
