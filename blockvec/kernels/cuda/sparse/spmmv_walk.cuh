// The order in which the warps of a tile's blocks process units of neighbouring rows.
//
//   for each patch of units, assigned in turn to the blocks
//     for each unit of the patch, assigned in turn to the warps of the block: LINES = WARPS / PLANES warps work `line` units apart, PLANES such
//       lots of lines `plane` units apart, and a plane has `lots` of them
//
// Config: WARPS per block; PLANES divides WARPS.
#pragma once
#include "common/stream.cuh"

static_assert(WARPS % PLANES == 0);

// n / d for n < 2^31, where `by` is ceil(2^(31 + l) / d) + 2^32 l and l = ceil(log2 d): a division per unit would be too slow.
__device__ __forceinline__ int divide(int n, i64 by) {
    return static_cast<int>(__umulhi(2 * static_cast<u32>(n), static_cast<u32>(by)) >> static_cast<int>(by >> 32));
}

class Walk {
  public:
    static constexpr Index NONE = -1, END = -2;

    // Of the warp of that number in the block of that number.
    __device__ __forceinline__ Walk(Index n_units, int line, i64 by_line, int lots, i64 by_lots, int plane, int warp, int block, int blocks)
        : n_units(n_units), by_line(by_line), by_lots(by_lots), line(line), lots(lots), plane(plane), warp(warp), blocks(blocks), visit(block) {}

    // The next unit, NONE for a place without one, or END.
    __device__ __forceinline__ Index next() {
        const int lines = divide(visit, by_line), planes = divide(lines, by_lots);
        const int at = ((lines - planes * lots) * LINES + warp % LINES) * line + visit - lines * line;
        const Index first_plane = static_cast<Index>(planes) * PLANES;
        if (first_plane * plane >= n_units) return END;
        visit += blocks;
        const Index unit = (first_plane + warp / LINES) * plane + at;
        return at >= plane || unit >= n_units ? NONE : unit;
    }

  private:
    static constexpr int LINES = WARPS / PLANES;
    Index n_units;
    i64 by_line, by_lots;
    int line, lots, plane, warp, blocks, visit;
};
