// Column dots and Gram matrices of an SpMMV from the partial sums of its blocks, in a fixed order.
//
//   for each sum (LANES neighbouring ones per block, with THREADS / LANES threads per sum)
//     thread (run, lane):  sum += partials[p][sum]   for p = run, run + RUNS, ...
//     the runs are added up in shared memory as a binary tree
//
// Sums: WIDTH for each kind of dots, then WIDTH x WIDTH for each Gram matrix. Y^H Y has partials on and above the diagonal; those below are
// its conjugates, and the diagonal is real, to the last bit.
//
// Types:   XReal, YReal: of the parts of elements of X and Y; COMPLEX: whether Y is complex. Squares of norms are real.
// Problem: WIDTH; DOTS, GRAM: as in spmmv.cuh and spmmv_gram.cuh.
// Config:  THREADS, LANES.
#include "common/runs.cuh"

using Y = ElementOf<COMPLEX, YReal>;
using Dot = ElementOf<COMPLEX, double>;
constexpr int RUNS = THREADS / LANES;
constexpr int XY = DOTS & 1, YY = XY + (DOTS >> 1 & 1), DOT_SUMS = (YY + (DOTS >> 2 & 1)) * WIDTH;  // kinds come in the order xx, xy, yy
constexpr int GRAM_YY = GRAM & 1, SQUARE = WIDTH * WIDTH, SUMS = DOT_SUMS + (GRAM_YY + (GRAM >> 1)) * SQUARE;

// An element of a Hermitian matrix, given the one on or above the diagonal.
template <class T>
__device__ __forceinline__ T as_hermitian(T sum, int i, int j) {
    if constexpr (IS_COMPLEX<T>) sum.im = i == j ? 0 : i > j ? -sum.im : sum.im;
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL(const Dot* partials, int parts, XReal* xx, Y* xy, YReal* yy, Y* gram_xy, Y* gram_yy) {
    SHARED_ARRAY(Dot, scratch, [THREADS]);
    const int run = threadIdx.x / LANES, lane = threadIdx.x % LANES, element = blockIdx.x * LANES + lane;
    const int kind = element / WIDTH, column = element % WIDTH;  // of dots
    const int place = element - DOT_SUMS, i = place % SQUARE / WIDTH, j = place % WIDTH;  // of a Gram matrix
    const bool is_gram = place >= 0, is_square = is_gram && GRAM_YY * SQUARE <= place, mirrored = is_square && i > j;
    const int from = mirrored ? element + (j - i) * (WIDTH - 1) : element;
    Dot sum{};
    if (element < SUMS) {
#pragma unroll 8
        for (int p = run; p < parts; p += RUNS) sum = add(sum, partials[static_cast<i64>(p) * SUMS + from]);
    }
    sum = add_runs(scratch, sum, RUNS, LANES);
    if (run > 0 || element >= SUMS) return;
    if (is_gram) {
        (is_square ? gram_yy : gram_xy)[i * WIDTH + j] = convert<Y>(is_square ? as_hermitian(sum, i, j) : sum);
        return;
    }
    if ((DOTS & 1) != 0 && kind == 0) xx[column] = static_cast<XReal>(real_part(sum));
    if ((DOTS & 2) != 0 && kind == XY) xy[column] = convert<Y>(sum);
    if ((DOTS & 4) != 0 && kind == YY) yy[column] = static_cast<YReal>(real_part(sum));
}
