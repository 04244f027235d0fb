// Uniform numbers on [-1, 1) from the counter-based generator Philox4x64-10 (Salmon, Moraes, Dror, Shaw, SC'11), number for number
// those of numpy.random.Philox(key=key): number n is word n % 4 of the block of counter n / 4 + 1.
//
//   for each counter (one per thread)
//     four words w: out[number - offset] = 2 u - 1, u = (w >> 11) 2^-53 in double, the leading 24 bits of w in single precision
//
// Both scalings are exact, so the bits agree with the host's. `out` is row-major with real parts counted as columns.
//
// Types:   Real.
// Config:  THREADS.
#include "common/element.cuh"

__device__ __forceinline__ void philox_round(u64 (&c)[4], u64 key0, u64 key1) {
    constexpr u64 MULTIPLIER0 = 0xD2E7470EE14C6C93ull, MULTIPLIER1 = 0xCA5A826395121157ull;  // of the reference implementation
    const u64 high0 = __umul64hi(MULTIPLIER0, c[0]), low0 = MULTIPLIER0 * c[0];
    const u64 high1 = __umul64hi(MULTIPLIER1, c[2]), low1 = MULTIPLIER1 * c[2];
    c[0] = high1 ^ c[1] ^ key0;
    c[1] = low1;
    c[2] = high0 ^ c[3] ^ key1;
    c[3] = low0;
}

__device__ __forceinline__ Real uniform(u64 word) {
    if constexpr (sizeof(Real) == 8)
        return 2.0 * (static_cast<double>(word >> 11) * 0x1p-53) - 1.0;
    else
        return 2.0f * (static_cast<float>(word >> 40) * 0x1p-24f) - 1.0f;
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL(Real* out, i64 ld, i64 width, i64 count, u64 offset, u64 key0, u64 key1) {
    constexpr u64 WEYL0 = 0x9E3779B97F4A7C15ull, WEYL1 = 0xBB67AE8584CAA73Bull;  // golden ratio, sqrt(3) - 1
    const u64 counter = offset / 4 + static_cast<u64>(blockIdx.x) * THREADS + threadIdx.x;
    u64 c[4] = {counter + 1, 0, 0, 0};
#pragma unroll
    for (int round = 0; round < 10; ++round) philox_round(c, key0 + round * WEYL0, key1 + round * WEYL1);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        const i64 at = static_cast<i64>(4 * counter + w - offset);
        if (at >= 0 && at < count) out[ld == width ? at : at / width * ld + at % width] = uniform(c[w]);
    }
}
