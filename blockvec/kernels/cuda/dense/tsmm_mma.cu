// B (K x N) = alpha A C + beta B on FP64 tensor cores (sm_90): A (K x M) and B tall, row-major; C (M x N) small, contiguous.
//
//   for each tile of ROWS rows, taken in order by the groups of SPLIT warps of all blocks:
//       A's rows, and B's if beta != 0  ->  a stage in shared memory               asynchronous, STAGES tiles ahead
//       for each block of its rows:
//           for x < KT, y < this warp's share of NT:
//               acc[y] += A[rows of the block][4x..4x+3] (alpha C)[4x..4x+3][8 real columns of tile y]      m16n8k4
//           acc  ->  a slab in shared memory
//       slab  ->  B's rows                                                         asynchronous, SLABS tiles behind
//
// A block is 16 rows of real numbers or 8 of complex ones. Complex: the MMA's rows 0..7 are the real parts of A's rows and
// 8..15 the imaginary ones, so that one 16-byte load is a whole A fragment; the columns of the MMA are those of C as a real M x 2N
// matrix. A lane's four accumulators are then the four real products of one element of B, summed, and are combined once.
//
// Groups share only C's fragments: a group starts its own copies, and no barrier includes more than one group. Warp w
// of a thread block runs in quadrant w % 4 of the SM; a quadrant gets warps of different groups, so that one computes while
// another stores, and shares of columns that add up to the same in all quadrants, or nearly.
//
// Shared memory. A staged tile is SUBS sub-chunks of contiguous rows whose bases differ by 128 / SUBS bytes
// mod 128, and MMA row g is a row of sub-chunk g % SUBS. The lanes that are served together (32 of 4 bytes, 16 of 8, 8 of 16) then
// touch SUBS segments of 128 / SUBS bytes in distinct banks, at any width. To the same end the columns within an 8-column
// tile of a real C are permuted: lane (g, t) accumulates columns t and t + 4, where the MMA says 2t and 2t + 1.
//
// Tails. Lanes whose column of A is >= M hold zeros (0 * NaN would be NaN). Rows >= K are neither loaded nor stored; what
// stale shared memory gives for them reaches no other row.
//
// Real: parts of elements. Float ones become double on their way to a fragment and round once on their way back.
// Constants: M, N, COMPLEX; ALPHA: C is multiplied by alpha; BETA: 0 zero, 1 one, 2 general; PIECE_A, PIECE_B: 0 where rows
// are contiguous and 16-byte aligned and sub-chunks move as bulk copies, else the 4, 8 or 16 bytes that a lane moves at a time,
// from rows of any pitch; WARPS of a thread block, one per multiprocessor; SPLIT: warps of a group, among which columns are divided; ROWS
// of a tile, whole blocks; STAGES, SLABS; IN_ORDER: tiles are taken in order, RUN at a time; SHARED_C: C's fragments stay in shared memory;
// PREFETCH_ENDS: sectors that rows of B fill in part are requested before a tile is multiplied (row_ends.cuh).

#include "common/row_ends.cuh"
#include "common/tile_queue.cuh"
#include "dense/tsmm_tiles.cuh"

constexpr int NT = (P * N + 7) / 8;              // and over those of B, in real numbers
constexpr int COLUMNS = 8 / P;                   // of B in such a tile
constexpr int PASSES = ROWS / BLOCK;             // blocks of a tile
// If SPLIT does not divide NT, warps have equal shares of coefficients in registers, and after their passes each multiplies some of the
// rows by the REST of the columns; with all coefficients in shared memory or too few passes, only shares < NT % SPLIT have their last tile.
constexpr int REST = SHARED_C || PASSES % SPLIT ? 0 : NT % SPLIT;
constexpr int TILES = (NT - REST + SPLIT - 1) / SPLIT;  // of a warp
constexpr int STORED = SHARED_C ? NT : REST, FIRST_STORED = SHARED_C ? 0 : TILES * SPLIT;  // tiles of C in shared memory
constexpr int GROUPS = WARPS / SPLIT;
constexpr int LANES = 32 * SPLIT;  // of a group

constexpr int STAGE_BYTES = Tile<M>::BYTES + (BETA ? Tile<N>::BYTES : 0);
constexpr int GROUP_BYTES = STAGES * STAGE_BYTES + SLABS * Tile<N>::BYTES;
constexpr int FRAGMENT_BYTES = KT * STORED * 32 * 8;
// Arrivals at the barrier of a stage: one for a matrix' bulk copies, or for each lane that moves pieces.
constexpr int ARRIVALS = (PIECE_A ? LANES : 1) + (BETA ? (PIECE_B ? LANES : 1) : 0);
// A group takes the next RUN tiles from the queue (tile_queue.cuh). If all lanes of a group load pieces, they would have to wait for the
// number of a tile: tiles are then assigned in turn.
constexpr bool LOADS_IN_BULK = PIECE_A == 0 && (BETA == 0 || PIECE_B == 0);

