// Pieces of the rows of a matrix: consecutive blocks of rows, PIECE of them per warp, 32 at a time, one per lane.
//
// Config: ROUNDS; WARPS per block of threads.
#pragma once
#include "common/element.cuh"

constexpr u32 FULL = 0xffffffffu;
constexpr i64 PIECE = 32 * ROUNDS;

__device__ __forceinline__ i64 warp_number() { return static_cast<i64>(blockIdx.x) * WARPS + threadIdx.x / 32; }

// `sum` and the counts of the lanes before this one. The counts of all lanes are added to `sum`.
__device__ __forceinline__ i64 take_places(i64 count, i64& sum) {
    i64 end = sum + count;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
        const i64 other = __shfl_up_sync(FULL, end - sum, lanes);
        if (threadIdx.x % 32 >= lanes) end += other;
    }
    sum = __shfl_sync(FULL, end, 31);
    return end - count;
}
