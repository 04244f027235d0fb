// Measures the bandwidth of memory for streams of 16-byte accesses, UNROLL of them in flight per thread.
//
// Problem: KIND: 0 read source, 1 write target, 2 scale: target = 1.5 source. Config: THREADS, UNROLL.
#include "common/element.cuh"

using Unit = Pack<double, 2, true>;

// COUNT units, `stride` apart; returns the sum of the numbers read.
template <int COUNT>
__device__ __forceinline__ double move(const Unit* source, Unit* target, i64 stride) {
    Unit values[COUNT];
    double sum = 0;
#pragma unroll
    for (int u = 0; u < COUNT; ++u)
        if constexpr (KIND != 1) values[u] = source[u * stride];
#pragma unroll
    for (int u = 0; u < COUNT; ++u) {
        if constexpr (KIND == 0)
            sum += values[u].at[0] + values[u].at[1];
        else if constexpr (KIND == 1)
            target[u * stride] = {{1.0, 1.0}};
        else
            target[u * stride] = {{1.5 * values[u].at[0], 1.5 * values[u].at[1]}};
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL(const Unit* source, i64 units, Unit* target) {
    const i64 stride = static_cast<i64>(gridDim.x) * THREADS;
    i64 unit = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    double sum = 0;
    for (; unit + (UNROLL - 1) * stride < units; unit += UNROLL * stride) sum += move<UNROLL>(source + unit, target + unit, stride);
    for (; unit < units; unit += stride) sum += move<1>(source + unit, target + unit, stride);
    if (sum == 1.2345678) target->at[0] = sum;  // never true for the data of the probe; keeps the loads alive
}
