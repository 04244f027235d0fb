// Sums of neighbouring elements, each of them over several threads of a block.
#pragma once
#include "common/element.cuh"

// total[lane] = sum over run of the `sum` of thread lanes run + lane: a binary tree over the runs (a power of two) in shared memory,
// `scratch`, of one element per thread. All threads of a block call it; those of run 0 get the totals.
template <class T>
__device__ __forceinline__ T add_runs(T* scratch, T sum, int runs, int lanes) {
    T* own = scratch + threadIdx.x;
    *own = sum;
    __syncthreads();
    for (int half = runs / 2; half > 0; half /= 2) {
        if (threadIdx.x < half * lanes) *own = add(*own, own[half * lanes]);
        __syncthreads();
    }
    return *own;
}
