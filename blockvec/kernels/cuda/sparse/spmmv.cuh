// Shared by the SpMMV kernels: Y = alpha (S - shift I) X + beta Y, then Z = delta Z + eta Y, for a lane that has some columns of a row.
//
// LANES neighbouring lanes hold the columns of a row, VECTORS packs of VECTOR columns each; lane l owns packs l, l + LANES, ...
// Together they cover a tile of TILE columns.
//
// Types:   SReal, XReal, YReal: of the parts of elements of S, X and Y, complex under S_COMPLEX, X_COMPLEX or either; Index: of S's columns.
// Problem: WIDTH; CODED: see column_of; ALPHA_ONE; BETA_ZERO (Y is not read), BETA_ONE; SHIFT: 0 none, 1 one for all columns, 2 one per column;
//          CHAIN: 0 no Z, 1 Z = delta Z + eta Y, 2 Z = eta Y (Z is not read);
//          DOTS: sums over the rows in each column, 1 of |x|^2, 2 of conj(x) y, 4 of |y|^2, or several; GRAM: see spmmv_gram.cuh;
//          Z and the sums take rows from fused_begin up to fused_end;
//          X_ALIGNED, Y_ALIGNED: packs of X, of Y and Z start at multiples of their size.
// Config:  LANES, VECTORS, VECTOR.
#pragma once
#include "common/stream.cuh"

using S = ElementOf<S_COMPLEX, SReal>;
using X = ElementOf<X_COMPLEX, XReal>;
using Y = ElementOf<S_COMPLEX || X_COMPLEX, YReal>;
using Entry = Index;  // a column, or CODED
using PackX = StreamPack<X, VECTOR, X_ALIGNED>;
using PackY = StreamPack<Y, VECTOR, Y_ALIGNED>;
using Factor = Complex<double>;

constexpr int STRIDE = LANES * VECTOR;  // columns between the packs of a lane
constexpr int TILE = STRIDE * VECTORS;
constexpr int TILES = (WIDTH + TILE - 1) / TILE;
static_assert(WIDTH % VECTOR == 0, "whole packs");

// Of CODED matrices, an entry is its column and, from bit CODE_BIT on, the place of its value in a table. The sign bit is not used.
constexpr int CODE_BIT = 24, MAX_VALUES = 1 << 31 - CODE_BIT;

__device__ __forceinline__ Index column_of(Entry entry) {
    if constexpr (CODED)
        return entry & (1 << CODE_BIT) - 1;
    else
        return entry;
}

// From a table in global memory, which stays in L1.
__device__ __forceinline__ S coded_value(const S* table, Entry entry) { return load_constant(table + (entry >> CODE_BIT)); }

// y + s x, in fused operations; s and x may be narrower than y.
template <class T, class A, class B>
__device__ __forceinline__ T multiply_add(T y, A s, B x) {
    using R = typename Kind<T>::Real;
    const auto a = convert<ElementOf<IS_COMPLEX<A>, R>>(s);
    const auto b = convert<ElementOf<IS_COMPLEX<B>, R>>(x);
    if constexpr (IS_COMPLEX<A> && IS_COMPLEX<B>)
        return {y.re + a.re * b.re - a.im * b.im, y.im + a.re * b.im + a.im * b.re};
    else
        return add(y, multiply(a, b));
}

// A factor times y; a real factor multiplies the parts of y alike.
template <class T>
__device__ __forceinline__ T scale(T factor, T y) {
    if constexpr (IS_COMPLEX<T>)
        return factor.im == 0 ? multiply(factor.re, y) : multiply(factor, y);
    else
        return factor * y;
}

template <class T>
__device__ __forceinline__ T negate(T y) {
    if constexpr (IS_COMPLEX<T>)
        return {-y.re, -y.im};
    else
        return -y;
}

template <class T>
__device__ __forceinline__ T factor_of(Complex<double> factor) {
    if constexpr (IS_COMPLEX<T>)
        return convert<T>(factor);
    else
        return static_cast<T>(factor.re);
}

template <class T>
__device__ __forceinline__ T shuffle_down(T y, int lanes) {
    if constexpr (IS_COMPLEX<T>)
        return {__shfl_down_sync(0xffffffffu, y.re, lanes), __shfl_down_sync(0xffffffffu, y.im, lanes)};
    else
        return __shfl_down_sync(0xffffffffu, y, lanes);
}

template <class T>
__device__ __forceinline__ T shuffle(T y, int from) {
    return __shfl_sync(0xffffffffu, y, from);
}

// Sums of a row in the columns of a lane.
struct Sums {
    Y at[VECTORS][VECTOR] = {};
};

constexpr bool NEEDS_X = SHIFT != 0 || (DOTS & 3) != 0;
constexpr int DOT_KINDS = (DOTS & 1) + (DOTS >> 1 & 1) + (DOTS >> 2 & 1);
using Dot = ElementOf<IS_COMPLEX<Y>, double>;

// conj(x) x
template <class T>
__device__ __forceinline__ Dot square(T x) {
    const auto a = convert<ElementOf<IS_COMPLEX<T>, double>>(x);
    if constexpr (IS_COMPLEX<T>)
        return convert<Dot>(a.re * a.re + a.im * a.im);
    else
        return convert<Dot>(a * a);
}

