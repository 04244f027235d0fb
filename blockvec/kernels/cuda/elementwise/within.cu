// Sets `outside` to 1 if one of `count` integers is negative or not below a bound or, if `ascends`, the first is not 0 or one is less than the
// one before it.
//
// Types:   Index.
// Config:  THREADS.
#include "common/element.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL(const Index* values, i64 count, i64 bound, int ascends, int* outside) {
    const i64 stride = static_cast<i64>(gridDim.x) * THREADS;
    bool is_outside = false;
    for (i64 i = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x; i < count; i += stride) {
        const i64 value = values[i];
        is_outside |= value < 0 || value >= bound;
        if (ascends) is_outside |= i == 0 ? value != 0 : value < values[i - 1];
    }
    if (is_outside) *outside = 1;
}
