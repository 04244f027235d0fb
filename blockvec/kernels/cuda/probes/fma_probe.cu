// Measures the rate of single precision multiply-adds on registers.
//
// Config: THREADS, ACCUMULATORS: independent chains per thread.
extern "C" __global__ void __launch_bounds__(THREADS) KERNEL(float* never, int repeats) {
    // Two factors that no compiler can fold; chains stay bounded: c <- 0.999 c + x.
    const float factor = 0.999f + 1e-9f * threadIdx.x, x = 1e-3f * threadIdx.x;
    float c[ACCUMULATORS];
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; ++i) c[i] = x + i;
    for (int r = 0; r < repeats; ++r)
#pragma unroll
        for (int i = 0; i < ACCUMULATORS; ++i) c[i] = __fmaf_rn(factor, c[i], x);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < ACCUMULATORS; ++i) sum += c[i];
    if (sum == 1.2345678f) *never = sum;
}