// The sums of a lane over its rows.
struct Dots {
    Dot at[DOT_KINDS > 0 ? DOT_KINDS : 1][VECTORS][VECTOR] = {};

    __device__ __forceinline__ void take(int v, int i, X x, Y y) {
        int kind = 0;
        if constexpr ((DOTS & 1) != 0) at[kind][v][i] = add(at[kind][v][i], square(x)), ++kind;
        if constexpr ((DOTS & 2) != 0)
            at[kind][v][i] = multiply_add(at[kind][v][i], conjugate(convert<ElementOf<IS_COMPLEX<X>, double>>(x)), convert<Dot>(y)), ++kind;
        if constexpr ((DOTS & 4) != 0) at[kind][v][i] = add(at[kind][v][i], square(y));
    }
};

// X, Y and Z from the first column of a lane on.
struct Lane {
    const char* x;
    u32 x_pitch;  // bytes; 32 bits, so that an address takes one multiplication
    char* y;
    i64 y_pitch;
    char* z;
    i64 z_pitch;
    int column;
    Factor alpha, beta, shift, delta, eta;
    const Y* shifts;
    i64 fused_begin, fused_end;

    __device__ __forceinline__ bool fuses(i64 row) const { return row >= fused_begin && row < fused_end; }

    __device__ __forceinline__ bool has(int pack) const { return WIDTH % TILE == 0 || column + pack * STRIDE < WIDTH; }

    __device__ __forceinline__ const char* x_row(Index row) const { return row_address(x, row, x_pitch); }

    static __device__ __forceinline__ const char* x_at(const char* row, int pack) {
        return row + pack * (STRIDE * static_cast<int>(sizeof(X)));
    }

    // The rows of Y and Z that the results take besides the sums, loaded early. That of X was most likely gathered for the diagonal: it
    // comes from L1 when it is needed, and takes no registers before.
    struct Own {
        PackY y[VECTORS], z[VECTORS];
    };

    __device__ __forceinline__ char* y_at(i64 row, int pack) const {
        return y + row * y_pitch + pack * (STRIDE * static_cast<int>(sizeof(Y)));
    }

    __device__ __forceinline__ char* z_at(i64 row, int pack) const {
        return z + row * z_pitch + pack * (STRIDE * static_cast<int>(sizeof(Y)));
    }

    __device__ __forceinline__ void load(Own& own, Index row) const {
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (has(v)) {
                if constexpr (!BETA_ZERO) own.y[v].load(y_at(row, v));
                if constexpr (CHAIN == 1) own.z[v].load(z_at(row, v));
            }
    }

    __device__ __forceinline__ Y shift_of(int at) const {
        if constexpr (SHIFT == 2)
            return load_constant(shifts + at);
        else
            return factor_of<Y>(shift);
    }

    // Turns sums into the row of Y, and stores it.
    __device__ __forceinline__ void finish(i64 row, Sums& sums, const Own& own, Dots& dots) const {
        PackX x[VECTORS];
        const bool fused = (DOTS != 0 || CHAIN != 0) && fuses(row);
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
            if (NEEDS_X && has(v)) x[v].load_constant(x_at(x_row(row), v), true);
#pragma unroll
        for (int v = 0; v < VECTORS; ++v) {
            if (!has(v)) continue;
            PackY result, chained;
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) {
                Y y = sums.at[v][i];
                if constexpr (SHIFT != 0) {
                    y = add(y, negate(scale(shift_of(column + v * STRIDE + i), convert<Y>(x[v].at[i]))));
                }
                if constexpr (!ALPHA_ONE) y = scale(factor_of<Y>(alpha), y);
                if constexpr (BETA_ONE) y = add(y, own.y[v].at[i]);
                if constexpr (!BETA_ZERO && !BETA_ONE) y = add(y, scale(factor_of<Y>(beta), own.y[v].at[i]));
                result.at[i] = sums.at[v][i] = y;
                if constexpr (DOTS != 0)
                    if (fused) dots.take(v, i, x[v].at[i], y);
                if constexpr (CHAIN != 0) chained.at[i] = scale(factor_of<Y>(eta), y);
                if constexpr (CHAIN == 1) chained.at[i] = add(chained.at[i], scale(factor_of<Y>(delta), own.z[v].at[i]));
            }
            result.template store<true>(y_at(row, v));
            if constexpr (CHAIN != 0)
                if (fused) chained.template store<true>(z_at(row, v));
        }
    }
};

__device__ __forceinline__ Lane lane_of(const X* x, i64 ldx, Y* y, i64 ldy, Y* z, i64 ldz, Factor alpha, Factor beta, Factor shift,
                                        Factor delta, Factor eta, const Y* shifts, i64 fused_begin, i64 fused_end, int tile, int lane) {
    const int column = tile * TILE + lane * VECTOR;
    constexpr i64 SIZE = sizeof(Y);
    return {reinterpret_cast<const char*>(x + column), static_cast<u32>(ldx * sizeof(X)), reinterpret_cast<char*>(y + column), ldy * SIZE,
            reinterpret_cast<char*>(z + column), ldz * SIZE, column, alpha, beta, shift, delta, eta, shifts,
            fused_begin, fused_end};
}
