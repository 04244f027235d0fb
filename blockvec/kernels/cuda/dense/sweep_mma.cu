// One sweep over a basis W (K x M, wide) and a block V (K x N, narrow), row-major, on FP64 tensor cores (sm_90). For each tile of ROWS rows:
//
//   UPDATE   V <- alpha W C + beta V     C is M x N
//   GRAM     S += V^H V                  N x N, of the new V, if wanted
//
// W and V are read once, V is written once. S is summed over the blocks in a fixed order.
//
// Copies. STAGES tiles are on their way at a time; a block reads a tile, synchronises, and starts the copies of the tile STAGES on into its
// place. Rows of W move as one bulk copy each (W_PIECE = 0), else, as those of V, in pieces of 8 or 16 bytes. Rows past K are zeros.
//
// Warps. WC of them share the columns of W, each with TILES of 16 columns (8 if complex); WR = WARPS / WC share the rows.
//   UPDATE   columns of W are the k index, and rows the 16 rows: 16 of real numbers, or 8 of complex ones, whose real parts come first.
//            C is an M x 2N real matrix then. Its fragments stay in registers; the WC partial results are added in shared memory.
//   GRAM     rows are the products' k index. Real: 16 columns of V by 8. Complex: 8 columns v, (re, im) above each other, by 8 columns w:
//            m16n8 products of the 16 rows (v_re, v_im) by w_re and (v_im, -v_re) by w_im add up re and im of v conj(w). All warps share
//            the result and then the rows, one tile behind the others.
// Fragments are loaded with lane (g, t) = (l / 4, l % 4) at column g of row t (k index: rows) or column t of row g; pitches of 32 bytes
// modulo 128 make both free of bank conflicts for real numbers and the first for complex ones, 64 modulo 128 the second.
//
// Columns past M are zeros, since they are a k index, and those past N arbitrary, since they reach only columns of
// results that are dropped.
//
// Problem: M, N, COMPLEX, GRAM; ALPHA_ONE, BETA: 0 zero, 1 one, 2 general; W_PIECE, V_PIECE.
// Config:  ROWS, STAGES, WARPS, WC.
// Layout:  W_PITCH, V_PITCH: bytes between rows in shared memory.
constexpr int BLOCKS = 1;  // per multiprocessor
#include "common/mma.cuh"
#include "common/pipeline.cuh"
#include "common/reduce.cuh"

constexpr int P = COMPLEX ? 2 : 1;
constexpr int SIZE = 8 * P;       // bytes of an element
constexpr int BLOCK = 16 / P;     // rows of a product of UPDATE, columns of one of GRAM
constexpr int THREADS = 32 * WARPS, WR = WARPS / WC;
constexpr int TILES = ((M + BLOCK - 1) / BLOCK + WC - 1) / WC;  // of a warp
constexpr int COLUMNS = TILES * BLOCK;
constexpr int NT = (N + 7) / 8;        // groups of 8 columns of V
constexpr int OT = (P * N + 7) / 8;    // groups of 8 real ones
constexpr bool READS_V = BETA != 0;

constexpr int W_BYTES = ROWS * W_PITCH;
constexpr int STAGE_BYTES = W_BYTES + (READS_V ? ROWS * V_PITCH : 0);
constexpr int SUMS_BYTES = WC * ROWS * OT * 64;
constexpr int ARRIVALS = (W_PIECE ? THREADS : WARPS) + (READS_V ? THREADS : 0);  // at the barrier of a full stage

static_assert(ROWS % (BLOCK * WR) == 0, "whole products");

struct Stages {
    u64 full[STAGES];
};

struct Number {  // of type double, or complex
    double re, im;
};

struct Operands {
    const char* W;
    char* V;
    const double* C;
    i64 K, pitch_w, pitch_v;  // pitches in bytes
    i64 tiles;
    Number alpha, beta;

    __device__ __forceinline__ int rows(i64 tile) const { return static_cast<int>(min(K - tile * ROWS, static_cast<i64>(ROWS))); }
};

struct Place {  // of a thread
    int thread, warp, lane, g, t;
    int wc, wr;
};

