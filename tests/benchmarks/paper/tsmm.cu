// B (K x N) = A C for tall A (K x M) and C (M x N), row-major and contiguous: the second kernel of Ernst, Hager, Thies and Wellein (2021).
//
//   thread (group, share) of a block: for ROWS rows at a time
//     sum[r][j] = sum over m of A[row(r)][m] C[m][column(j)]     column(j) = j SPREAD + share: SPREAD threads write neighbouring elements
//     B[row(r)][column(j)] = sum[r][j]
//
// The elements of C are loaded once to registers (COEFFICIENTS = 0), to shared memory (1), or again for each set of rows through the cache (2).
// ROWS rows share each of these loads; UNROLL steps of the sum over m are unrolled.
//
// Registers: 2 P (ROWS COLUMNS + UNROLL (ROWS + COLUMNS)), with COEFFICIENTS = 0 2 P M COLUMNS more, and about 30 more.
//
// Constants: M, N, P (parts of an element: 1 real, 2 complex), THREADS, BLOCKS (resident per multiprocessor), and those above.
using i64 = long long;
#ifndef DYNAMIC_SHARED  // the emulator has its own
#define DYNAMIC_SHARED(NAME, ALIGNMENT) extern __shared__ __align__(ALIGNMENT) char NAME[]
#endif

constexpr int COLUMNS = (N + SPREAD - 1) / SPREAD, GROUPS = THREADS / SPREAD;
static_assert(THREADS % SPREAD == 0, "a block takes whole rows");

struct alignas(8 * P) Number {
    double part[P];
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
tsmm(const Number* __restrict__ A, const Number* __restrict__ C, Number* __restrict__ B, i64 K) {
    DYNAMIC_SHARED(shared, 16);
    Number* copy = reinterpret_cast<Number*>(shared);
    const int share = threadIdx.x % SPREAD, group = threadIdx.x / SPREAD;
    const auto column = [&](int j) { return j * SPREAD + share; };
    const auto has = [&](int j) { return (j + 1) * SPREAD <= N || column(j) < N; };

    Number held[COEFFICIENTS == 0 ? M : 1][COLUMNS];
    if constexpr (COEFFICIENTS == 0) {
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) held[m][j] = has(j) ? C[m * N + column(j)] : Number{};
    } else if constexpr (COEFFICIENTS == 1) {
        for (int element = threadIdx.x; element < M * N; element += THREADS) copy[element] = C[element];
        __syncthreads();
    }

    const i64 chunks = (K + GROUPS * ROWS - 1) / (GROUPS * ROWS);
#pragma unroll 1
    for (i64 chunk = blockIdx.x; chunk < chunks; chunk += gridDim.x) {
        const i64 first = chunk * (GROUPS * ROWS) + group;
        const Number* row[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) row[r] = A + (first + r * GROUPS < K ? first + r * GROUPS : K - 1) * M;
        double sum[ROWS][COLUMNS][P] = {};
#pragma unroll UNROLL
        for (int m = 0; m < M; ++m) {
            Number a[ROWS], c[COLUMNS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) a[r] = row[r][m];
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                if constexpr (COEFFICIENTS == 0)
                    c[j] = held[m][j];
                else
                    c[j] = has(j) ? (COEFFICIENTS == 1 ? copy : C)[m * N + column(j)] : Number{};
            }
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) {
                    double* s = sum[r][j];
                    s[0] += a[r].part[0] * c[j].part[0];
                    if (P == 2) {
                        s[0] -= a[r].part[P - 1] * c[j].part[P - 1];
                        s[P - 1] += a[r].part[0] * c[j].part[P - 1];
                        s[P - 1] += a[r].part[P - 1] * c[j].part[0];
                    }
                }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            if (first + r * GROUPS < K)
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j)
                    if (has(j)) {
                        Number out;
#pragma unroll
                        for (int part = 0; part < P; ++part) out.part[part] = sum[r][j][part];
                        B[(first + r * GROUPS) * N + column(j)] = out;
                    }
    }
}
