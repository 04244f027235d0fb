// Gram matrices X^H Y and Y^H Y in the pass over a sparse matrix: FP64 tensor-core products of the rows that a warp has just completed.
//
// A warp completes GROUPS = 32 / LANES rows at a time, lane l holding some columns of row l / LANES. A fragment (mma.cuh) wants the rows along
// t = l % 4 and the columns along g = l / 4. So every element moves to
//
//   lane (g, t) <- row 4 (g / LANES) + t, lane g % LANES of that row
//
// and all GROUPS rows fit in one fragment an element of a lane, COPIES = 8 / LANES sets of four rows side by side. The product of two
// fragments has the wanted products of a set with itself on COPIES diagonal blocks, which are added up at the end; what the others hold is
// dropped. With eight lanes a row nothing is dropped and a lane has the fewest tiles, ELEMENTS^2 (ELEMENTS + 1) ELEMENTS / 2 of them.
//
// Problem: GRAM: 1 X^H Y, 2 Y^H Y, 3 both. One tile of columns, 2, 4 or 8 lanes a row, SPLIT = 1.
// Registers: 4 a tile and part (re, im) of X^H Y, and of the half of Y^H Y.
#pragma once
#include "mma.cuh"
#include "spmmv.cuh"

constexpr int ELEMENTS = GRAM ? VECTORS * VECTOR : 1, COPIES = 8 / LANES;
constexpr int GRAM_XY = GRAM & 1, GRAM_KINDS = GRAM_XY + (GRAM >> 1);
constexpr int PARTS = IS_COMPLEX<Y> ? 2 : 1;
static_assert(GRAM == 0 || (LANES * COPIES == 8 && LANES > 1 && SPLIT == 1 && TILES == 1), "whole rows fill fragments");
constexpr int SQUARE = WIDTH * WIDTH, GRAM_SUMS = GRAM_KINDS * SQUARE;

struct Tile {
    double at[PARTS][2] = {};
};

struct Parts {
    double re, im;
};

template <class T>
__device__ __forceinline__ Parts parts_of(T x) {
    if constexpr (IS_COMPLEX<T>)
        return {x.re, x.im};
    else
        return {x, 0};
}

template <class T>
__device__ __forceinline__ T element_of(const Parts& x) {
    if constexpr (IS_COMPLEX<T>)
        return {x.re, x.im};
    else
        return x.re;
}

// What a warp has summed up over its rows.
struct Grams {
    Tile xy[ELEMENTS][ELEMENTS], yy[ELEMENTS][ELEMENTS];  // yy: the tiles on and above the diagonal

    // By a whole warp. BUSY: this lane has columns of a row.
    __device__ __forceinline__ void take(const Lane& block, bool busy, const PackX (&x)[VECTORS], const Sums& y, int lane) {
        const int g = lane / 4, from = (g / LANES * 4 + lane % 4) * LANES + g % LANES;
        Parts left[ELEMENTS], right[ELEMENTS];
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) {
                const bool wanted = busy && block.has(v);
                if constexpr (GRAM_XY != 0) left[v * VECTOR + i] = moved<IS_COMPLEX<X>>(x[v].at[i], wanted, from);
                right[v * VECTOR + i] = moved<IS_COMPLEX<Y>>(y.at[v][i], wanted, from);
            }
#pragma unroll
        for (int b = 0; b < ELEMENTS; ++b)
#pragma unroll
            for (int a = 0; a < ELEMENTS; ++a) multiply(xy[a][b], yy[a][b], a <= b, left[a], right[a], right[b]);
    }

    template <bool COMPLEX, class T>
    static __device__ __forceinline__ Parts moved(T x, bool wanted, int from) {
        const Parts parts = parts_of(x);
        Parts taken{shuffle(wanted ? parts.re : 0.0, from), 0.0};
        if constexpr (COMPLEX) taken.im = shuffle(wanted ? parts.im : 0.0, from);
        return taken;
    }

    // conj(x) y and conj(z) y, the latter where it is wanted.
    static __device__ __forceinline__ void multiply(Tile& xy, Tile& zy, bool wanted, const Parts& x, const Parts& z, const Parts& y) {
        accumulate<true>(xy.at[0], zy.at[0], wanted, x.re, z.re, y.re);
        if constexpr (IS_COMPLEX<Y>) {
            accumulate<IS_COMPLEX<X>>(xy.at[0], zy.at[0], wanted, x.im, z.im, y.im);
            accumulate<true>(xy.at[1], zy.at[1], wanted, x.re, z.re, y.im);
            accumulate<IS_COMPLEX<X>>(xy.at[1], zy.at[1], wanted, flip_sign(x.im), flip_sign(z.im), y.re);
        }
    }

    template <bool HAS_X>
    static __device__ __forceinline__ void accumulate(double (&xy)[2], double (&zy)[2], bool wanted, double x, double z, double y) {
        const bool first = GRAM_XY != 0 && HAS_X, second = (GRAM & 2) != 0 && wanted;
        if (first && second) {
            const double top[1] = {x}, bottom[1] = {z}, right[1] = {y};
            mma_m16n8(xy, zy, top, bottom, right);
        } else if (first) {
            mma_m8n8k4(xy, x, y);
        } else if (second) {
            mma_m8n8k4(zy, z, y);
        }
    }

    // Adds the sums of the block's warps up, one after the other. By all threads of a block; `sums` is shared memory.
    __device__ __forceinline__ void add_up(Dot (&sums)[GRAM_SUMS > 0 ? GRAM_SUMS : 1], int warp, int lane) const {
        for (int turn = 0; turn < WARPS; ++turn) {
            __syncthreads();
            if (turn != warp) continue;
#pragma unroll
            for (int a = 0; a < ELEMENTS; ++a)
#pragma unroll
                for (int b = 0; b < ELEMENTS; ++b) {
                    if constexpr (GRAM_XY != 0) add_tile<false>(sums, xy[a][b], a, b, turn == 0, lane);
                    if constexpr ((GRAM & 2) != 0)
                        if (a <= b) add_tile<true>(sums + GRAM_XY * SQUARE, yy[a][b], a, b, turn == 0, lane);
                }
        }
        __syncthreads();
    }

    // HERMITIAN: only what is on or above the diagonal is kept.
    template <bool HERMITIAN>
    static __device__ __forceinline__ void add_tile(Dot* sums, const Tile& tile, int a, int b, bool first, int lane) {
        const int row = column_of(lane / 4, a);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
            const int column = column_of(lane % 4 * 2 + c, b);
            Parts sum{};
#pragma unroll
            for (int copy = 0; copy < COPIES; ++copy) {
                const int from = lane + copy * (4 * LANES + LANES / 2);
                sum.re += shuffle(tile.at[0][c], from);
                if constexpr (IS_COMPLEX<Y>) sum.im += shuffle(tile.at[PARTS - 1][c], from);
            }
            const bool mirrored = HERMITIAN && row > column;
            if (lane / 4 >= LANES || lane % 4 * 2 + c >= LANES || row >= WIDTH || column >= WIDTH || (mirrored && a == b)) continue;
            Dot& kept = sums[mirrored ? column * WIDTH + row : row * WIDTH + column];
            if (mirrored) sum.im = -sum.im;
            kept = first ? element_of<Dot>(sum) : add(kept, element_of<Dot>(sum));
        }
    }

    // The column of an element of a lane of a row.
    static __device__ __forceinline__ int column_of(int lane, int element) { return element / VECTOR * STRIDE + lane * VECTOR + element % VECTOR; }
};
