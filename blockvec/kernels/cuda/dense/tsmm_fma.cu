// B (K x N) = alpha A C + beta B for tall A (K x M) and a small matrix C (M x N), by multiply-adds. Any type, width, pitch, alignment.
//
//   for each chunk of ROWS = GROUPS UNROLL rows, taken by the teams from a tile queue (tile_queue.cuh) or in turn
//     each thread: UNROLL rows, CT of the columns of B (SPREAD threads share a row)
//       acc[u][j] = sum over m of A[row(u)][m] C[m][column(j)]                  A: KT columns at a time
//       B[row(u)][column(j)] = alpha acc[u][j] + beta B[row(u)][column(j)]
//
// The thread mappings of Ernst, Hager, Thies and Wellein (2021): 1 to 32 threads per row, with interleaved columns ("transposed"), C in
// registers or in shared memory, UNROLL rows per thread that share the loads of C. COUNT of them are neighbours, so that a thread's vectors can
// straddle rows of odd width.
//
// Chunks come through a ring in shared memory (staging.cuh), and so do the results, in the place of the chunk's A (of its B if beta is not zero, since B is then staged too): they are stored as whole contiguous
// ranges, so odd widths are as fast as even ones. In place, a chunk's rows have been read before any of them is written.
//
// Types:   RealA, RealC: parts of A's and C's elements; Real: of B's, and of products and sums.
// Problem: M, N; PA, PC: parts of an element, 1 or 2; ALPHA_ONE; BETA: 0 zero, 1 one, 2 general; A_LINEAR, B_LINEAR: rows are contiguous.
// Config:  SPREAD, CT, UNROLL, COUNT, KT, UNROLL_K (A's tiles of columns unrolled), COEFFICIENTS: 0 registers, 1 shared memory;
//          TEAMS of one warp, STAGES; DEALS: warps take chunks from the tile queue, RUN at a time.
// Layout:  A_VECTOR (bytes of a thread's access), A_PIECE, A_PITCH, A_PAD_ROWS, A_PAD of the slabs, and B's; C_VECTOR; B_OFFSET in a stage, STAGE_BYTES;
//          C_OFFSET: of the coefficients in shared memory.
#include "dense/fma.cuh"
#include "common/tile_queue.cuh"
#include "dense/staging.cuh"

constexpr int P = PA > PC ? PA : PC;
constexpr int LANES = 32, THREADS = LANES * TEAMS;
constexpr int GROUPS = LANES / SPREAD, SETS = UNROLL / COUNT;
constexpr int ROWS = GROUPS * UNROLL;
constexpr int SIZE_A = PA * sizeof(RealA), SIZE_B = P * sizeof(Real);
constexpr int WHOLE_TILES = M / KT, LEFT = M % KT;  // tiles of A's columns, and the columns of the last one
constexpr int C_LOAD = C_VECTOR / sizeof(Real);     // reals per load of the coefficients in shared memory
constexpr int C_LOADS = (CT * PC + C_LOAD - 1) / C_LOAD, C_ROW = C_LOADS * C_LOAD * SPREAD;
static_assert(UNROLL % COUNT == 0 && CT * SPREAD >= N && LANES % SPREAD == 0, "whole sets of whole rows");

using SlabA = Slab<ROWS, M * SIZE_A, A_LINEAR, A_PIECE, A_PITCH, A_PAD_ROWS, A_PAD, LANES>;
using SlabB = Slab<ROWS, N * SIZE_B, B_LINEAR, B_PIECE, B_PITCH, B_PAD_ROWS, B_PAD, LANES>;
using FragmentA = Fragment<RealA, PA, M, KT, (M + KT - 1) / KT, COUNT, A_VECTOR, false, A_LINEAR>;
using FragmentB = Fragment<Real, P, N, CT, SPREAD, COUNT, B_VECTOR, (SPREAD > 1), B_LINEAR>;

struct Place {
    int team, lane, group, share;

    __device__ __forceinline__ explicit Place(int thread)
        : team(thread / LANES), lane(thread % LANES), group(lane / SPREAD), share(lane % SPREAD) {}

    __device__ __forceinline__ int row(int set) const { return (set * GROUPS + group) * COUNT; }
};

