// out = value (K x M, row-major), for elements with up to two parts.
//
//   for each part of an element (assigned to the threads in turn): out[row * ld + part] = part is odd ? odd : even
//
// Of complex elements `even` is the real part and `odd` the imaginary one; of real elements both are the value.
//
// Types:   Real.
// Config:  THREADS.
#include "common/element.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL(Real* out, i64 ld, i64 width, i64 count, double even, double odd) {
    const i64 stride = static_cast<i64>(gridDim.x) * THREADS;
    for (i64 i = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x; i < count; i += stride) {
        const i64 row = i / width, part = i - row * width;
        out[row * ld + part] = static_cast<Real>(part & 1 ? odd : even);
    }
}
