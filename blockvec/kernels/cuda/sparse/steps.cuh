// Products with a matrix in CSR form between steps of one cooperative launch: loads of rows that other blocks have stored, and grid barriers.
//
// Config: COMPLEX, Real: of an element; B: columns of a block X, whose rows are contiguous and aligned to their size, up to 16 bytes.
#pragma once
#include "common/element.cuh"

using Element = ElementOf<COMPLEX, Real>;

constexpr u32 ALL = 0xffffffffu;

// Loads of what other blocks have stored bypass the first-level cache.
template <class T>
__device__ __forceinline__ T load_stored(const T* p) {
    if constexpr (IS_COMPLEX<T>)
        return {__ldcg(&p->re), __ldcg(&p->im)};
    else
        return __ldcg(p);
}

// Real number i of a row.
template <class T>
__device__ __forceinline__ void set_part(T (&row)[B], int i, Real x) {
    if constexpr (IS_COMPLEX<T>) {
        if (i % 2)
            row[i / 2].im = x;
        else
            row[i / 2].re = x;
    } else {
        row[i] = x;
    }
}

// A row of a block, in loads of 16 bytes, or 8 where that is all of it.
__device__ __forceinline__ void load_row(const Element* p, Element (&row)[B]) {
    constexpr int REALS = COMPLEX ? 2 * B : B;
    if constexpr (sizeof(Real) == 8 && REALS % 2 == 0) {
#pragma unroll
        for (int i = 0; i < REALS; i += 2) {
            const double2 pair = __ldcg(reinterpret_cast<const double2*>(p) + i / 2);
            set_part(row, i, pair.x);
            set_part(row, i + 1, pair.y);
        }
    } else if constexpr (sizeof(Real) == 4 && REALS % 4 == 0) {
#pragma unroll
        for (int i = 0; i < REALS; i += 4) {
            const float4 four = __ldcg(reinterpret_cast<const float4*>(p) + i / 4);
            set_part(row, i, four.x);
            set_part(row, i + 1, four.y);
            set_part(row, i + 2, four.z);
            set_part(row, i + 3, four.w);
        }
    } else if constexpr (sizeof(Real) == 4 && REALS % 2 == 0) {
#pragma unroll
        for (int i = 0; i < REALS; i += 2) {
            const float2 pair = __ldcg(reinterpret_cast<const float2*>(p) + i / 2);
            set_part(row, i, pair.x);
            set_part(row, i + 1, pair.y);
        }
    } else {
#pragma unroll
        for (int q = 0; q < B; ++q) row[q] = load_stored(p + q);
    }
}

template <class T>
__device__ __forceinline__ T exchanged(T x, int mask) {
    if constexpr (IS_COMPLEX<T>)
        return {__shfl_xor_sync(ALL, x.re, mask), __shfl_xor_sync(ALL, x.im, mask)};
    else
        return __shfl_xor_sync(ALL, x, mask);
}

// The sum over groups of so many lanes, in all of them.
template <class T>
__device__ __forceinline__ T summed(T x, int lanes = 32) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
        if (mask < lanes) x = add(x, exchanged(x, mask));
    return x;
}

// Adds the product of every `stride`-th entry to y, with factor(q) times column q of X.
template <class Factor>
__device__ __forceinline__ void add_entries(const int* columns, const Element* entries, const Element* X, i64 at, i64 until, int stride,
                                            Element (&y)[B], Factor factor) {
#pragma unroll 4
    for (; at < until; at += stride) {
        const Element a = entries[at];
        Element x[B];
        load_row(X + static_cast<i64>(columns[at]) * B, x);
#pragma unroll
        for (int q = 0; q < B; ++q) y[q] = add(y[q], multiply(a, multiply(x[q], factor(q))));
    }
}

// Barriers of a grid whose blocks run at the same time, by the first two counters of a workspace: `GridHeader` in common/reduce.cuh.
struct Grid {
    u32* arrived;
    u32 target = 0;

    __device__ __forceinline__ void barrier() {
        __syncthreads();
        target += gridDim.x;
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(arrived, 1u);
            while (load_acquire(arrived) < target) {}
            __threadfence();
        }
        __syncthreads();
    }

    // Sets both counters to zero again, once no block waits at a barrier any more.
    __device__ __forceinline__ void reset() {
        if (threadIdx.x == 0 && atomicAdd(arrived + 1, 1u) == gridDim.x - 1) arrived[0] = arrived[1] = 0;
    }
};
