// partials[block][j] = sum over the rows i of a block of conj(x_ij) y_ij (K x M, row-major), in double precision.
//
//   rows are assigned in turn to the blocks, and within a block to groups of `lanes` threads, one group per row, UNROLL rows in flight
//     thread (group, lane):  sum[v] += conj(x[row][lane VECTOR + v]) y[row][lane VECTOR + v]
//   the groups of a block are added up in shared memory, in a fixed order; fold.cu adds up the blocks
//
// A thread keeps its columns, so a row takes one addition of index arithmetic, and neighbouring threads read neighbouring
// addresses at any width. Rows wider than `lanes` VECTOR columns are cut into tiles, blockIdx.y being the tile.
//
// Before row `cut` of those that are summed, `gap` rows of the block are skipped: both ends of a block take one launch.
//
// Types:   XReal, YReal: types of the parts of elements, which are complex under X_COMPLEX and Y_COMPLEX.
// Problem: SAME: Y is X, read once, and the sums are real; CONJ: of X; ALIGNED: packs are.
// Config:  VECTOR, dividing the width; THREADS: maximum per block; UNROLL.
// Registers: UNROLL (4 to 8), 2 to 4 VECTOR for sums and ~30 more.
#include "common/element.cuh"

using X = ElementOf<X_COMPLEX, XReal>;
using Y = ElementOf<Y_COMPLEX, YReal>;
constexpr bool COMPLEX = !SAME && (X_COMPLEX || Y_COMPLEX);
using Sum = ElementOf<COMPLEX, double>;

template <class S, class T>
__device__ __forceinline__ Sum product(S x, T y) {
    const auto a = convert<ElementOf<IS_COMPLEX<S>, double>>(x);
    if constexpr (SAME && IS_COMPLEX<S>)
        return a.re * a.re + a.im * a.im;
    else if constexpr (SAME)
        return a * a;
    else
        return multiply(CONJ ? conjugate(a) : a, convert<ElementOf<IS_COMPLEX<T>, double>>(y));
}

extern "C" __global__ void __launch_bounds__(THREADS, 4)
    KERNEL(const X* x, i64 ldx, const Y* y, i64 ldy, i64 rows, i64 cut, i64 gap, i64 width, int lanes, int groups,
           Sum* partials) {
    SHARED_ARRAY(Sum, scratch, [THREADS * VECTOR]);
    const int group = threadIdx.x / lanes, lane = threadIdx.x % lanes;
    const i64 col = (static_cast<i64>(blockIdx.y) * lanes + lane) * VECTOR;
    const bool busy = group < groups && col < width;
    const i64 stride = static_cast<i64>(gridDim.x) * groups;

    Sum sums[VECTOR] = {};
    const auto sweep = [&](i64 row, auto count) {
        constexpr int ROWS = decltype(count)::VALUE;
        Pack<X, VECTOR, ALIGNED> xs[ROWS];
        Pack<Y, VECTOR, ALIGNED> ys[ROWS];
#pragma unroll
        for (int u = 0; u < ROWS; ++u) {
            const i64 summed = row + u * stride;
            const i64 at = summed < cut ? summed : summed + gap;
            xs[u] = *reinterpret_cast<const Pack<X, VECTOR, ALIGNED>*>(x + at * ldx + col);
            if constexpr (!SAME) ys[u] = *reinterpret_cast<const Pack<Y, VECTOR, ALIGNED>*>(y + at * ldy + col);
        }
#pragma unroll
        for (int u = 0; u < ROWS; ++u)
#pragma unroll
            for (int v = 0; v < VECTOR; ++v) sums[v] = add(sums[v], product(xs[u].at[v], ys[u].at[v]));
    };
    if (busy) {
        i64 row = static_cast<i64>(blockIdx.x) * groups + group;
        for (; row + (UNROLL - 1) * stride < rows; row += UNROLL * stride) sweep(row, Count<UNROLL>{});
        for (; row < rows; row += stride) sweep(row, Count<1>{});
    }

    const int row_sums = lanes * VECTOR;  // columns of the tile
    const int own = group * row_sums + lane * VECTOR;
    if (group < groups)
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) scratch[own + v] = sums[v];
    __syncthreads();
    for (int left = groups; left > 1;) {
        const int half = (left + 1) / 2;
        if (group < left - half)
#pragma unroll
            for (int v = 0; v < VECTOR; ++v) scratch[own + v] = add(scratch[own + v], scratch[own + v + half * row_sums]);
        __syncthreads();
        left = half;
    }
    if (group == 0 && busy)
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) partials[static_cast<i64>(blockIdx.x) * width + col + v] = scratch[lane * VECTOR + v];
}
