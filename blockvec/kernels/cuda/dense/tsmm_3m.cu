// B (K x N) = alpha A C for complex operands by three real products for a complex one, on FP64 tensor cores (sm_90).
//
//   for each tile of ROWS rows, taken in order by the warps of all blocks:
//       A's rows  ->  the warp's stage in shared memory                            asynchronous, while it multiplies the tile before
//       stage  ->  registers
//       for each 16 columns of C:
//           for x < KT:  re += C_re^T[columns][4x..4x+3] (A_re + A_im)^T[4x..4x+3][rows]          two m16n8k4
//           im = re
//           for x < KT:  re += (-C_re - C_im)^T A_im^T,  im += (C_im - C_re)^T A_re^T             four
//           re, im  ->  B's rows
//
// (Gauss's form of the 3M method: Higham, SIAM J. Matrix Anal. Appl. 13 (1992) 681.) The first product is the start of both sums, so that a lane
// has two sums per element, not three, and need not combine them. A tile is read again for each pass and its parts are added up, so it lies in
// registers; the stage it came from is free at once and takes the next tile. Warps share only C's fragments, of which there are three: of C_re, and
// side by side of C_im - C_re and -C_re - C_im.
//
// The columns of C are the 16 rows of a product and 8 rows of A its columns, so that a lane stores columns g and g + 8 of rows 2t and 2t + 1: lines of
// 128 bytes of 4 rows at a time.
//
// Constants, beside those of tsmm_tiles.cuh (ROWS = 16): ALPHA: C is multiplied by alpha; WARPS of a thread block, one per multiprocessor; RUN of the tile
// queue; PAIRED: a lane stores two neighbouring elements of 8 bytes at once, those of columns 2g and 2g + 1.

#include "common/tile_queue.cuh"
#include "dense/tsmm_tiles.cuh"

constexpr int BLOCKS = ROWS / BLOCK;
constexpr int PASSES = (N + 15) / 16;
constexpr int REST = (N + 7) / 8 % 2;  // whether the last pass is one of 8 columns
constexpr int FRAGMENTS = KT * PASSES * 32;  // of two doubles each, for C_re
constexpr int FRAGMENT_BYTES = 3 * 16 * FRAGMENTS;
constexpr int STAGE_BYTES = Tile<M>::BYTES;

static_assert(COMPLEX && BLOCKS == 2, "two blocks of 8 rows are the 16 rows of a product");

struct Operands {
    const char* A;
    const Real* C;
    char* B;
    i64 K, pitch_a, pitch_b;  // pitches in bytes
    Element alpha;

    __device__ __forceinline__ u32 tiles() const { return (K + ROWS - 1) / ROWS; }
    __device__ __forceinline__ int rows(u32 tile) const { return min(static_cast<i64>(ROWS), K - static_cast<i64>(tile) * ROWS); }
};

struct Lane {
    int lane, g, t;  // row and column in a fragment of A
    u32 keep;        // zero, which the compiler does not know
};

// The column of B in row g, or g + 8, of a fragment of C. Of 8 columns lane (., t) of the product gets columns 2t and 2t + 1 of the fragment.
__device__ __forceinline__ int column_of(int pass, int g, int half) {
    if (8 * (2 * pass + 1) >= N && half == 0) return 16 * pass + (PAIRED ? g : g / 2 + 4 * (g % 2));
    return 16 * pass + (PAIRED ? 2 * g + half : g + 8 * half);
}

// Fragments of alpha C, zero outside: for each x and pass the two of C_re side by side; then those of C_im - C_re, those of -C_re - C_im.
__device__ __forceinline__ void make_fragments(double2* fragments, const Operands& o) {
    for (int i = threadIdx.x; i < FRAGMENTS; i += 32 * WARPS) {
        const int lane = i % 32, pass = i / 32 % PASSES, k = i / (32 * PASSES) * 4 + lane % 4;
        double re[2] = {}, im[2] = {};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int n = column_of(pass, lane / 4, half);
            if (k >= M || n >= N) continue;
            const Real* from = o.C + 2 * (k * N + n);
            Element c = element(from[0], from[1]);
            if constexpr (ALPHA) c = times(o.alpha, c);
            re[half] = c.part[0];
            im[half] = c.part[P - 1];
        }
        fragments[i] = make_double2(re[0], re[1]);
        fragments[FRAGMENTS + i] = make_double2(im[0] - re[0], im[1] - re[1]);
        fragments[2 * FRAGMENTS + i] = make_double2(-re[0] - im[0], -re[1] - im[1]);
    }
}

