// Ends of rows within sectors of memory.
//
// A sector of 32 bytes that is written in part is read when it leaves L2, which takes longer than all other traffic. A sector that L2 already has is
// completed there. So the sectors that rows of a view share with what is beside them are requested some time before the rows are stored.
#pragma once
#include "common/ptx.cuh"

constexpr int SECTOR_BYTES = 32;

// Requests the sector of the first byte of a row, or of the byte behind its last one, unless a sector begins there.
__device__ __forceinline__ void prefetch_end(const char* end) {
    if (reinterpret_cast<u64>(end) % SECTOR_BYTES != 0) prefetch_sector(end);
}

// Those of `count` rows of BYTES bytes, `pitch` bytes apart, by `threads` threads.
template <int BYTES>
__device__ __forceinline__ void prefetch_ends(const char* rows, i64 pitch, int count, int thread, int threads) {
#pragma unroll 1
    for (int end = thread; end < 2 * count; end += threads) prefetch_end(rows + end / 2 * pitch + end % 2 * BYTES);
}
