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

// Those of `count` rows of BYTES bytes, `pitch` bytes apart, by THREADS threads, two per row.
template <int BYTES, int THREADS>
__device__ __forceinline__ void prefetch_ends(const char* rows, i64 pitch, i64 count, int thread) {
    const char* end = rows + thread / 2 * pitch + thread % 2 * BYTES;
#pragma unroll 1
    for (int row = thread / 2; row < count; row += THREADS / 2, end += THREADS / 2 * pitch) prefetch_end(end);
}
