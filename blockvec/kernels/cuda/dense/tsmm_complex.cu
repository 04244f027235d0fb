// B (K x N) = alpha A C for complex operands so wide that the products on FP64 tensor cores (sm_90) take longer than memory.
//
//   for each tile of ROWS rows, assigned in turn to the warps of all blocks:
//       A's rows  ->  a stage in shared memory                                     asynchronous, STAGES tiles ahead
//       for each block of 8 of its rows:
//           for x < KT, j < groups of 8 columns:
//               sums[j] += A[rows of the block][4x..4x+3] (alpha C)[4x..4x+3][8 columns of group j]       two m16n8k4
//           sums  ->  a slab in shared memory
//       slab  ->  B's rows                                                         asynchronous, SLABS tiles behind
//
// The MMA's rows 0..7 are the real parts of 8 rows of B and 8..15 the imaginary ones: (A_re, A_im) times C_re, then (-A_im, A_re) times
// C_im. So a lane has two sums an element where tsmm_mma.cu has four, and need not add them up. Columns whose number is no multiple of 8 end in 4
// columns that take one product as there, as a real matrix of 8 columns.
//
// No warp waits for another: it fills a stage again that it has read, and the first columns of its next tile are loaded before the last products
// are done. C's fragments lie in shared memory, one for all. Results go to memory through a warp's own slabs, in whole lines.
//
// Constants, beside those of tsmm_tiles.cuh: ALPHA: C is multiplied by alpha; WARPS of a thread block, one per multiprocessor; ROWS of a tile,
// whole blocks; STAGES and SLABS of a warp.

#include "common/tile_queue.cuh"
#include "dense/tsmm_tiles.cuh"

constexpr int UNITS = (N + 3) / 4;               // sets of 4 columns of B
constexpr int PASSES = ROWS / BLOCK;             // blocks of a tile
constexpr int FRAGMENT_BYTES = KT * UNITS * 32 * 8;
constexpr int STAGE_BYTES = Tile<M>::BYTES, WARP_BYTES = STAGES * STAGE_BYTES + SLABS * Tile<N>::BYTES;
constexpr int WHOLE = UNITS / 2, ALL = (UNITS + 1) / 2;  // groups of 8 columns, and with the last 4

static_assert(COMPLEX && SPLIT == 1 && SLABS > 0, "a warp has slabs of its own");

struct Operands {
    const char* A;
    const Real* C;
    char* B;
    i64 K, pitch_a, pitch_b;  // pitches in bytes
    Element alpha;

    __device__ __forceinline__ i64 tiles() const { return (K + ROWS - 1) / ROWS; }
    __device__ __forceinline__ int rows(i64 tile) const { return static_cast<int>(min(static_cast<i64>(ROWS), K - tile * ROWS)); }
};

struct Lane {
    int lane, g, t;  // row and column in an A fragment
    u32 keep;        // zero, which the compiler does not know
};

// Fragments of alpha C, zero outside: for each x those of the groups of 8 columns, real and imaginary part side by side, then those of 4
// columns that are left. Lane (., t) of a product gets the columns of its lanes (2t, .) and (2t + 1, .): t and t + 4.
__device__ __forceinline__ void make_fragments(double* fragments, const Operands& o) {
    for (int i = threadIdx.x; i < KT * UNITS * 32; i += 32 * WARPS) {
        const int at = i % (32 * UNITS), group = min(at / 64, WHOLE);
        const int lane = group < WHOLE ? at % 64 / 2 : at % 64, g = lane / 4, t = lane % 4;
        const int part = group < WHOLE ? at % 2 : g % 2;
        const int n = 8 * group + g / 2 + (group < WHOLE ? 4 * (g % 2) : 0), k = i / (32 * UNITS) * 4 + t;
        double c = 0;
        if (k < M && n < N) {
            const Real* from = o.C + 2 * (k * N + n);
            c = from[part];
            if constexpr (ALPHA) c = c * o.alpha.part[0] + (part ? o.alpha.part[P - 1] : -o.alpha.part[P - 1]) * from[part ^ 1];
        }
        fragments[i] = c;
    }
}

// Four columns of A, of a block of rows: real and imaginary part.
using Fragments = double[2][1];

__device__ __forceinline__ void load_fragments(Fragments& a, const char* from, int x, const Lane& lane) {
    const Element value = load(from + 4 * x * SIZE);
    const bool inside = 4 * x + 3 < M || 4 * x + lane.t < M;  // 0 * NaN would be NaN
    a[0][0] = inside ? value.part[0] : 0.0;
    a[1][0] = inside ? value.part[P - 1] : 0.0;
}

// A word that depends on all loads.
__device__ __forceinline__ u32 token(const Fragments& a) { return __double2loint(a[0][0]) | __double2loint(a[1][0]); }

struct Sums {
    double value[ALL][2][2];

    // `c`: the lane's fragments are 64 doubles apart, a pair for a group.
    __device__ __forceinline__ void add(const Fragments& a, const double* c, int lane) {
        double re[WHOLE][1], im[WHOLE][1];
#pragma unroll
        for (int j = 0; j < WHOLE; j++) {
            const double2 pair = reinterpret_cast<const double2*>(c + 64 * j)[lane];
            re[j][0] = pair.x;
            im[j][0] = pair.y;
        }
#pragma unroll
        for (int j = 0; j < WHOLE; j++) mma_m16n8(value[j][0], value[j][1], a[0], a[1], re[j]);
        if constexpr (ALL > WHOLE) {
            const double real[1] = {c[64 * WHOLE + lane]};
            mma_m16n8(value[WHOLE][0], value[WHOLE][1], a[0], a[1], real);
        }
        const double negative[1] = {flip_sign(a[1][0])};
#pragma unroll
        for (int j = 0; j < WHOLE; j++) mma_m16n8(value[j][0], value[j][1], negative, a[0], im[j]);
    }

