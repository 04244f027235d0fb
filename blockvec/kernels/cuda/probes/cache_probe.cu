// Measures the bandwidth of L2: reads one buffer repeatedly, bypassing L1, with UNROLL accesses of 16 bytes in flight per thread.
//
// Each multiprocessor reads another part of the buffer in each pass, and so the whole buffer over many passes. Config: THREADS, UNROLL.
#include "common/element.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL(const double2* source, i64 units, int passes, double* target) {
    const i64 stride = static_cast<i64>(gridDim.x) * THREADS;
    double sum = 0;
    for (int pass = 0; pass < passes; ++pass) {
        i64 unit = static_cast<i64>((blockIdx.x + pass) % gridDim.x) * THREADS + threadIdx.x;
        for (; unit + (UNROLL - 1) * stride < units; unit += UNROLL * stride) {
            double2 values[UNROLL];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) values[u] = __ldcg(source + unit + u * stride);
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) sum += values[u].x + values[u].y;
        }
    }
    if (sum == 1.2345678) *target = sum;  // never true for the data of the probe; keeps the loads alive
}
