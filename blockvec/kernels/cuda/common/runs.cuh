// The sums of neighbouring elements, each summed up by several threads of a block.
#pragma once
#include "common/element.cuh"

// The total of what threads (run, lane) hold, thread LANES run + lane being of element `lane`: a binary tree over the RUNS runs in shared
// memory, which has room for all threads. RUNS is a power of two. By all threads of a block; those of run 0 have the totals.
template <int RUNS, int LANES, class T>
__device__ __forceinline__ T add_runs(T* scratch, T sum) {
    T* own = scratch + threadIdx.x;
    *own = sum;
    __syncthreads();
#pragma unroll
    for (int half = RUNS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half * LANES) *own = add(*own, own[half * LANES]);
        __syncthreads();
    }
    return *own;
}
