// C (M x N) = alpha A^T B + beta C or alpha A^H B + beta C for tall A (K x M), B (K x N), by multiply-adds. Any type, width, pitch, alignment.
//
//   for each chunk of ROWS = STEPS GROUPS COUNT rows (assigned to the teams in turn)
//     for each step, each group of threads (one thread per tile): COUNT rows
//       acc[i][j] += conj?(A[row][m(i)]) B[row][n(j)]        i < TM, j < TN: a tile of C in registers
//   C = alpha (sum of acc over groups, teams and blocks) + beta C
//
// The thread mappings of Ernst, Hager, Thies and Wellein (2021): parallel over rows only (TM = M, TN = N), over rows and columns of B
// (TM = M), or over tiles of both; tiles blocked or INTERLEAVED ("transposed"); unrolling over STEPS. A team is WARPS warps; lanes past GROUPS tiles repeat the last group's work, which is dropped.
//
// The team's chunks come through a ring in shared memory
// (staging.cuh), so that the bytes in flight take no registers, and odd widths and strided rows take no bandwidth. Columns past
// the width then hold the bytes that follow; they reach only columns of tiles that are dropped. Rows past K are zeros in both operands.
// CHAIN, for single precision: after CHAIN chunks acc is added to double precision sums, in registers (WIDE) or, where those run out,
// over the block in shared memory; with Real = double or CHAIN = 0 it is one chain.
//
// Sum over a block: tiles go through shared memory, PASS values of each thread at a time; a few threads add up the groups of one
// value in a fixed order. Then partial sums are added over the blocks in a fixed order (reduce.cuh).
// SAME (B is A): one operand is loaded. TRIANGLE: only tiles on and above the diagonal. Under CONJ the result is made Hermitian.
//
// Types:   RealA, RealB: parts of A's and B's elements; Real: of products and sums; Out: of C's.
// Problem: M, N; PA, PB: parts of an element, 1 or 2; CONJ, SAME, ALPHA_ONE, BETA_ZERO; A_LINEAR, B_LINEAR: rows are contiguous.
// Config:  TM, TN, INTERLEAVED, TRIANGLE, COUNT, STEPS, UNROLL, WARPS, TEAMS, STAGES, CHAIN, WIDE.
// Layout:  A_VECTOR (bytes of a thread's load), A_PIECE, A_PITCH, A_PAD_ROWS, A_PAD of the slabs, and B's; B_OFFSET, STAGE_BYTES;
//          PASS; PRODUCT_OFFSET, SCRATCH_OFFSET: bytes in shared memory.
constexpr int BLOCKS = 1;  // per multiprocessor
#include "dense/fma.cuh"
#include "common/reduce.cuh"
#include "dense/staging.cuh"

constexpr int P = PA > PB ? PA : PB;
constexpr int LANES = 32 * WARPS, THREADS = LANES * TEAMS;
constexpr int TILES_M = (M + TM - 1) / TM, TILES_N = (N + TN - 1) / TN;
constexpr int TILES = TRIANGLE ? TILES_M * (TILES_M + 1) / 2 : TILES_M * TILES_N;
constexpr int GROUPS = LANES / TILES;
constexpr int ROWS = STEPS * GROUPS * COUNT;
constexpr bool SHARE = SAME && TILES_M == 1 && TILES_N == 1;  // one fragment serves as both
constexpr bool HALF = TRIANGLE && TILES == 1;                 // the lower half of the only tile is left out
constexpr int SIZE_A = PA * sizeof(RealA), SIZE_B = PB * sizeof(RealB);
static_assert(GROUPS > 0, "a row fits a team");

using SlabA = Slab<ROWS, M * SIZE_A, A_LINEAR, A_PIECE, A_PITCH, A_PAD_ROWS, A_PAD, LANES>;
using SlabB = Slab<ROWS, N * SIZE_B, B_LINEAR, B_PIECE, B_PITCH, B_PAD_ROWS, B_PAD, LANES>;
using FragmentA = Fragment<RealA, PA, M, TM, TILES_M, COUNT, A_VECTOR, INTERLEAVED, A_LINEAR>;
using FragmentB = Fragment<RealB, PB, N, TN, TILES_N, COUNT, B_VECTOR, INTERLEAVED, B_LINEAR>;

struct Step {
    FragmentA a;
    FragmentB b;
};

// The position of a thread: its team, its rows within a step, its tile.
struct Place {
    int team, lane, group, tile, tile_m, tile_n;
    bool is_idle;

    __device__ __forceinline__ explicit Place(int thread) {
        team = thread / LANES;
        lane = thread % LANES;
        is_idle = lane >= GROUPS * TILES;
        group = is_idle ? GROUPS - 1 : lane / TILES;
        set_tile(lane % TILES);
    }