// The coefficients of one thread: CT columns of each row of C.
struct Coefficients {
    const RealC* C;
    Real* shared;
    int share;
    Real held[COEFFICIENTS == 0 ? M : 1][CT][PC];

    __device__ __forceinline__ Real from_memory(int m, int j, int part) const {
        const int column = FragmentB::Deal::at(share, j);
        return j < CT && column < N ? static_cast<Real>(__ldg(C + (m * N + column) * PC + part)) : Real(0);
    }

    // In shared memory a row is C_LOADS vectors of every thread, neighbours next to each other.
    __device__ __forceinline__ void prepare() {
        if constexpr (COEFFICIENTS == 0) {
#pragma unroll
            for (int m = 0; m < M; ++m)
#pragma unroll
                for (int k = 0; k < CT * PC; ++k) held[m][k / PC][k % PC] = from_memory(m, k / PC, k % PC);
        } else {
            const int own = share;
            for (int k = threadIdx.x; k < M * C_ROW; k += THREADS) {
                const int vector = k % C_ROW / C_LOAD, real = vector / SPREAD * C_LOAD + k % C_LOAD;
                share = vector % SPREAD;
                shared[k] = from_memory(k / C_ROW, real / PC, real % PC);
            }
            share = own;
            __syncthreads();
        }
    }

    __device__ __forceinline__ void load(Real (&c)[CT][PC], int m) const {
        if constexpr (COEFFICIENTS == 1) {
            using Vector = Reals<Real, C_LOAD>;
            const Real* row = shared + m * C_ROW + share * C_LOAD;
#pragma unroll
            for (int load = 0; load < C_LOADS; ++load) {
                const Vector v = *reinterpret_cast<const Vector*>(row + load * (SPREAD * C_LOAD));
#pragma unroll
                for (int k = 0; k < C_LOAD; ++k) {
                    const int i = load * C_LOAD + k;
                    if (i < CT * PC) c[i / PC][i % PC] = v.at[k];
                }
            }
        } else {
#pragma unroll
            for (int k = 0; k < CT * PC; ++k) c[k / PC][k % PC] = held[m][k / PC][k % PC];
        }
    }
};

struct Tile {
    FragmentB out[SETS];