// A tile of A: for each 4 columns the real and the imaginary parts in the blocks of rows.
using Rows = double[KT][2][BLOCKS][1];

__device__ __forceinline__ void load_rows(Rows& a, const char* from, const Lane& lane) {
#pragma unroll
    for (int x = 0; x < KT; x++)
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            const Element value = load(from + STEP * b * Tile<M>::PITCH + 4 * x * SIZE);
            const bool inside = 4 * x + 3 < M || 4 * x + lane.t < M;  // 0 * NaN would be NaN
            a[x][0][b][0] = inside ? value.part[0] : 0.0;
            a[x][1][b][0] = inside ? value.part[P - 1] : 0.0;
        }
}

// A word that depends on all loads.
__device__ __forceinline__ u32 token(const Rows& a) {
    u32 word = 0;
#pragma unroll
    for (int i = 0; i < 2 * KT * BLOCKS; i++) word |= __double2loint(a[i / (2 * BLOCKS)][i / BLOCKS % 2][i % BLOCKS][0]);
    return word;
}

struct alignas(2 * SIZE) Neighbours {
    Real part[2][P];
};

// The rows of B of a tile.
struct Output {
    char* first;
    i64 pitch;
    int rows;
};

// Row `index` of 8 in the first block of rows.
__device__ __forceinline__ int row_of(int index) { return index % SUBS * Tile<M>::SUB_ROWS + index / SUBS; }

// For 8 columns half of them.
using Sums = double[BLOCKS][2][2];

// Of 16 columns the columns of C are the 16 rows of a product, 8 rows of A its columns; of 8 columns 16 rows of A are its rows.
template <int COLUMNS>
__device__ __forceinline__ void add(Sums& sums, const double2* c, const double (&a)[BLOCKS][1]) {
    if constexpr (COLUMNS == 16) {
        const double2 both = *c;
        const double left[1] = {both.x}, right[1] = {both.y};
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) mma_m16n8(sums[b][0], sums[b][1], left, right, a[b]);
    } else {
        const double only[1] = {c->x};
        mma_m16n8(sums[0][0], sums[1][0], a[0], a[1], only);
    }
}

// COLUMNS columns of B.
template <int COLUMNS>
__device__ __forceinline__ void multiply(const Rows& a, const double2* fragments, int pass, const Output& out, const Lane& lane) {
    Sums re = {}, im = {};
    const double2* c = fragments + 32 * pass + lane.lane;
    // One, which the compiler does not know: it would keep the sums of all columns of A over the passes, in registers that it does not have.
    const double one = 1.0 + (__double2loint(c[0].x) & lane.keep);
#pragma unroll
    for (int x = 0; x < KT; x++) {
        double sum[BLOCKS][1];
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) sum[b][0] = fma(a[x][1][b][0], one, a[x][0][b][0]);
        add<COLUMNS>(x % 2 ? im : re, c + 32 * PASSES * x, sum);  // in turn: a product waits for the one before
    }
#pragma unroll
    for (int i = 0; i < 4 * BLOCKS; i++) {
        double& first = re[i / 4][i / 2 % 2][i % 2];
        double& second = im[i / 4][i / 2 % 2][i % 2];
        first = second = first + second;
    }
