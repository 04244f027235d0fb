// out = alpha X + beta Y (K x M, row-major), or alpha X without Y; factors are scalars, or a scalar times one value per column.
//
//   for each unit of VECTOR neighbouring elements (assigned to the threads in turn, UNROLL of them in flight)
//     out[unit] = alpha X[unit] + beta Y[unit]
//
// FLAT: all blocks are contiguous, so they are one long row, the elements after the last whole unit being `tail`. Else units lie
// within rows, `width` being a multiple of VECTOR. A thread's units are a fixed distance apart, so row and column follow by
// adding row_step and col_step, without a division. `out` may be X or Y: a thread reads its elements before it writes them.
//
// Types:   Real: precision of the arithmetic; XReal, YReal, OutReal: types of the parts of elements, which are complex under X_COMPLEX
//          and so on; AlphaReal, BetaReal: of the values per column.
// Problem: HAS_Y; FLAT; ALPHA_COLUMNS, BETA_COLUMNS: whether there are values per column; ALPHA_COMPLEX, BETA_COMPLEX: whether the
//          scalar is, ALPHA_COLUMNS_COMPLEX, BETA_COLUMNS_COMPLEX: whether those are; ALIGNED: packs are.
// Config:  VECTOR; THREADS per block; UNROLL: loads of 16 bytes in flight hide the latency of memory.
// Registers: UNROLL (4 to 8 for elements, 4 for places) and ~30 more.
#include "common/element.cuh"

using X = ElementOf<X_COMPLEX, XReal>;
using Y = ElementOf<Y_COMPLEX, YReal>;
using Out = ElementOf<OUT_COMPLEX, OutReal>;
using Alpha = ElementOf<ALPHA_COMPLEX, double>;
using Beta = ElementOf<BETA_COMPLEX, double>;
using AlphaColumn = ElementOf<ALPHA_COLUMNS_COMPLEX, AlphaReal>;
using BetaColumn = ElementOf<BETA_COLUMNS_COMPLEX, BetaReal>;
constexpr bool COLUMNS = ALPHA_COLUMNS || BETA_COLUMNS;

// The factor of a column: the scalar, times the column's value if there is one.
template <bool HAS_VALUES, class Scalar, class Value>
struct Factor {
    using Type = ElementOf<IS_COMPLEX<Scalar> || (HAS_VALUES && IS_COMPLEX<Value>), Real>;
    Scalar scalar;
    const Value* values;
    int step;  // between the values of neighbouring columns; 0 where one value serves all

    __device__ __forceinline__ Type of(int column) const {
        if constexpr (HAS_VALUES) {
            using Wide = ElementOf<IS_COMPLEX<Value>, double>;
            return convert<Type>(multiply(scalar, convert<Wide>(load_constant(values + column * step))));
        } else {
            return convert<Type>(scalar);
        }
    }
};

using FactorX = Factor<ALPHA_COLUMNS, Alpha, AlphaColumn>;
using FactorY = Factor<BETA_COLUMNS, Beta, BetaColumn>;

template <class T>
__device__ __forceinline__ ElementOf<IS_COMPLEX<T>, Real> widen(T x) {
    return convert<ElementOf<IS_COMPLEX<T>, Real>>(x);
}

__device__ __forceinline__ Out element(const FactorX& alpha, X x, const FactorY& beta, Y y, int column) {
    const auto term = multiply(alpha.of(column), widen(x));
    if constexpr (HAS_Y)
        return convert<Out>(add(term, multiply(beta.of(column), widen(y))));
    else
        return convert<Out>(term);
}

extern "C" __global__ void __launch_bounds__(THREADS, 3)
    KERNEL(const X* x, i64 ldx, const Y* y, i64 ldy, Out* out, i64 ldo, int width, i64 units, int tail, i64 row_step, int col_step,
           Alpha alpha_scalar, const AlphaColumn* alpha_values, int alpha_step, Beta beta_scalar, const BetaColumn* beta_values,
           int beta_step) {
    const FactorX alpha{alpha_scalar, alpha_values, alpha_step};
    const FactorY beta{beta_scalar, beta_values, beta_step};
    const i64 stride = static_cast<i64>(gridDim.x) * THREADS;
    const i64 first = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x;

    i64 row = 0;
    int col = 0;
    if constexpr (!FLAT || COLUMNS) {
        row = first * VECTOR / width;
        col = static_cast<int>(first * VECTOR - row * width);
    }
    const auto sweep = [&](i64 unit, auto count) {
        constexpr int UNITS = decltype(count)::VALUE;
        Pack<X, VECTOR, ALIGNED> xs[UNITS];
        Pack<Y, VECTOR, ALIGNED> ys[UNITS];
        i64 rows[UNITS];
        int cols[UNITS];
#pragma unroll
        for (int u = 0; u < UNITS; ++u) {
            const i64 at = (unit + u * stride) * VECTOR;
            xs[u] = *reinterpret_cast<const Pack<X, VECTOR, ALIGNED>*>(x + (FLAT ? at : row * ldx + col));
            if constexpr (HAS_Y) ys[u] = *reinterpret_cast<const Pack<Y, VECTOR, ALIGNED>*>(y + (FLAT ? at : row * ldy + col));
            rows[u] = row;
            cols[u] = col;
            if constexpr (!FLAT || COLUMNS) {
                row += row_step;
                col += col_step;
                if (col >= width) {
                    col -= width;
                    ++row;
                }
            }
        }
#pragma unroll
        for (int u = 0; u < UNITS; ++u) {
            const i64 at = (unit + u * stride) * VECTOR;
            Pack<Out, VECTOR, ALIGNED> result;
            int column = cols[u];
#pragma unroll
            for (int v = 0; v < VECTOR; ++v) {
                result.at[v] = element(alpha, xs[u].at[v], beta, HAS_Y ? ys[u].at[v] : Y{}, column);
                if constexpr (COLUMNS) column = column + 1 == width ? 0 : column + 1;
            }
            *reinterpret_cast<Pack<Out, VECTOR, ALIGNED>*>(out + (FLAT ? at : rows[u] * ldo + cols[u])) = result;
        }
    };
    i64 unit = first;
    for (; unit + (UNROLL - 1) * stride < units; unit += UNROLL * stride) sweep(unit, Count<UNROLL>{});
    for (; unit < units; unit += stride) sweep(unit, Count<1>{});
    if (first < tail) {
        const i64 at = units * VECTOR + first;
        out[at] = element(alpha, x[at], beta, HAS_Y ? y[at] : Y{}, COLUMNS ? static_cast<int>(at % width) : 0);
    }
}
