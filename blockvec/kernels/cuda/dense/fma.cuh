// Register tiles for products by ordinary multiply-adds: the part of a tall operand that one thread loads, and the arithmetic on it.
//
// An element is PARTS real numbers of type R, (re, im) if complex, and everything is counted in those. VECTOR is the number of bytes per load:
// it may be less than an element (a complex64 block that starts at an odd float) or more.
#pragma once
#include "common/ptx.cuh"

template <class R, int COUNT>
struct alignas(COUNT * sizeof(R)) Reals {
    R at[COUNT];
};

__device__ __forceinline__ float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ double multiply_add(double a, double b, double c) { return __fma_rn(a, b, c); }

// c += a b, or conj(a) b. Two multiply-adds for a real and a complex factor, never a complex zero part.
template <bool CONJ, class R, int PA, int PB, int PC>
__device__ __forceinline__ void accumulate(R (&c)[PC], const R (&a)[PA], const R (&b)[PB]) {
    static_assert(PC == (PA > PB ? PA : PB), "as the product");
    c[0] = multiply_add(a[0], b[0], c[0]);
    if constexpr (PA == 2 && PB == 2) c[0] = multiply_add(CONJ ? a[1] : -a[1], b[1], c[0]);
    if constexpr (PB == 2) c[1] = multiply_add(a[0], b[1], c[1]);
    if constexpr (PA == 2) c[1] = multiply_add(CONJ ? -a[1] : a[1], b[0], c[1]);
}

// The columns of one thread, TILE of them, where TILES threads share a row. Blocked: neighbours in memory. INTERLEAVED: UNIT columns
// at a time in turn, so that neighbouring threads read neighbouring addresses.
template <int TILE, int TILES, int UNIT, bool INTERLEAVED>
struct Columns {
    static_assert(TILES == 1 || TILE % UNIT == 0, "whole units");

    static __device__ __forceinline__ int at(int tile, int i) {
        return TILES == 1 || !INTERLEAVED ? tile * TILE + i : (i / UNIT * TILES + tile) * UNIT + i % UNIT;
    }
};

// One thread's columns of COUNT consecutive rows, as stored.
template <class R, int PARTS, int WIDTH, int TILE, int TILES, int COUNT, int VECTOR, bool INTERLEAVED, bool LINEAR>
struct Fragment {
    static constexpr int LOAD = VECTOR / static_cast<int>(sizeof(R));  // reals
    static constexpr int ROW = WIDTH * PARTS;
    static constexpr bool WHOLE = TILES == 1 && LINEAR;  // all columns of contiguous rows: vectors may straddle rows
    static constexpr int UNIT = LOAD > PARTS ? LOAD / PARTS : 1;  // columns of a vector
    using Deal = Columns<TILE, TILES, UNIT, INTERLEAVED>;
    using Vector = Reals<R, LOAD>;
    static_assert(!WHOLE || (TILE == WIDTH && COUNT * ROW % LOAD == 0), "whole vectors");

    R part[COUNT][TILE][PARTS];

    __device__ __forceinline__ R& real(int row, int i) { return part[row][i / PARTS][i % PARTS]; }

    // From rows that all exist, `pitch` bytes apart. With CHECK columns past the width are not touched (VECTOR divides the row); without,
    // the bytes behind the row are read in their place.
    template <bool CHECK>
    __device__ __forceinline__ void load(const char* rows, i64 pitch, int tile) {
        if constexpr (WHOLE) {
#pragma unroll
            for (int i = 0; i < COUNT * ROW; i += LOAD) {
                const Vector v = *reinterpret_cast<const Vector*>(rows + i * sizeof(R));
#pragma unroll
                for (int k = 0; k < LOAD; ++k) real((i + k) / ROW, (i + k) % ROW) = v.at[k];
            }
        } else {
#pragma unroll
            for (int row = 0; row < COUNT; ++row)
#pragma unroll
                for (int i = 0; i < TILE * PARTS; i += LOAD) {
                    const int column = Deal::at(tile, i / PARTS);
                    Vector v = {};
                    if (!CHECK || TILE * TILES == WIDTH || column < WIDTH)
                        v = *reinterpret_cast<const Vector*>(rows + row * pitch + (column * PARTS + i % PARTS) * static_cast<int>(sizeof(R)));
#pragma unroll
                    for (int k = 0; k < LOAD; ++k)
                        if (i + k < TILE * PARTS) real(row, i + k) = v.at[k];
                }
        }
    }

    // To rows that all exist; columns past the width are not touched (VECTOR divides the pitch).
    __device__ __forceinline__ void store(char* rows, i64 pitch, int tile) {
        if constexpr (WHOLE) {
#pragma unroll
            for (int i = 0; i < COUNT * ROW; i += LOAD) {
                Vector v;
#pragma unroll
                for (int k = 0; k < LOAD; ++k) v.at[k] = real((i + k) / ROW, (i + k) % ROW);
                *reinterpret_cast<Vector*>(rows + i * sizeof(R)) = v;
            }
        } else {
#pragma unroll
            for (int row = 0; row < COUNT; ++row)
#pragma unroll
                for (int i = 0; i < TILE * PARTS; i += LOAD) {
                    const int column = Deal::at(tile, i / PARTS);
                    Vector v;
#pragma unroll
                    for (int k = 0; k < LOAD; ++k) v.at[k] = i + k < TILE * PARTS ? real(row, i + k) : R(0);
                    if (TILE * TILES == WIDTH || column < WIDTH)
                        *reinterpret_cast<Vector*>(rows + row * pitch + (column * PARTS + i % PARTS) * static_cast<int>(sizeof(R))) = v;
                }
        }
    }
};