#pragma unroll
    for (int x = 0; x < KT; x++) {
        add<COLUMNS>(im, c + FRAGMENTS + 32 * PASSES * x, a[x][0]);
        add<COLUMNS>(re, c + 2 * FRAGMENTS + 32 * PASSES * x, a[x][1]);
    }
    // Of 16 columns a lane has rows 2t and 2t + 1 of a block, of 8 columns row g; of each row two elements, APART or next to each other.
    constexpr int LINES = COLUMNS / 8, APART = COLUMNS / 2;
    const int row = row_of(LINES == 2 ? 2 * lane.t : lane.g), unit = LINES == 2 ? lane.g : lane.t;
    const int column = 16 * pass + (PAIRED ? 2 * unit : unit), left = out.rows - row;
    char* const corner = out.first + row * out.pitch + column * SIZE;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int q = 0; q < LINES; q++) {
            const int down = STEP * b + Tile<M>::SUB_ROWS * q;
            char* const to = corner + down * out.pitch;
            Element value[2];
#pragma unroll
            for (int e = 0; e < 2; e++) value[e] = LINES == 2 ? element(re[b][e][q], im[b][e][q]) : element(re[b][0][e], im[b][0][e]);
            if constexpr (PAIRED) {
                Neighbours both;
#pragma unroll
                for (int i = 0; i < 2 * P; i++) both.part[i / P][i % P] = static_cast<Real>(value[i / P].part[i % P]);
                if (down < left && column < N) *reinterpret_cast<Neighbours*>(to) = both;
            } else {
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (down < left && (N % COLUMNS == 0 || column + APART * e < N)) store(to + APART * e * SIZE, value[e]);
            }
        }
}

__device__ __forceinline__ void fill(char* stage, u64* full, const Operands& o, u32 tile) {
    if (tile < o.tiles() && elect_one()) Bulk<M>::load(stage, o.A + static_cast<i64>(tile) * ROWS * o.pitch_a, o.rows(tile), full);
}

// All tiles of a warp, the first of which is on its way to its stage.
__device__ __forceinline__ void sweep(const Operands& o, char* stage, u64* full, const double2* fragments, u32 tile, TileQueue* queue, const Lane& lane) {
    const u32 tiles = o.tiles();
    const char* from = stage + lane.g % SUBS * Tile<M>::SUB + lane.g / SUBS * Tile<M>::PITCH + lane.t * SIZE;
    Runs<RUN> runs = {&queue->taken, gridDim.x * WARPS};
    if (tile < tiles) runs.ask(lane.lane);
#pragma unroll 1
    for (u32 parity = 0; tile < tiles; parity ^= 1) {
        Rows a;
        wait(full, parity);
        load_rows(a, from, lane);
        // The copy engine must not overtake loads that wait for their banks: what follows depends on all of them.
        const u32 next = __shfl_sync(0xffffffffu, runs.next(lane.lane) + (token(a) & lane.keep), 0);
        __syncwarp();
        fill(stage, full, o, next);
        const Output out = {o.B + static_cast<i64>(tile) * ROWS * o.pitch_b, o.pitch_b, o.rows(tile)};
#pragma unroll 1
        for (int pass = 0; pass < PASSES - REST; pass++) multiply<16>(a, fragments, pass, out, lane);
        if constexpr (REST) multiply<8>(a, fragments, PASSES - 1, out, lane);
        tile = next;
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    KERNEL(const char* A, const Real* C, char* B, i64 K, i64 pitch_a, i64 pitch_b, double alpha_re, double alpha_im, double, double,
           TileQueue* queue) {
    DYNAMIC_SHARED(memory, 128);  // C's fragments, then each warp's stage, then their barriers
    double2* const fragments = reinterpret_cast<double2*>(memory);
    u64* const full = reinterpret_cast<u64*>(memory + FRAGMENT_BYTES + WARPS * STAGE_BYTES);

    const int thread = threadIdx.x;
    // From a shuffle, so that the compiler treats it as uniform in a warp: see elect_one().
    const int warp = __shfl_sync(0xffffffffu, thread / 32, 0);
    Lane lane;
    lane.lane = thread % 32;
    lane.g = lane.lane / 4;
    lane.t = lane.lane % 4;
    lane.keep = static_cast<u32>(K >> 63);
    const Operands o{A, C, B, K, pitch_a, pitch_b, element(alpha_re, alpha_im)};

    if (thread == 0) {  // one thread: see Ring::init
        for (int w = 0; w < WARPS; ++w) barrier_init(full + w, 1);
        barrier_init_fence();
    }
    __syncthreads();
    char* const stage = memory + FRAGMENT_BYTES + warp * STAGE_BYTES;
    const u32 tile = warp * gridDim.x + blockIdx.x;
    fill(stage, full + warp, o, tile);
    make_fragments(fragments, o);
    __syncthreads();
    sweep(o, stage, full + warp, fragments, tile, queue, lane);
    __syncthreads();
    if (thread == 0) queue_leave(queue);
}
