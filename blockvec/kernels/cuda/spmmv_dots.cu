// Column dots of an SpMMV from the sums that its blocks left, in a fixed order.
//
//   for each kind of dots (blockIdx.y) and column (LANES neighbouring ones to a block, which has THREADS / LANES threads a column)
//     thread (run, lane):  sum += partials[p][kind][column]   for p = run, run + RUNS, ...
//     the runs are added up in shared memory as a binary tree
//
// Types:   XReal, YReal: of the parts of elements of X and Y; COMPLEX: whether Y is complex. Squares of norms are real.
// Problem: WIDTH; DOTS: as in spmmv.cuh.
// Config:  THREADS, LANES.
#include "element.cuh"

using Y = ElementOf<COMPLEX, YReal>;
using Dot = ElementOf<COMPLEX, double>;
constexpr int RUNS = THREADS / LANES;
constexpr int XY = DOTS & 1, YY = XY + (DOTS >> 1 & 1), KINDS = YY + (DOTS >> 2 & 1);  // kinds come in the order xx, xy, yy

template <class T>
__device__ __forceinline__ double real_part(T sum) {
    if constexpr (IS_COMPLEX<T>)
        return sum.re;
    else
        return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL(const Dot* partials, int parts, XReal* xx, Y* xy, YReal* yy) {
    __shared__ Dot scratch[THREADS];
    const int run = threadIdx.x / LANES, lane = threadIdx.x % LANES, column = blockIdx.x * LANES + lane;
    Dot sum{};
    if (column < WIDTH) {
#pragma unroll 8
        for (int p = run; p < parts; p += RUNS) sum = add(sum, partials[(static_cast<i64>(p) * KINDS + blockIdx.y) * WIDTH + column]);
    }
    scratch[threadIdx.x] = sum;
    __syncthreads();
#pragma unroll
    for (int half = RUNS / 2; half > 0; half /= 2) {
        if (run < half) scratch[threadIdx.x] = add(scratch[threadIdx.x], scratch[threadIdx.x + half * LANES]);
        __syncthreads();
    }
    if (run > 0 || column >= WIDTH) return;
    sum = scratch[lane];
    if ((DOTS & 1) != 0 && blockIdx.y == 0) xx[column] = static_cast<XReal>(real_part(sum));
    if ((DOTS & 2) != 0 && blockIdx.y == XY) xy[column] = convert<Y>(sum);
    if ((DOTS & 4) != 0 && blockIdx.y == YY) yy[column] = static_cast<YReal>(real_part(sum));
}