struct Operands {
    const char* A;
    const Real* C;
    char* B;
    i64 K, pitch_a, pitch_b;  // pitches in bytes
    Element alpha, beta;
    TileQueue* queue;
};

// Of a group: which of its stages are full, and of which tile.
struct Stages {
    u64 full[STAGES];
    volatile u32 tile[STAGES];
};

struct Lane {
    int index;            // in the group
    int g, t;             // row and column in an A fragment
    int group;            // in the thread block
    int share;            // this warp owns the column tiles share, share + SPLIT, ...
    bool loader, storer;  // this warp issues the group's bulk copies
};

// Calls copy(offset in the tile, offset in memory) for this lane's pieces of a tile with `rows` rows.
template <int WIDTH, int PIECE, class Copy>
__device__ __forceinline__ void pieces(const Lane& lane, int rows, i64 pitch, Copy copy) {
    constexpr int ROW = Tile<WIDTH>::PITCH / PIECE;
#pragma unroll 1
    for (int p = lane.index; p < rows * ROW; p += LANES) {
        const int row = p / ROW;
        copy(p * PIECE + row / Tile<WIDTH>::SUB_ROWS * Tile<WIDTH>::SKEW, row * pitch + (p - row * ROW) * PIECE);
    }
}

template <int WIDTH, int PIECE>
__device__ __forceinline__ void load_tile(char* tile, const char* from, i64 pitch, int rows, u64* full, const Lane& lane) {
    if constexpr (PIECE == 0) {
        if (lane.loader && elect_one()) Bulk<WIDTH>::load(tile, from, rows, full);
    } else {
        pieces<WIDTH, PIECE>(lane, rows, pitch, [&](int to, i64 at) { async_copy<PIECE>(tile + to, from + at, PIECE); });
        async_arrive(full);
    }
}

template <int WIDTH, int PIECE>
__device__ __forceinline__ void store_tile(char* to, const char* tile, i64 pitch, int rows, const Lane& lane) {
    if constexpr (PIECE == 0) {
        if (lane.storer && elect_one()) Bulk<WIDTH>::store(to, tile, rows);
    } else {
        struct alignas(PIECE) Piece {
            u32 part[PIECE / 4];
        };
        pieces<WIDTH, PIECE>(lane, rows, pitch, [&](int from, i64 at) {
            *reinterpret_cast<Piece*>(to + at) = *reinterpret_cast<const Piece*>(tile + from);
        });
    }
}

// The element of alpha C in lane (g, t) of the B fragment of tile (x, y); zero outside C.
__device__ __forceinline__ double coefficient(const Operands& o, int x, int y, int g, int t) {
    const int k = 4 * x + t, n = COLUMNS * y + g / 2 + (COMPLEX ? 0 : 4 * (g % 2));
    if (k >= M || n >= N) return 0;
    // Part by part: loads of whole complex numbers would fragment the registers so that the other fragments do not fit.
    const int part = COMPLEX ? g % 2 : 0, at = P * (k * N + n) + part;
    double c = o.C[at];
    if constexpr (ALPHA) {
        c *= o.alpha.part[0];
        if constexpr (COMPLEX) c += (part ? o.alpha.part[P - 1] : -o.alpha.part[P - 1]) * o.C[at ^ 1];
    }
    return c;
}

// The offset of column t of a lane's row in the first MMA block of a tile. In the same sub-chunk the next block lies STEP rows on,
// and row g + 8 of a real block HALF rows on.
template <int WIDTH>
__device__ __forceinline__ int fragment_offset(const Lane& lane) {
    return lane.g % SUBS * Tile<WIDTH>::SUB + lane.g / SUBS * Tile<WIDTH>::PITCH + lane.t * SIZE;
}

__device__ __forceinline__ void load_fragments(double (&a)[2][1], const char* from, int x, const Lane& lane) {
    const char* p = from + 4 * x * SIZE;
    const Element top = load(p);
    const double bottom = COMPLEX ? top.part[P - 1] : load(p + HALF * Tile<M>::PITCH).part[0];
    const bool inside = 4 * x + 3 < M || 4 * x + lane.t < M;
    a[0][0] = inside ? top.part[0] : 0.0;
    a[1][0] = inside ? bottom : 0.0;
}

__device__ __forceinline__ void sync_group(int group) {
    if constexpr (SPLIT == 1) {
        __syncwarp();
    } else {
        named_barrier<LANES>(1 + group);  // number 0 is __syncthreads()
    }
}

