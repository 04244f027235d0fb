// Streams of 16-byte accesses, UNROLL of them in flight a thread: what the memory system can do.
//
// Problem: KIND: 0 read source, 1 write target, 2 scale: target = 1.5 source. Config: THREADS, UNROLL.
#include "element.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    KERNEL(const Pack<double, 2, true>* source, i64 units, Pack<double, 2, true>* target) {
    const i64 stride = static_cast<i64>(gridDim.x) * THREADS;
    i64 unit = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    double sum = 0;
    for (; unit + (UNROLL - 1) * stride < units; unit += UNROLL * stride) {
        Pack<double, 2, true> values[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if constexpr (KIND != 1) values[u] = source[unit + u * stride];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            if constexpr (KIND == 0)
                sum += values[u].at[0] + values[u].at[1];
            else if constexpr (KIND == 1)
                target[unit + u * stride] = {{1.0, 1.0}};
            else
                target[unit + u * stride] = {{1.5 * values[u].at[0], 1.5 * values[u].at[1]}};
        }
    }
    if (sum == 1.2345678) target->at[0] = sum;  // never true for the probe's data, but the compiler cannot know
}