    // Stores the row of this lane.
    __device__ __forceinline__ void store_row(char* to, int t) const {
#pragma unroll
        for (int j = 0; j < WHOLE; j++) {
            const double(&v)[2][2] = value[j];
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (8 * j + t + 4 * e < N) store(to + (8 * j + t + 4 * e) * SIZE, element(v[0][e], v[1][e]));
        }
        if constexpr (ALL > WHOLE) {
            const double(&v)[2][2] = value[WHOLE];
            if (8 * WHOLE + t < N) store(to + (8 * WHOLE + t) * SIZE, element(v[0][0] - v[1][1], v[0][1] + v[1][0]));
        }
    }
};

__device__ __forceinline__ void fill(char* stages, Ring<STAGES>& ring, int stage, const Operands& o, i64 tile) {
    if (tile < o.tiles() && elect_one())
        Bulk<M>::load(stages + stage * STAGE_BYTES, o.A + tile * ROWS * o.pitch_a, o.rows(tile), ring.full + stage);
}

// All tiles of a warp.
__device__ __forceinline__ void sweep(const Operands& o, char* stages, Ring<STAGES>& ring, const double* fragments, int warp, const Lane& lane) {
    const i64 tiles = o.tiles(), step = static_cast<i64>(gridDim.x) * WARPS;
    const int offset = lane.g % SUBS * Tile<M>::SUB + lane.g / SUBS * Tile<M>::PITCH + lane.t * SIZE;
    char* slab = stages + STAGES * STAGE_BYTES + lane.g % SUBS * Tile<N>::SUB + lane.g / SUBS * Tile<N>::PITCH;
    int turn = 0;  // of the slabs
    i64 tile = warp * static_cast<i64>(gridDim.x) + blockIdx.x;
    Cursor<STAGES> at;
    Fragments a[2];
    if (tile < tiles) {
        wait(ring.full, 0);
        load_fragments(a[0], stages + offset, 0, lane);
    }
#pragma unroll 1
    for (; tile < tiles; tile += step) {
        const char* staged = stages + at.stage * STAGE_BYTES + offset;
        const int rows = o.rows(tile);
        char* const out = o.B + tile * ROWS * o.pitch_b;
#pragma unroll 1
        for (int pass = 0; pass < PASSES; pass++, staged += STEP * Tile<M>::PITCH) {
            Sums sums = {};
#pragma unroll
            for (int x = 0; x < KT; x++) {
                if (x + 1 < KT)
                    load_fragments(a[(x + 1) % 2], staged, x + 1, lane);
                else if (pass + 1 < PASSES)
                    load_fragments(a[(x + 1) % 2], staged + STEP * Tile<M>::PITCH, 0, lane);
                sums.add(a[x % 2], fragments + x * UNITS * 32, lane.lane);
            }
            if (pass + 1 == PASSES) {
                // The copy engine must not overtake loads that wait for their banks: what follows depends on the last of them.
                const int emptied = at.stage + (token(a[(KT - 1) % 2]) & lane.keep);
                at.advance();
                __syncwarp();
                fill(stages, ring, emptied, o, tile + STAGES * step);
                if (tile + step < tiles) {
                    wait(ring.full + at.stage, at.parity);
                    load_fragments(a[KT % 2], stages + at.stage * STAGE_BYTES + offset, 0, lane);
                }
            }
#pragma unroll
            for (int part = 0; part < 2; part++) a[0][part][0] = a[KT % 2][part][0];
            if (pass == 0) {  // the slab is free once the store issued SLABS tiles ago has read it
                bulk_store_wait_read<SLABS - 1>();
                __syncwarp();
            }
            sums.store_row(slab + turn * Tile<N>::BYTES + STEP * pass * Tile<N>::PITCH, lane.t);
        }
        bulk_store_fence();
        __syncwarp();
        if (elect_one()) Bulk<N>::store(out, stages + STAGES * STAGE_BYTES + turn * Tile<N>::BYTES, rows);
        if (++turn == SLABS) turn = 0;
    }
    bulk_store_wait<0>();
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    KERNEL(const char* A, const Real* C, char* B, i64 K, i64 pitch_a, i64 pitch_b, double alpha_re, double alpha_im, double, double, TileQueue*) {
    DYNAMIC_SHARED(memory, 128);  // C's fragments, then each warp's stages and slabs, then their states
    double* const fragments = reinterpret_cast<double*>(memory);
    Ring<STAGES>* const rings = reinterpret_cast<Ring<STAGES>*>(memory + FRAGMENT_BYTES + WARPS * WARP_BYTES);

    const int thread = threadIdx.x;
    // From a shuffle, so that the compiler treats it as uniform in a warp: see elect_one().
    const int warp = __shfl_sync(0xffffffffu, thread / 32, 0);
    Lane lane;
    lane.lane = thread % 32;
    lane.g = lane.lane / 4;
    lane.t = lane.lane % 4;
    lane.keep = static_cast<u32>(K >> 63);
    const Operands o{A, C, B, K, pitch_a, pitch_b, element(alpha_re, alpha_im)};

    if (thread == 0)  // one thread: see Ring::init
        for (int each = 0; each < WARPS; ++each) rings[each].init(1, 1);
    __syncthreads();
    char* const stages = memory + FRAGMENT_BYTES + warp * WARP_BYTES;
    for (int s = 0; s < STAGES; s++) fill(stages, rings[warp], s, o, (s * WARPS + warp) * static_cast<i64>(gridDim.x) + blockIdx.x);
    make_fragments(fragments, o);
    __syncthreads();
    sweep(o, stages, rings[warp], fragments, warp, lane);
}
