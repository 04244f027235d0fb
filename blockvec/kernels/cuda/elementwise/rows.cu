// A function of rows of numbers, one per column of a block: y_0, y_1, ... = f(x_0, x_1, ...), element by element.
//
//   for each column j (one per thread)
//     read x_0[j], x_1[j], ...; compute in double precision; write y_0[j], y_1[j], ...
//
// Rows may have gaps (the real parts of complex numbers), and a y may be an x: a thread reads all its numbers before it writes.
//
// Texts:   PARAMETERS: pointer and distance of the elements of each row; COMPUTE: the function, as statements.
// Config:  THREADS.
#include "common/element.cuh"

// The larger number, or NaN if one of them is.
__device__ __forceinline__ double maximum(double a, double b) { return a >= b || a != a ? a : b; }

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL(i64 count, PARAMETERS) {
    const i64 j = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;
    if (j >= count) return;
    COMPUTE
}
