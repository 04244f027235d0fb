// Reads rows of M elements and reads or writes rows of N, element by element in their order, UNROLL rows of each in flight per
// thread. Measures the bandwidth for rows of pitches lda and ldb, which bounds that of a product of such views.
//
// Problem: SIZE of an element in bytes; M, N; READS_B, WRITES_B. Config: THREADS, UNROLL; PREFETCH_ENDS: sectors that rows of B fill in part are
// requested with the loads (row_ends.cuh).
// It follows common/row_ends.cuh.

struct alignas(SIZE) Element {
    unsigned word[SIZE / 4];
};

constexpr int LANES = M > N ? M : N;

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL(const Element* A, i64 lda, Element* B, i64 ldb, i64 K) {
    const i64 count = K * LANES, stride = static_cast<i64>(gridDim.x) * THREADS;
    unsigned sum = 0;
    for (i64 first = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x; first < count; first += UNROLL * stride) {
        Element a[UNROLL] = {}, b[UNROLL] = {};
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const i64 k = first + u * stride, row = k / LANES;
            const int column = static_cast<int>(k % LANES);
            if (k < count && column < M) a[u] = A[row * lda + column];
            if (READS_B && k < count && column < N) b[u] = B[row * ldb + column];
            if constexpr (PREFETCH_ENDS) {
                const char* const own = reinterpret_cast<const char*>(B + row * ldb + column);
                if (k < count && column == 0) prefetch_end(own);
                if (k < count && column == N - 1) prefetch_end(own + SIZE);
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const i64 k = first + u * stride, row = k / LANES;
            const int column = static_cast<int>(k % LANES);
            a[u].word[0] ^= b[u].word[0];
            if (WRITES_B && k < count && column < N) B[row * ldb + column] = a[u];
            sum ^= a[u].word[SIZE / 4 - 1] + b[u].word[SIZE / 4 - 1];  // not ^, which would cancel b
        }
    }
    if (!WRITES_B && sum == 0x12345678u && K < 0) B[0].word[0] = sum;  // never true; keeps the loads alive
}