    __device__ __forceinline__ void set_tile(int number) {
        tile = number;
        if constexpr (TRIANGLE) {
            tile_m = 0;
            for (int left = TILES_M; number >= left; --left, ++tile_m) number -= left;
            tile_n = tile_m + number;
        } else {
            tile_m = number % TILES_M;
            tile_n = number / TILES_M;
        }
    }
};

// The tall operands in memory.
struct Source {
    const char *A, *B;
    i64 K, pitch_a, pitch_b;

    __device__ __forceinline__ i64 chunks() const { return (K + ROWS - 1) / ROWS; }

    // Starts the copies of a chunk to a stage; nothing happens past the last one.
    __device__ __forceinline__ void copy(char* stage, const Place& at, i64 chunk) const {
        if (chunk < chunks()) {
            const i64 row = chunk * ROWS;
            SlabA::load(stage, A + row * pitch_a, pitch_a, K - row, at.lane);
            if constexpr (!SAME) SlabB::load(stage + B_OFFSET, B + row * pitch_b, pitch_b, K - row, at.lane);
        }
        async_commit();
    }
};

__device__ __forceinline__ void load_staged(Step& step, const char* stage, const Place& at, int s) {
    const int row = (s * GROUPS + at.group) * COUNT;
    step.a.template load<false>(stage + SlabA::offset(row), A_PITCH, at.tile_m);
    if constexpr (!SHARE)
        step.b.template load<false>(SAME ? stage + SlabA::offset(row) : stage + B_OFFSET + SlabB::offset(row), SAME ? A_PITCH : B_PITCH, at.tile_n);
}

struct Tile {
    Real sum[TM][TN][P] = {};
    double wide[WIDE ? TM : 1][WIDE ? TN : 1][P] = {};

    __device__ __forceinline__ void add(const Step& step) {
#pragma unroll
        for (int row = 0; row < COUNT; ++row) {
            Real a[TM][PA], b[TN][PB];
#pragma unroll
            for (int i = 0; i < TM * PA; ++i) a[i / PA][i % PA] = step.a.part[row][i / PA][i % PA];
#pragma unroll
            for (int j = 0; j < TN * PB; ++j)
                if constexpr (SHARE)
                    b[j / PB][j % PB] = a[j / PB][j % PB];
                else
                    b[j / PB][j % PB] = step.b.part[row][j / PB][j % PB];
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j)
                    if (!HALF || i <= j) accumulate<CONJ>(sum[i][j], a[i], b[j]);
        }
    }

    __device__ __forceinline__ void widen() {
#pragma unroll
        for (int k = 0; k < TM * TN * P; ++k) {
            const int i = k / (TN * P), j = k / P % TN, part = k % P;
            wide[i][j][part] += sum[i][j][part];
            sum[i][j][part] = 0;
        }
    }

    __device__ __forceinline__ double value(int k) const {
        const int i = k / (TN * P), j = k / P % TN, part = k % P;
        if constexpr (WIDE)
            return wide[i][j][part];
        else
            return sum[i][j][part];
    }
};

constexpr int VALUES = TM * TN * P;  // of a thread

// The place of value k of a tile in C, counted in reals, or -1 if it is not part of C.
__device__ __forceinline__ int place_in_product(const Place& at, int k) {
    const int m = FragmentA::Deal::at(at.tile_m, k / (TN * P)), n = FragmentB::Deal::at(at.tile_n, k / P % TN);
    return m < M && n < N ? (m * N + n) * P + k % P : -1;
}

