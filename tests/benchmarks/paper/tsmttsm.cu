// C (M x N) += A^H B for tall A (K x M) and B (K x N), row-major and contiguous: the first kernel of Ernst, Hager, Thies and Wellein (2021).
//
//   thread (group, tile) of a block: for each row k = group, group + groups of the grid, ...
//     sum[i][j] += conj(A[k][column(i)]) B[k][column(j)]     for the TM x TN columns of the tile
//   C += the sums of all groups, by REDUCTION
//
// Operands are loaded from memory to registers, element by element. LEAPFROG: those of the next row are loaded before the products of this one.
// INTERLEAVED: columns are dealt to the tiles in turn ("transposed"), not in blocks. Tiles in direction M first.
//
// Registers: 2 P (TM TN + TM + TN), with LEAPFROG 2 P (TM TN + 2 TM + 2 TN), and about 30 more.
//
// REDUCTION: 0 partial sums of blocks in a fixed order, 1 atomic additions per block after some in shared memory, 2 atomic additions per thread,
//            3 none: C stays as it is, and the others are timed against this.
// For the experiment on occupancy, with wrong results: ACCUMULATORS > 0 sums take all products in turn, so that few registers are needed;
// DIVISOR > 1 divides the row, so that nearly all loads are hits in the first-level cache.
//
// Constants: M, N, P (parts of an element: 1 real, 2 complex), TM, TN, THREADS, BLOCKS (resident per multiprocessor), and those above.
using i64 = long long;
#ifndef DYNAMIC_SHARED  // the emulator has its own
#define DYNAMIC_SHARED(NAME, ALIGNMENT) extern __shared__ __align__(ALIGNMENT) char NAME[]
#endif

constexpr int TILES_M = (M + TM - 1) / TM, TILES_N = (N + TN - 1) / TN, TILES = TILES_M * TILES_N;
constexpr int GROUPS = THREADS / TILES, ELEMENTS = M * N * P;
constexpr int PRODUCTS = TM * TN, SUMS = ACCUMULATORS > 0 ? ACCUMULATORS : PRODUCTS, VALUES = SUMS * P;
constexpr int PASS = VALUES < 8 ? VALUES : 8;  // values that are added up over the groups at a time
static_assert(GROUPS > 0, "a block takes whole rows");

struct alignas(8 * P) Number {
    double part[P];
};

// The columns of a tile, in a row of WIDTH.
template <int WIDTH, int TILE>
struct Columns {
    static constexpr int TILES = (WIDTH + TILE - 1) / TILE;

    static __device__ int at(int tile, int i) { return INTERLEAVED ? i * TILES + tile : tile * TILE + i; }

    static __device__ bool has(int tile, int i) {
        return TILES * TILE == WIDTH || (INTERLEAVED && (i + 1) * TILES <= WIDTH) || at(tile, i) < WIDTH;
    }

    static __device__ void load(Number (&to)[TILE], const Number* row, int tile) {
#pragma unroll
        for (int i = 0; i < TILE; ++i) to[i] = has(tile, i) ? row[at(tile, i)] : Number{};
    }
};
using ColumnsA = Columns<M, TM>;
using ColumnsB = Columns<N, TN>;