    // acc += A(rows, columns [first, first + COLUMNS)) C(those rows, own columns), the columns of A being in `a`
    template <int COLUMNS>
    __device__ __forceinline__ void add(const FragmentA (&a)[SETS], const Coefficients& coefficients, int first) {
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) {
            Real c[CT][PC];
            coefficients.load(c, first + i);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                Real x[PA];
#pragma unroll
                for (int part = 0; part < PA; ++part) x[part] = a[u / COUNT].part[u % COUNT][i][part];
#pragma unroll
                for (int j = 0; j < CT; ++j) accumulate<false>(out[u / COUNT].part[u % COUNT][j], x, c[j]);
            }
        }
    }

    // One set's acc = alpha acc + beta old
    static __device__ __forceinline__ void finish(FragmentB& set, const FragmentB& old, const Real (&alpha)[2], const Real (&beta)[2]) {
#pragma unroll
        for (int u = 0; u < COUNT; ++u)
#pragma unroll
            for (int j = 0; j < CT; ++j) {
                Real(&x)[P] = set.part[u][j];
                if constexpr (!ALPHA_ONE) scale(x, x, alpha);
                if constexpr (BETA != 0) {
                    Real scaled[P];
                    scale(scaled, old.part[u][j], beta);
#pragma unroll
                    for (int part = 0; part < P; ++part) x[part] += BETA == 1 ? old.part[u][j][part] : scaled[part];
                }
            }
    }

    static __device__ __forceinline__ void scale(Real (&y)[P], const Real (&x)[P], const Real (&factor)[2]) {
        Real product[P];
        product[0] = factor[0] * x[0];
        if constexpr (P == 2) {
            product[0] = multiply_add(-factor[1], x[P - 1], product[0]);
            product[P - 1] = multiply_add(factor[0], x[P - 1], factor[1] * x[0]);
        }
#pragma unroll
        for (int part = 0; part < P; ++part) y[part] = product[part];
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1)
KERNEL(const char* A, const RealC* __restrict__ C, char* B, i64 K, i64 lda, i64 ldb, double alpha_re, double alpha_im, double beta_re,
       double beta_im, TileQueue* queue) {
    DYNAMIC_SHARED(shared, 128);
    const Place at(threadIdx.x);
    const Real alpha[2] = {static_cast<Real>(alpha_re), static_cast<Real>(alpha_im)};
    const Real beta[2] = {static_cast<Real>(beta_re), static_cast<Real>(beta_im)};
    const i64 pitch_a = (A_LINEAR ? M : lda) * SIZE_A, pitch_b = (B_LINEAR ? N : ldb) * SIZE_B;
    const i64 chunks = (K + ROWS - 1) / ROWS, stride = static_cast<i64>(gridDim.x) * TEAMS;
    // Neighbouring chunks go to different blocks first, so that few chunks occupy all multiprocessors.
    i64 chunk = static_cast<i64>(at.team) * gridDim.x + blockIdx.x;
    const bool asks = DEALS && chunks > STAGES * stride && chunks < i64(1) << 31;
    u32 next_chunks[DEALS ? STAGES : 1];  // of the stages after this one, if chunks come from the queue
    Runs<RUN> runs = {&queue->taken, static_cast<u32>(STAGES * stride)};
    if (asks) runs.ask(at.lane);
    char* ring = shared + at.team * (STAGES * STAGE_BYTES);
    const auto copy = [&](int stage, i64 wanted) {
        if (wanted < chunks) {
            const i64 row = wanted * ROWS;
            SlabA::load(ring + stage * STAGE_BYTES, A + row * pitch_a, pitch_a, K - row, at.lane);
            if constexpr (BETA != 0) SlabB::load(ring + stage * STAGE_BYTES + B_OFFSET, B + row * pitch_b, pitch_b, K - row, at.lane);
        }
        async_commit();
    };
#pragma unroll
    for (int s = 0; s < STAGES; ++s) {
        copy(s, chunk + s * stride);
        if (DEALS && s > 0) next_chunks[s - 1] = chunk + s * stride;
    }

    Coefficients coefficients = {C, reinterpret_cast<Real*>(shared + C_OFFSET), at.share};
    coefficients.prepare();

    int stage = 0;
    while (chunk < chunks) {
        const i64 row0 = chunk * ROWS;
        char* from = ring + stage * STAGE_BYTES;
        async_wait<STAGES - 1>();
        __syncwarp();
        const auto load = [&](FragmentA(&a)[SETS], int tile) {
#pragma unroll
            for (int set = 0; set < SETS; ++set)
                a[set].template load<false>(from + SlabA::offset(at.row(set)), A_PITCH, tile);
        };
        Tile tile = {};
#pragma unroll UNROLL_K
        for (int k = 0; k < WHOLE_TILES; ++k) {
            FragmentA a[SETS];
            load(a, k);
            tile.template add<KT>(a, coefficients, k * KT);
        }
        if constexpr (LEFT > 0) {
            FragmentA a[SETS];
            load(a, WHOLE_TILES);
            tile.template add<LEFT>(a, coefficients, WHOLE_TILES * KT);
        }

        __syncwarp();  // the rows have been read: in place, or in this stage, they may be overwritten
        char* slab = from + B_OFFSET;
#pragma unroll
        for (int set = 0; set < SETS; ++set) {
            FragmentB& out = tile.out[set];
            FragmentB old;
            char* own = slab + SlabB::offset(at.row(set));
            if constexpr (BETA != 0) old.template load<true>(own, B_PITCH, at.share);
            Tile::finish(out, old, alpha, beta);
            out.store(own, B_PITCH, at.share);
        }
        __syncwarp();
        SlabB::store(slab, B + row0 * pitch_b, pitch_b, K - row0, at.lane);
        __syncwarp();
        const i64 next = asks ? runs.next(at.lane) : chunk + STAGES * stride;
        copy(stage, next);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        if (asks) {
            next_chunks[STAGES - 1] = next;
            chunk = next_chunks[0];
#pragma unroll
            for (int s = 0; s + 1 < STAGES; ++s) next_chunks[s] = next_chunks[s + 1];
            continue;
        }
        chunk += stride;
    }
    if (asks) {
        __syncthreads();
        if (threadIdx.x == 0) queue_leave(queue);
    }
}
