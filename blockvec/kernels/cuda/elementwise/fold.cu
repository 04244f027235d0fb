// C (M x N) = alpha (sum over p of P_p) + beta C for partial products P_p, added up in double precision and in a fixed order.
//
//   for each element (`lanes` neighbouring ones per block, with runs = THREADS / lanes threads per element)
//     thread (run, lane):  sum += P_p[element]   for p = run, run + runs, ...
//   the runs are added up in shared memory as a binary tree
//
// HERMITIAN: elements below the diagonal are the conjugates of those above, and the diagonal is real, to the last bit.
//
// Types:   PartialReal, OutReal: types of the parts of elements, which are complex under PARTIAL_COMPLEX and OUT_COMPLEX.
// Problem: HERMITIAN; BETA_ZERO: C is not read.
// Config:  THREADS.
#include "common/runs.cuh"

using Partial = ElementOf<PARTIAL_COMPLEX, PartialReal>;
using Out = ElementOf<OUT_COMPLEX, OutReal>;
using Sum = ElementOf<PARTIAL_COMPLEX, double>;

// An element of a Hermitian result: real on the diagonal, and the conjugate of its mirror image below it.
template <class S>
__device__ __forceinline__ S as_hermitian(S sum, bool is_diagonal, bool is_mirrored) {
    if constexpr (IS_COMPLEX<S>) {
        if (is_mirrored) sum = conjugate(sum);
        if (is_diagonal) sum.im = 0;
    }
    return sum;
}

// A real factor multiplies both parts, so that an exact product stays exact.
template <class S>
__device__ __forceinline__ auto scaled(S x, Complex<double> factor) -> ElementOf<IS_COMPLEX<Out>, double> {
    if constexpr (IS_COMPLEX<Out>)
        return convert<Complex<double>>(factor.im == 0 ? convert<Complex<double>>(multiply(x, factor.re)) : multiply(x, factor));
    else
        return multiply(x, factor.re);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    KERNEL(const Partial* partials, i64 parts, i64 part_size, Out* C, i64 ldc, i64 m, i64 n, Complex<double> alpha, Complex<double> beta,
           i64 lanes_of_block) {
    SHARED_ARRAY(Sum, scratch, [THREADS]);
    const int lanes = static_cast<int>(lanes_of_block), runs = THREADS / lanes, run = threadIdx.x / lanes, lane = threadIdx.x % lanes;
    const i64 element = static_cast<i64>(blockIdx.x) * lanes + lane;
    const i64 row = element / n, col = element % n;
    const bool mirrored = HERMITIAN && row > col;
    const i64 i = mirrored ? col : row, j = mirrored ? row : col;

    Sum sum{};
    if (row < m) {
#pragma unroll 4
        for (i64 p = run; p < parts; p += runs) sum = add(sum, convert<Sum>(partials[p * part_size + i * n + j]));
    }
    sum = add_runs(scratch, sum, runs, lanes);
    if (run > 0 || row >= m) return;
    if constexpr (HERMITIAN) sum = as_hermitian(sum, row == col, mirrored);
    Out* out = C + row * ldc + col;
    auto result = scaled(sum, alpha);
    if constexpr (!BETA_ZERO) result = add(result, scaled(convert<ElementOf<OUT_COMPLEX, double>>(*out), beta));
    *out = convert<Out>(result);
}
