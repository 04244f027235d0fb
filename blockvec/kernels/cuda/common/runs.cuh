// Sums of neighbouring elements, each of them over several threads of a block.
#pragma once
#include "common/element.cuh"

// total[lane] = sum over run of the `sum` of thread LANES run + lane: a binary tree over the RUNS runs (a power of two) in shared memory,
// `scratch`, of one element per thread. All threads of a block call it; those of run 0 get the totals.
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
