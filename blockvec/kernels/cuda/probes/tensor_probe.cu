// Measures the rate of FP64 tensor products on registers.
//
// Config: THREADS; ACCUMULATORS: independent products of a warp.
#include "common/mma.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL(double* never, int repeats) {
    // Values that differ between lanes, as in real data: constant operands would draw less power, and the clock would rise.
    const double top[1] = {1.0 / (threadIdx.x + 3)}, bottom[1] = {1.0 / (threadIdx.x + 7)}, b[1] = {1.0 / (threadIdx.x + 11)};
    double upper[ACCUMULATORS][2] = {}, lower[ACCUMULATORS][2] = {};
#pragma unroll 1
    for (int i = 0; i < repeats; ++i)
#pragma unroll
        for (int a = 0; a < ACCUMULATORS; ++a) mma_m16n8(upper[a], lower[a], top, bottom, b);
    double sum = 0;
#pragma unroll
    for (int a = 0; a < ACCUMULATORS; ++a) sum += upper[a][0] + upper[a][1] + lower[a][0] + lower[a][1];
    if (sum == 1.2345678) *never = sum;  // never true; keeps the products alive
}