__device__ __forceinline__ Number times(Number a, Number b) {
    if constexpr (!COMPLEX) return {a.re * b.re, 0};
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

__device__ __forceinline__ Number load(const char* from) {
    const double* p = reinterpret_cast<const double*>(from);
    if constexpr (!COMPLEX) return {p[0], 0};
    const double2 pair = *reinterpret_cast<const double2*>(p);
    return {pair.x, pair.y};
}

// The layout of the partial results of UPDATE: rows of OT groups, with the halves of odd rows swapped so that neighbouring rows are in
// different banks.
__device__ __forceinline__ int sum_offset(int row, int column) { return row * OT * 64 + (column * SIZE ^ (OT % 2 == 0 ? row % 2 * 64 : 0)); }

// ---- copies

// Called by all threads: copies WIDTH bytes of each row in pieces; rows past the last become zeros.
template <int WIDTH, int PITCH, int PIECE>
__device__ __forceinline__ void copy_pieces(char* to, const char* from, i64 pitch, int rows, int thread) {
    constexpr int PIECES = (WIDTH + PIECE - 1) / PIECE, ALONG = PIECES < THREADS ? PIECES : THREADS;  // of a row; moved side by side
    constexpr int SIDE = THREADS / ALONG;                                                             // rows moved at a time
    const int side = thread / ALONG, along = thread % ALONG;
    const char* source = from + side * pitch + along * PIECE;
    to += side * PITCH + along * PIECE;
    if (side >= SIDE) return;
#pragma unroll(ROWS / SIDE < 8 ? ROWS / SIDE + 1 : 8)
    for (int row = 0; row < ROWS; row += SIDE, source += SIDE * pitch)
#pragma unroll
        for (int piece = 0; piece < PIECES; piece += ALONG) {
            if ((ROWS % SIDE && row + side >= ROWS) || (PIECES % ALONG && along + piece >= PIECES)) continue;
            const bool exists = row + side < rows;
            const u32 bytes = WIDTH % PIECE ? min(PIECE, WIDTH - (along + piece) * PIECE) : PIECE;
            async_copy<PIECE>(to + row * PITCH + piece * PIECE, exists ? source + piece * PIECE : from, exists ? bytes : 0);
        }
}

// Called by all threads; each warp copies some of the rows.
__device__ __forceinline__ void fill_basis(char* stage, u64* full, const Operands& o, i64 tile, const Place& at) {
    const char* from = o.W + tile * ROWS * o.pitch_w;
    const int rows = o.rows(tile);
    if constexpr (W_PIECE != 0) {
        copy_pieces<M * SIZE, W_PITCH, W_PIECE>(stage, from, o.pitch_w, rows, at.thread);
        async_arrive(full);
    } else {
        stage += at.warp * W_PITCH;
        from += at.warp * o.pitch_w;
        if (rows == ROWS) {
            if (elect_one()) {
                constexpr int LEAST = ROWS / WARPS;
                const bool more = at.warp < ROWS % WARPS;
                expect(full, (LEAST + more) * (M * SIZE));
#pragma unroll
                for (int k = 0; k < LEAST; ++k) bulk_load(stage + k * WARPS * W_PITCH, from + k * WARPS * o.pitch_w, M * SIZE, full);
                if (more) bulk_load(stage + LEAST * WARPS * W_PITCH, from + LEAST * WARPS * o.pitch_w, M * SIZE, full);
            }
        } else {
            for (int row = at.warp; row < ROWS; row += WARPS)
                for (int byte = 8 * at.lane; row >= rows && byte < M * SIZE; byte += 8 * 32)
                    *reinterpret_cast<double*>(stage + (row - at.warp) * W_PITCH + byte) = 0;
            __syncwarp();
            if (elect_one()) {
                expect(full, at.warp < rows ? ((rows - 1 - at.warp) / WARPS + 1) * (M * SIZE) : 0);
                for (int row = 0; row + at.warp < rows; row += WARPS) bulk_load(stage + row * W_PITCH, from + row * o.pitch_w, M * SIZE, full);
            }
        }
    }
}

__device__ __forceinline__ void fill_block(char* stage, u64* full, const Operands& o, i64 tile, const Place& at) {
    if constexpr (READS_V) {
        copy_pieces<N * SIZE, V_PITCH, V_PIECE>(stage + W_BYTES, o.V + tile * ROWS * o.pitch_v, o.pitch_v, o.rows(tile), at.thread);
        async_arrive(full);
    }
}

// The padding columns that are a k index; copies never write them.
__device__ __forceinline__ void clear_margins(char* ring, int thread) {
    constexpr int BYTES = (WC * COLUMNS - M) * SIZE;
    if constexpr (BYTES > 0)
        for (int row = thread; row < STAGES * ROWS; row += THREADS) {
            char* margin = ring + row / ROWS * STAGE_BYTES + row % ROWS * W_PITCH + M * SIZE;
            for (int byte = 0; byte < BYTES; byte += 8) *reinterpret_cast<double*>(margin + byte) = 0;
        }
}

#include "dense/sweep_products.cuh"

// ---- sweeps

struct Sweep {
    const Operands& o;
    const Place& at;
    char* ring;
    Stages& stages;
    char* after;  // shared memory past the ring

    __device__ __forceinline__ char* stage(int s) const { return ring + s * STAGE_BYTES; }
    __device__ __forceinline__ i64 ahead(i64 tile) const { return tile + STAGES * static_cast<i64>(gridDim.x); }

    __device__ __forceinline__ void start() const {
        i64 tile = blockIdx.x;
        for (int s = 0; s < STAGES && tile < o.tiles; ++s, tile += gridDim.x) {
            fill_basis(stage(s), stages.full + s, o, tile, at);
            fill_block(stage(s), stages.full + s, o, tile, at);
        }
    }

    // Start the copies of the tile STAGES after the one that was read from a stage.
    __device__ __forceinline__ void refill_basis(int s, i64 tile) const {
        if (ahead(tile) < o.tiles) fill_basis(stage(s), stages.full + s, o, ahead(tile), at);
    }
    __device__ __forceinline__ void refill_block(int s, i64 tile) const {
        if (ahead(tile) < o.tiles) fill_block(stage(s), stages.full + s, o, ahead(tile), at);
    }

    // UPDATE, and GRAM if wanted.
    template <class Sums>
    __device__ __forceinline__ void update(Sums& sums) const {
        constexpr int STEPS = COLUMNS / 4, TURNS = ROWS / (BLOCK * WR);  // of 4 columns; of BLOCK rows
        char* const block = after + SUMS_BYTES;
        double c[STEPS][OT];
#pragma unroll
        for (int x = 0; x < STEPS; ++x)
#pragma unroll
            for (int y = 0; y < OT; ++y) c[x][y] = coefficient(o, at.wc * COLUMNS + 4 * x + at.t, M, y, at.g);

        Cursor<STAGES> ready;
        int before = 0;
        for (i64 tile = blockIdx.x; tile < o.tiles; tile += gridDim.x) {
            wait(stages.full + ready.stage, ready.parity);
            const char* from = stage(ready.stage) + (at.wr * BLOCK + at.g) * W_PITCH + (at.wc * COLUMNS + at.t) * SIZE;
            double part[TURNS][OT][2][2] = {};
#pragma unroll
            for (int x = 0; x < STEPS; ++x)
#pragma unroll
                for (int turn = 0; turn < TURNS; ++turn) {
                    double top[1], bottom[1];
                    load_rows(from + turn * WR * BLOCK * W_PITCH + 4 * x * SIZE, W_PITCH, top, bottom);
#pragma unroll
                    for (int y = 0; y < OT; ++y) {
                        const double b[1] = {c[x][y]};
                        mma_m16n8(part[turn][y][0], part[turn][y][1], top, bottom, b);
                    }
                }
            __syncthreads();  // the last tile's partial results and block are read, its new block is there
            if (tile >= gridDim.x) refill_block(before, tile - gridDim.x);
            const int first = at.wc * ROWS + at.wr * BLOCK;
#pragma unroll
            for (int turn = 0; turn < TURNS; ++turn)
#pragma unroll
                for (int y = 0; y < OT; ++y)
                    for_pairs(part[turn][y], y, at, [&](int row, int column, double2 pair) {
                        *reinterpret_cast<double2*>(after + sum_offset(first + turn * WR * BLOCK + row, column)) = pair;
                    });
            if constexpr (GRAM) {
                if (tile >= gridDim.x) sums.add_tile(block, at);
            }
            __syncthreads();
            refill_basis(ready.stage, tile);
            finish(stage(ready.stage) + W_BYTES, block, tile);
            before = ready.stage;
            ready.advance();
        }
        if constexpr (GRAM) {
            __syncthreads();
            if (blockIdx.x < o.tiles) sums.add_tile(block, at);
        }
    }

    // Adds the partial results of one tile up, and beta V.
    __device__ __forceinline__ void finish(const char* old, char* block, i64 tile) const {
        const int rows = o.rows(tile);
        char* to = o.V + tile * ROWS * o.pitch_v;
#pragma unroll(ROWS * N / THREADS > 4 ? 4 : 2)
        for (int element = at.thread; element < ROWS * N; element += THREADS) {
            const int row = element / N, n = element % N;
            Number v = load(after + sum_offset(row, n));
#pragma unroll
            for (int w = 1; w < WC; ++w) {
                const Number more = load(after + sum_offset(w * ROWS + row, n));
                v.re += more.re;
                if constexpr (COMPLEX) v.im += more.im;
            }
            if constexpr (BETA != 0) {
                Number b = load(old + row * V_PITCH + n * SIZE);
                if constexpr (BETA == 2) b = times(o.beta, b);
                v.re += b.re;
                if constexpr (COMPLEX) v.im += b.im;
            }
            if (row < rows) {
                double* p = reinterpret_cast<double*>(to + row * o.pitch_v + n * SIZE);
                if (COMPLEX && V_PIECE == 16) {
                    *reinterpret_cast<double2*>(p) = make_double2(v.re, v.im);
                } else {
                    p[0] = v.re;
                    if constexpr (COMPLEX) p[1] = v.im;
                }
            }
            if constexpr (GRAM) {
                double* p = reinterpret_cast<double*>(block + row * V_PITCH + n * SIZE);
                p[0] = row < rows ? v.re : 0;
                if constexpr (COMPLEX) p[1] = row < rows ? v.im : 0;
            }
        }
    }
};

// ---- the sum over warps and blocks

__device__ __forceinline__ void reduce(const GramSums& sums, double* S, double* product, void* workspace, u64& launch, const Place& at) {
    if (at.thread == 0) launch = grid_decided(launch, grid_seen(workspace));
    for (int turn = 0; turn < GramSums::SHARES; ++turn) {
        __syncthreads();
        if (turn == sums.share(at)) sums.store(product, turn > 0, at);
    }
    __syncthreads();

    auto store = [&](int element, const double(&sum)[P]) {
        S[element * P] = sum[0];
        if constexpr (COMPLEX) S[element * P + 1] = sum[P - 1];
    };
#pragma unroll 1
    for (int element = at.thread; element < N * N; element += THREADS) {
        double sum[P];
#pragma unroll
        for (int part = 0; part < P; ++part) {
            const double mirror = product[(element % N * N + element / N) * P + part];
            sum[part] = 0.5 * (product[element * P + part] + (part == 1 ? -mirror : mirror));  // Hermitian to the last bit
        }
        if (gridDim.x == 1) {
            store(element, sum);
        } else {
#pragma unroll
            for (int part = 0; part < P; ++part) grid_put<N * N * P>(workspace, element * P + part, sum[part], launch);
        }
    }
    if (gridDim.x > 1) grid_sum<N * N * P, P, THREADS>(workspace, product, launch, store);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    KERNEL(const char* W, char* V, const double* C, double* S, i64 K, i64 pitch_w, i64 pitch_v, double alpha_re, double alpha_im,
           double beta_re, double beta_im, void* workspace) {
    DYNAMIC_SHARED(shared, 128);
    SHARED(Stages, stages);
    SHARED(u64, launch);
    const Operands o = {W, V, C, K, pitch_w, pitch_v, (K + ROWS - 1) / ROWS, {alpha_re, alpha_im}, {beta_re, beta_im}};
    Place at;
    at.thread = threadIdx.x;
    at.warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);  // uniform in a warp for the compiler: see elect_one()
    at.lane = threadIdx.x % 32;
    at.g = at.lane / 4;
    at.t = at.lane % 4;
    at.wc = at.warp % WC;
    at.wr = at.warp / WC;
    if (at.thread == 0) {
        for (int s = 0; s < STAGES; ++s) barrier_init(stages.full + s, ARRIVALS);
        barrier_init_fence();
    }
    clear_margins(shared, at.thread);
    __syncthreads();

    const Sweep sweep = {o, at, shared, stages, shared + STAGES * STAGE_BYTES};
    sweep.start();
    if (GRAM && at.thread == 0) launch = grid_started(workspace);
    if constexpr (GRAM) {
        GramSums sums = {};
        sweep.update(sums);
        reduce(sums, S, reinterpret_cast<double*>(shared), workspace, launch, at);
    } else {
        Nothing none;
        sweep.update(none);
    }
}