// product (+)= the sum of the tiles over the block's groups. `scratch` holds PASS values of each thread.
template <bool ADD>
__device__ __forceinline__ void sum_block(const Tile& tile, const Place& at, double* product, double* scratch) {
    constexpr int ALL = GROUPS * TEAMS, PITCH = ALL | 1;
    constexpr int SUMS = TILES * PASS;
    constexpr int MOST = THREADS / SUMS < ALL ? THREADS / SUMS : ALL;  // threads that could share a sum
    constexpr int SHARES = MOST >= 32 ? 32 : MOST >= 16 ? 16 : MOST >= 8 ? 8 : MOST >= 4 ? 4 : MOST >= 2 ? 2 : 1;
    const int own = at.tile * PITCH + at.team * GROUPS + at.group;
#pragma unroll
    for (int first = 0; first < VALUES; first += PASS) {
        __syncthreads();
        if (!at.is_idle)
#pragma unroll
            for (int k = 0; k < PASS; ++k)
                if (first + k < VALUES) scratch[k * (TILES * PITCH) + own] = tile.value(first + k);
        __syncthreads();
        const int share = threadIdx.x % SHARES;
        for (int from = 0; from < SUMS; from += THREADS / SHARES) {
            const int sum_id = from + threadIdx.x / SHARES, k = first + sum_id / TILES;
            double sum = 0;
            if (sum_id < SUMS && k < VALUES)
                for (int group = share; group < ALL; group += SHARES) sum += scratch[sum_id * PITCH + group];
#pragma unroll
            for (int other = SHARES / 2; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
            if (sum_id < SUMS && k < VALUES && share == 0) {
                Place owner = at;
                owner.set_tile(sum_id % TILES);
                const int place = place_in_product(owner, k);
                if (place >= 0) product[place] = ADD ? product[place] + sum : sum;
            }
        }
    }
    __syncthreads();
}

// ---- the kernel

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
KERNEL(const char* __restrict__ A, const char* __restrict__ B, Out* C, i64 K, i64 lda, i64 ldb, double alpha_re, double alpha_im,
       double beta_re, double beta_im, void* workspace) {
    DYNAMIC_SHARED(shared, 128);
    SHARED(u64, launch);
    double* product = reinterpret_cast<double*>(shared + PRODUCT_OFFSET);
    double* scratch = reinterpret_cast<double*>(shared + SCRATCH_OFFSET);
    const Place at(threadIdx.x);
    const Source source = {A, B, K, (A_LINEAR ? M : lda) * SIZE_A, (B_LINEAR ? N : ldb) * SIZE_B};
    if (threadIdx.x == 0) launch = grid_started(workspace);

    // Neighbouring chunks go to different blocks first, so that few chunks occupy all multiprocessors.
    const i64 chunks = source.chunks(), stride = static_cast<i64>(gridDim.x) * TEAMS;
    i64 chunk = static_cast<i64>(at.team) * gridDim.x + blockIdx.x;
    Tile tile;
    Step now;
    char* ring = shared + at.team * (STAGES * STAGE_BYTES);
    int stage = 0;
    for (int s = 0; s < STAGES; ++s) source.copy(ring + s * STAGE_BYTES, at, chunk + s * stride);

    const auto add_chunk = [&] {
        char* from = ring + stage * STAGE_BYTES;
        async_wait<STAGES - 1>();
        sync_team<WARPS>(at.team);
#pragma unroll UNROLL
        for (int s = 0; s < STEPS; ++s) {
            load_staged(now, from, at, s);
            tile.add(now);
        }
        sync_team<WARPS>(at.team);
        source.copy(from, at, chunk + STAGES * stride);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        chunk += stride;
    };

    if constexpr (CHAIN > 0 && !WIDE) {
        for (int k = threadIdx.x; k < M * N * P; k += THREADS) product[k] = 0;
        for (i64 first = blockIdx.x; first < chunks; first += CHAIN * stride) {
            for (int c = 0; c < CHAIN && chunk < chunks; ++c) add_chunk();
            sum_block<true>(tile, at, product, scratch);
            tile = Tile();
        }
        __syncthreads();
    } else {
        int chain = 0;
        while (chunk < chunks) {
            add_chunk();
            if (WIDE && ++chain == CHAIN) {
                tile.widen();
                chain = 0;
            }
        }
        if constexpr (WIDE) tile.widen();
        sum_block<false>(tile, at, product, scratch);
    }

    const auto finish = [&](int element, const double(&sum)[P]) {
        const int i = element / N, j = element % N;
        if (SAME && i > j) return;  // comes from its mirror image
        const auto store = [&](Out* c, double re, double im) {
            double out_re = ALPHA_ONE ? re : alpha_re * re, out_im = ALPHA_ONE ? im : alpha_re * im;
            if (P == 2 && !ALPHA_ONE) {
                out_re -= alpha_im * im;
                out_im += alpha_im * re;
            }
            if (!BETA_ZERO) {
                out_re += beta_re * c[0];
                if constexpr (P == 2) {
                    out_re -= beta_im * c[P - 1];
                    out_im += beta_re * c[P - 1] + beta_im * c[0];
                }
            }
            c[0] = static_cast<Out>(out_re);
            if constexpr (P == 2) c[P - 1] = static_cast<Out>(out_im);
        };
        const double im = P == 1 || (SAME && CONJ && i == j) ? 0.0 : sum[P - 1];
        store(C + element * P, sum[0], im);
        if (SAME && i < j) store(C + (j * N + i) * P, sum[0], CONJ ? -im : im);
    };

    if (threadIdx.x == 0) launch = grid_decided(launch, grid_seen(workspace));
    __syncthreads();
    for (int element = threadIdx.x; element < M * N; element += THREADS) {
        double sum[P];
#pragma unroll
        for (int part = 0; part < P; ++part) sum[part] = product[element * P + part];
        if (gridDim.x == 1)
            finish(element, sum);
        else
#pragma unroll
            for (int part = 0; part < P; ++part) grid_put<M * N * P>(workspace, element * P + part, sum[part], launch);
    }
    if (gridDim.x > 1) grid_sum<M * N * P, P, THREADS>(workspace, scratch, launch, finish);
}
