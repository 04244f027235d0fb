// Read-only and write-only streams of 16-byte accesses, UNROLL of them in flight a thread: what the memory system can do.
//
// Problem: WRITES. Config: THREADS, UNROLL.
#include "element.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL(Pack<double, 2, true>* data, i64 units, double* never) {
    const i64 stride = static_cast<i64>(gridDim.x) * THREADS;
    i64 unit = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    double sum = 0;
    for (; unit + (UNROLL - 1) * stride < units; unit += UNROLL * stride) {
        Pack<double, 2, true> values[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if constexpr (WRITES)
                data[unit + u * stride] = {{1.0, 1.0}};
            else
                values[u] = data[unit + u * stride];
        }
        if constexpr (!WRITES)
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) sum += values[u].at[0] + values[u].at[1];
    }
    if (sum == 1.2345678) *never = sum;  // never true for the probe's data, but the compiler cannot know
}