struct Operands {
    Number a[TM], b[TN];
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
tsmttsm(const Number* __restrict__ A, const Number* __restrict__ B, double* C, double* partials, unsigned* finished, i64 K) {
    DYNAMIC_SHARED(shared, 16);
    double* scratch = reinterpret_cast<double*>(shared);
    const int thread = threadIdx.x, tile = thread % TILES, group = thread / TILES;
    const int tile_m = tile % TILES_M, tile_n = tile / TILES_M;
    double sum[VALUES] = {};

    const auto load = [&](Operands& to, i64 k) {
        const i64 row = static_cast<i64>(static_cast<unsigned long long>(k) / DIVISOR);
        ColumnsA::load(to.a, A + row * M, tile_m);
        ColumnsB::load(to.b, B + row * N, tile_n);
    };
    const auto multiply = [&](const Operands& x) {
#pragma unroll
        for (int i = 0; i < TM; ++i)
#pragma unroll
            for (int j = 0; j < TN; ++j) {
                double* s = sum + (i * TN + j) % SUMS * P;
                const Number &a = x.a[i], &b = x.b[j];
                s[0] += a.part[0] * b.part[0];
                if (P == 2) {
                    s[0] += a.part[P - 1] * b.part[P - 1];
                    s[P - 1] += a.part[0] * b.part[P - 1];
                    s[P - 1] -= a.part[P - 1] * b.part[0];
                }
            }
    };

    const i64 stride = static_cast<i64>(gridDim.x) * GROUPS;
    i64 k = group < GROUPS ? static_cast<i64>(blockIdx.x) * GROUPS + group : K;
    if (LEAPFROG) {
        Operands next = {};
        if (k < K) load(next, k);
#pragma unroll 1
        for (; k < K; k += stride) {
            const Operands current = next;
            load(next, k + stride < K ? k + stride : k);
            multiply(current);
        }
    } else {
#pragma unroll 1
        for (; k < K; k += stride) {
            Operands current;
            load(current, k);
            multiply(current);
        }
    }

    // use(place in C, value) for each value of this thread
    const auto each = [&](auto use) {
#pragma unroll
        for (int value = 0; value < VALUES; ++value) {
            const int i = value / P / TN, j = value / P % TN;
            if (ColumnsA::has(tile_m, i) && ColumnsB::has(tile_n, j))
                use((ColumnsA::at(tile_m, i) * N + ColumnsB::at(tile_n, j)) * P + value % P, sum[value]);
        }
    };
    if constexpr (REDUCTION == 3) {
        if (K < 0)  // never: but the compiler must keep the sums
#pragma unroll
            for (int value = 0; value < VALUES; ++value) C[value] = sum[value];
    } else if constexpr (REDUCTION == 2) {
        if (group < GROUPS) each([&](int place, double value) { atomicAdd(C + place, value); });
    } else if constexpr (REDUCTION == 1) {
        for (int element = thread; element < ELEMENTS; element += THREADS) scratch[element] = 0;
        __syncthreads();
        if (group < GROUPS) each([&](int place, double value) { atomicAdd(scratch + place, value); });
        __syncthreads();
        for (int element = thread; element < ELEMENTS; element += THREADS) atomicAdd(C + element, scratch[element]);
    } else {
#pragma unroll
        for (int first = 0; first < VALUES; first += PASS) {
            double* own = scratch + thread;
#pragma unroll
            for (int p = 0; p < PASS; ++p) own[p * THREADS] = first + p < VALUES ? sum[(first + p) % VALUES] : 0;
            for (int left = GROUPS; left > 1; left = (left + 1) / 2) {
                const int half = (left + 1) / 2;
                __syncthreads();
                if (group + half < left)
#pragma unroll
                    for (int p = 0; p < PASS; ++p) own[p * THREADS] += own[p * THREADS + half * TILES];
            }
#pragma unroll
            for (int p = 0; p < PASS; ++p)
                if (first + p < VALUES) sum[(first + p) % VALUES] = own[p * THREADS];
            __syncthreads();
        }
        double* partial = partials + static_cast<i64>(blockIdx.x) * ELEMENTS;
        if (group == 0) each([&](int place, double value) { partial[place] = value; });
        __threadfence();
        __syncthreads();
        int* is_last = reinterpret_cast<int*>(shared);
        if (thread == 0) *is_last = atomicAdd(finished, 1u) == gridDim.x - 1;
        __syncthreads();
        if (!*is_last) return;
        __syncthreads();
        // The last block adds the sums of all: SLICES threads per element, if there are so many.
        constexpr int SHARE = ELEMENTS < THREADS ? ELEMENTS : THREADS, SLICES = THREADS / SHARE;
        for (int first = 0; first < ELEMENTS; first += SHARE) {
            const int element = first + thread % SHARE, slice = thread / SHARE;
            double part = 0;
            if (slice < SLICES && element < ELEMENTS)
                for (int block = slice; block < static_cast<int>(gridDim.x); block += SLICES)
                    part += __ldcg(partials + static_cast<i64>(block) * ELEMENTS + element);
            scratch[thread] = part;
            __syncthreads();
            if (slice == 0 && element < ELEMENTS) {
                for (int other = 1; other < SLICES; ++other) part += scratch[other * SHARE + thread];
                C[element] += part;
            }
            __syncthreads();
        }
        if (thread == 0) *finished = 0;
    }
}
