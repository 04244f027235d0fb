// The blocks of C that each of the WM x WN warps of tsmttsm_mma.cu computes. Uses the constants of that file, which includes this one.
//
// A warp has up to IM x IN blocks of 8 x 8, from block (m0, n0) on. Which of them, its shape says: a number known to the compiler, so that no
// product is behind a branch.
#pragma once

constexpr bool TRIANGLE = SAME && WM * WN == 1;
// A Gram matrix by 2 x 2 warps, its blocks on one side of the diagonal: two triangles, of the first half of the groups and of the second,
// and the square of both halves, below the diagonal, cut in two. Tiles 0 and 3, 1 and 2 together are nearly equal.
constexpr bool SPLIT_TRIANGLE = COMPLEX && SAME && WM == 2 && WN == 2;
// An odd number of groups squared, by 2 x 2 warps: a pinwheel of four IM_LEAST x IM tiles around a block that the first one takes.
constexpr bool PINWHEEL = COMPLEX && !THREE_M && !SAME && WM == 2 && WN == 2 && GM == GN && GM % 2 == 1;

// A shape is a sum of these, or SPLIT and the number of a tile of the split triangle.
constexpr int ALL_M = 1, ALL_N = 2;  // all groups of A, of B, and not one less
constexpr int CORNER = 4;            // the last block
constexpr int SPLIT = 8;

// Whether the groups of A are those of B, and blocks below the diagonal are left out.
constexpr __device__ __forceinline__ bool is_diagonal(int shape) { return TRIANGLE || shape == SPLIT || shape == SPLIT + 1; }

constexpr __device__ __forceinline__ int groups_of_a(int shape) {
    if (shape >= SPLIT) return shape == SPLIT ? IM : shape == SPLIT + 1 ? IM_LEAST : shape == SPLIT + 2 ? (IM_LEAST + 1) / 2 : IM_LEAST / 2;
    return shape & (ALL_M | CORNER) ? IM : IM_LEAST;
}

constexpr __device__ __forceinline__ int groups_of_b(int shape) {
    if (shape >= SPLIT) return shape == SPLIT + 1 ? IM_LEAST : IM;
    return shape & (ALL_N | CORNER) ? IN : IN_LEAST;
}

constexpr __device__ __forceinline__ bool has_block(int shape, int i, int j) {
    if (is_diagonal(shape) && i > j) return false;
    if (shape >= SPLIT) return i < groups_of_a(shape) && j < groups_of_b(shape);
    return ((i < IM_LEAST || shape & ALL_M) && (j < IN_LEAST || shape & ALL_N)) || (shape & CORNER && i == IM - 1 && j == IN - 1);
}

struct Tile {
    int m0, n0, shape;
};

__device__ __forceinline__ Tile tile_of(int tile) {
    if constexpr (SPLIT_TRIANGLE) {
        return {tile == 0 ? 0 : tile == 3 ? IM + (IM_LEAST + 1) / 2 : IM, tile == 1 ? IM : 0, SPLIT + tile};
    } else if constexpr (PINWHEEL) {
        return {tile == 2 ? IM : tile == 3 ? IM_LEAST : 0, tile == 1 ? IN : tile == 2 ? IN_LEAST : 0,
                tile % 2 ? ALL_M : tile == 0 ? ALL_N + CORNER : ALL_N};
    } else {
        const int wm = tile / WN, wn = tile % WN;
        return {wm * IM_LEAST + min(wm, GM % WM), wn * IN_LEAST + min(wn, GN % WN),
                (IM_LEAST == IM || wm < GM % WM ? ALL_M : 0) + (IN_LEAST == IN || wn < GN % WN ? ALL_N : 0)};
    }
}
