// Gram matrices X^H Y and Y^H Y in the pass over a sparse matrix: FP64 tensor-core products of the rows that a warp has just completed.
//
// A warp completes GROUPS = 32 / LANES rows at a time, and lane l has ELEMENTS columns of row l / LANES. A fragment (mma.cuh) has four
// rows along t = l % 4 and eight columns along g = l / 4. With eight lanes per row every element makes a fragment; with fewer the rows fill FOLD
// fragments, each of FOLD elements of a lane and of SETS sets of four rows:
//
//   lane (g, t) with g = (set, position, e), e < FOLD:  fragment b, tile a  <-  row 4 (FOLD set + b) + t, lane `position` of it, its
//                                                                            element FOLD a + e
//
// Elements of Y are exchanged by FOLD shuffles per tile: in the n-th, a lane takes from the row set b = e ^ n, whose lanes offer element e = b ^ n.
// The product of two fragments has the wanted products of a set with itself on SETS diagonal blocks, which are added up at the end; the
// other blocks are dropped.
//
// Problem: GRAM: 1 X^H Y, 2 Y^H Y, 3 both. One tile of columns, SPLIT = 1.
#pragma once
#include "common/mma.cuh"
#include "sparse/spmmv.cuh"

constexpr int ELEMENTS = GRAM ? VECTORS * VECTOR : 1;
constexpr int FOLD = LANES < 8 && ELEMENTS % 2 == 0 ? 2 : 1, A_SIDE = ELEMENTS / FOLD;
constexpr int SPAN = LANES * FOLD, SETS = 8 / SPAN;  // lanes along g of a set of rows
constexpr int GRAM_XY = GRAM & 1, GRAM_KINDS = GRAM_XY + (GRAM >> 1), SQUARE = WIDTH * WIDTH, GRAM_SUMS = GRAM_KINDS * SQUARE;
constexpr int PARTS = IS_COMPLEX<Y> ? 2 : 1;
static_assert(GRAM == 0 || (SPAN * SETS == 8 && SPAN > 1 && SPLIT == 1 && TILES == 1), "whole rows fill fragments");

struct Tile {
    double at[PARTS][2] = {};
};

struct Parts {
    double re = 0, im = 0;
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

// The sums of a warp over its rows.
struct Grams {
    Tile xy[A_SIDE][A_SIDE], yy[A_SIDE][A_SIDE];  // yy: the tiles on and above the diagonal

    // `count` rows from the first one of the warp on. By all its lanes; BUSY: this one has columns of Y in `sums`.
    __device__ __forceinline__ void take(const Lane& block, Index first, int count, bool busy, const Sums& sums, int lane) {
        Parts x[FOLD][A_SIDE], y[FOLD][A_SIDE];
#pragma unroll
        for (int b = 0; b < FOLD; ++b) {
            const int row = row_of(lane, b);
#pragma unroll
            for (int a = 0; a < A_SIDE; ++a) {
                const int column = column_of(lane / 4, a);
                if constexpr (GRAM_XY != 0) {
                    StreamPack<X, 1, X_ALIGNED> element;
                    const bool wanted = row < count && column < WIDTH;
                    element.load_constant(block.x_row(first + row) + (column - block.column) * static_cast<int>(sizeof(X)), wanted);
                    if (wanted) x[b][a] = parts_of(element.at[0]);
                }
            }
        }
#pragma unroll
        for (int a = 0; a < A_SIDE; ++a) {
            Parts taken[FOLD];
#pragma unroll
            for (int n = 0; n < FOLD; ++n) {
                const int offered = FOLD * a + (lane / LANES / 4 + n) % FOLD, e = lane / 4 % FOLD;
                const int from = row_of(lane, (e + n) % FOLD) * LANES + lane / 4 % SPAN / FOLD;
                Parts mine = offer(block, busy, sums, FOLD * a);
                if (offered % FOLD != 0) mine = offer(block, busy, sums, FOLD * a + FOLD - 1);
                taken[n].re = shuffle(mine.re, from);
                if constexpr (IS_COMPLEX<Y>) taken[n].im = shuffle(mine.im, from);
            }
#pragma unroll
            for (int b = 0; b < FOLD; ++b) y[b][a] = lane / 4 % FOLD == 0 ? taken[b] : taken[(b + 1) % FOLD];
        }
#pragma unroll
        for (int b = 0; b < FOLD; ++b)
#pragma unroll
            for (int i = 0; i < A_SIDE; ++i)
#pragma unroll
                for (int j = 0; j < A_SIDE; ++j) multiply(xy[i][j], yy[i][j], i <= j, x[b][i], y[b][i], y[b][j]);
    }

    static __device__ __forceinline__ Parts offer(const Lane& block, bool busy, const Sums& sums, int element) {
        return busy && block.has(element / VECTOR) ? parts_of(sums.at[element / VECTOR][element % VECTOR]) : Parts{};
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
    __device__ __forceinline__ void add_up(Dot* sums, int warp, int lane) const {
        for (int turn = 0; turn < WARPS; ++turn) {
            __syncthreads();
            if (turn != warp) continue;
#pragma unroll
            for (int a = 0; a < A_SIDE; ++a)
#pragma unroll
                for (int b = 0; b < A_SIDE; ++b) {
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
            const int at = lane % 4 * 2 + c, column = column_of(at, b);
            Parts sum;
#pragma unroll
            for (int set = 0; set < SETS; ++set) {
                const int from = lane + set * (4 * SPAN + SPAN / 2);
                sum.re += shuffle(tile.at[0][c], from);
                if constexpr (IS_COMPLEX<Y>) sum.im += shuffle(tile.at[PARTS - 1][c], from);
            }
            const bool mirrored = HERMITIAN && row > column;
            if (lane / 4 >= SPAN || at >= SPAN || row >= WIDTH || column >= WIDTH || (mirrored && a == b)) continue;
            Dot& kept = sums[mirrored ? column * WIDTH + row : row * WIDTH + column];
            if (mirrored) sum.im = -sum.im;
            kept = first ? element_of<Dot>(sum) : add(kept, element_of<Dot>(sum));
        }
    }

    // The row of fragment b that a lane has an element of, and the column of place g of tile a.
    static __device__ __forceinline__ int row_of(int lane, int b) { return 4 * (lane / 4 / SPAN * FOLD + b) + lane % 4; }

    static __device__ __forceinline__ int column_of(int g, int a) {
        const int element = FOLD * a + g % FOLD;
        return element / VECTOR * STRIDE + g % SPAN / FOLD * VECTOR + element % VECTOR;
    }
};