template <bool ARE_OWN>
struct Columns {
    static constexpr bool OWN = ARE_OWN;
};

// All tiles of a group.
__device__ __forceinline__ void sweep(const Operands& o, char* stages, Stages& state, const double* fragments, const Lane& lane) {
    u64* const full = state.full;
    const u32 tiles = (o.K + ROWS - 1) / ROWS, step = gridDim.x * GROUPS, first = lane.group * gridDim.x + blockIdx.x;
    const bool in_order = IN_ORDER && LOADS_IN_BULK && tiles > STAGES * step;
    char* const slabs = stages + STAGES * STAGE_BYTES;
    auto fill = [&](u32 tile, int stage) {
        if (in_order && lane.loader && elect_one()) {
            state.tile[stage] = tile;
            if (tile >= tiles)
                for (int i = 0; i < ARRIVALS; i++) arrive(full + stage);
        }
        if (tile >= tiles) return;
        const i64 row = static_cast<i64>(tile) * ROWS;
        const int rows = min(static_cast<i64>(ROWS), o.K - row);
        char* to = stages + stage * STAGE_BYTES;
        load_tile<M, PIECE_A>(to, o.A + row * o.pitch_a, o.pitch_a, rows, full + stage, lane);
        to += Tile<M>::BYTES;
        if constexpr (BETA != 0) load_tile<N, PIECE_B>(to, o.B + row * o.pitch_b, o.pitch_b, rows, full + stage, lane);
    };
#pragma unroll 1
    for (int s = 0; s < STAGES; s++) fill(first + s * step, s);
    Runs<RUN> runs = {&o.queue->taken, STAGES * step};
    if (in_order && lane.loader) runs.ask(lane.index % 32);

    double c[SHARED_C ? 1 : KT][TILES];
    if constexpr (!SHARED_C) {
#pragma unroll
        for (int x = 0; x < KT; x++)
#pragma unroll
            for (int y = 0; y < TILES; y++) c[x][y] = coefficient(o, x, lane.share + y * SPLIT, lane.g, lane.t);
    }

    Cursor<STAGES> at;
    int slab = 0;
#pragma unroll 1
    for (u32 tile = first;; tile += step) {
        if (!in_order && tile >= tiles) break;
        const char* staged = stages + at.stage * STAGE_BYTES;
        char* out = slabs + slab * Tile<N>::BYTES;
        wait(full + at.stage, at.parity);
        if (in_order) tile = state.tile[at.stage];
        if (tile >= tiles) break;
        if constexpr (PREFETCH_ENDS) {
            const i64 row = static_cast<i64>(tile) * ROWS;
            prefetch_ends<N * SIZE, LANES>(o.B + row * o.pitch_b, o.pitch_b, min(static_cast<i64>(ROWS), o.K - row), lane.index);
        }
        double a[2][2][1];
        load_fragments(a[0], staged + fragment_offset<M>(lane), 0, lane);
        // One set of rows by own columns, or by the rest of them; the rows `next` follow, if not negative.
        auto multiply = [&](int rows, int next, auto columns) {
            constexpr bool OWN = decltype(columns)::OWN;
            constexpr int ALL = OWN || REST == 0 ? TILES : REST;
            const char* from = staged + fragment_offset<M>(lane);
            const int to = fragment_offset<N>(lane) + rows * STEP * Tile<N>::PITCH;
            const int first = COLUMNS * (OWN ? lane.share : FIRST_STORED);
            double acc[ALL][2][2] = {};
            // f(sums, h, e, offset in a tile of B) for each element of B that this lane holds: sums[h][e], row g + 8h and column
            // t + 4e, if real; all four sums if complex.
            auto each = [&](auto f) {
                constexpr int ELEMENTS = 4 / (P * P);  // in four sums
#pragma unroll
                for (int i = 0; i < ALL * ELEMENTS; i++) {
                    const int e = i % ELEMENTS % 2, h = i % ELEMENTS / 2, y = i / ELEMENTS;
                    const int column = first + COLUMNS * y * (OWN ? SPLIT : 1) + 4 * e;
                    if (lane.t + column >= N) continue;
                    f(acc[y], h, e, to + HALF * h * Tile<N>::PITCH + column * SIZE);
                }
            };
            if constexpr (BETA != 0) {
                each([&](double(&sums)[2][2], int h, int e, int offset) {
                    Element b = load(staged + Tile<M>::BYTES + offset);
                    if constexpr (BETA == 2) b = times(o.beta, b);
                    sums[h][e] = b.part[0];
                    if constexpr (COMPLEX) sums[0][1] = b.part[P - 1];
                });
            }

#pragma unroll
            for (int x = 0; x < KT; x++) {
                if (x + 1 < KT)
                    load_fragments(a[(x + 1) % 2], from + rows * STEP * Tile<M>::PITCH, x + 1, lane);
                else if (next >= 0)
                    load_fragments(a[(x + 1) % 2], from + next * STEP * Tile<M>::PITCH, 0, lane);
#pragma unroll
                for (int y = 0; y < ALL; y++) {
                    if (OWN && REST == 0 && y * SPLIT + SPLIT > NT && lane.share >= NT % SPLIT) continue;
                    const int at = (x * STORED + y * (OWN ? SPLIT : 1)) * 32;
                    const double b[1] = {SHARED_C || !OWN ? fragments[at] : c[SHARED_C ? 0 : x][y]};
                    mma_m16n8(acc[y][0], acc[y][1], a[x % 2][0], a[x % 2][1], b);
                }
            }

            for (int h = 0; h < 2; h++) a[0][h][0] = a[KT % 2][h][0];

            if (OWN && rows == 0) {  // the slab is free once the store issued SLABS tiles ago has read it
                if (PIECE_B == 0 && lane.storer) bulk_store_wait_read<SLABS - 1>();
                sync_group(lane.group);
            }
            each([&](const double(&sums)[2][2], int h, int e, int offset) {
                store(out + offset, COMPLEX ? element(sums[0][0] - sums[1][1], sums[0][1] + sums[1][0]) : element(sums[h][e], sums[h][e]));
            });
        };
#pragma unroll 1
        for (int pass = 0; pass < PASSES; pass++) multiply(pass, pass + 1 < PASSES ? pass + 1 : REST ? lane.share : -1, Columns<true>());
        if constexpr (REST > 0) {
#pragma unroll 1
            for (int rows = lane.share; rows < PASSES; rows += SPLIT) multiply(rows, rows + SPLIT < PASSES ? rows + SPLIT : -1, Columns<false>());
        }
        if constexpr (PIECE_B == 0) bulk_store_fence();
        sync_group(lane.group);  // the slab is written, the stage is read
        const i64 row = static_cast<i64>(tile) * ROWS;
        const int rows = min(static_cast<i64>(ROWS), o.K - row);
        store_tile<N, PIECE_B>(o.B + row * o.pitch_b, out, o.pitch_b, rows, lane);
        fill(in_order && lane.loader ? runs.next(lane.index % 32) : tile + STAGES * step, at.stage);
        at.advance();
        if (++slab == SLABS) slab = 0;
    }
    if (PIECE_B == 0 && lane.storer) bulk_store_wait<0>();
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    KERNEL(const char* A, const Real* C, char* B, i64 K, i64 pitch_a, i64 pitch_b, double alpha_re, double alpha_im,
           double beta_re, double beta_im, TileQueue* queue) {
    DYNAMIC_SHARED(memory, 128);  // C's fragments, then each group's stages and slabs, then their states
    double* const fragments = reinterpret_cast<double*>(memory);
    char* const groups = memory + FRAGMENT_BYTES;
    Stages* const states = reinterpret_cast<Stages*>(groups + GROUPS * GROUP_BYTES);

    const int thread = threadIdx.x, l = thread % 32;
    // From a shuffle, so that the compiler treats it as uniform in a warp: see elect_one().
    const int warp = __shfl_sync(0xffffffffu, thread / 32, 0), rank = warp % SPLIT;
    Lane lane;
    lane.index = thread % LANES;
    lane.g = l / 4;
    lane.t = l % 4;
    lane.group = warp / SPLIT;
    // Shifted by half of SPLIT from four warps to the next four, so that each quadrant gets large and small shares.
    lane.share = (rank + warp / 4 * (SPLIT / 2)) % SPLIT;
    lane.loader = rank == SPLIT - 1;
    lane.storer = rank == 0;
    const Operands o{A, C, B, K, pitch_a, pitch_b, element(alpha_re, alpha_im), element(beta_re, beta_im), queue};

    if (thread == 0) {  // one thread: see Ring::init
        for (int group = 0; group < GROUPS; ++group)
            for (int stage = 0; stage < STAGES; ++stage) barrier_init(states[group].full + stage, ARRIVALS);
        barrier_init_fence();
    }
    if constexpr (STORED > 0) {
        for (int i = thread; i < KT * STORED * 32; i += 32 * WARPS)
            fragments[i] = coefficient(o, i / 32 / STORED, FIRST_STORED + i / 32 % STORED, i % 32 / 4, i % 4);
    }
    __syncthreads();

    char* const own = groups + lane.group * GROUP_BYTES;
    sweep(o, own, states[lane.group], fragments + (SHARED_C ? 32 * lane.share : 0) + l, lane);
    if constexpr (LOADS_IN_BULK) {
        __syncthreads();
        if (thread == 0) queue_leave(queue);
    }
}
