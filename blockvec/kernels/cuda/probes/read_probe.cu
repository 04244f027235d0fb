// Measures the bandwidth of memory for reads of 16 bytes, UNROLL of them in flight per thread.
//
// Config: THREADS, UNROLL.
#include "common/element.cuh"

using Unit = Pack<double, 2, true>;

// The sum of the numbers of COUNT units, `stride` apart.
template <int COUNT>
__device__ __forceinline__ double read(const Unit* source, i64 stride) {
    Unit values[COUNT];
    double sum = 0;
#pragma unroll
    for (int u = 0; u < COUNT; ++u) values[u] = source[u * stride];
#pragma unroll
    for (int u = 0; u < COUNT; ++u) sum += values[u].at[0] + values[u].at[1];
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL(const Unit* source, i64 units, double* target) {
    const i64 stride = static_cast<i64>(gridDim.x) * THREADS;
    i64 unit = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    double sum = 0;
    for (; unit + (UNROLL - 1) * stride < units; unit += UNROLL * stride) sum += read<UNROLL>(source + unit, stride);
    for (; unit < units; unit += stride) sum += read<1>(source + unit, stride);
    if (sum == 1.2345678) *target = sum;  // never true for the data of the probe; keeps the loads alive
}
