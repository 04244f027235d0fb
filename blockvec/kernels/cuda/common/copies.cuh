// Copies from memory to shared memory by single threads that do not wait for them, of any alignment from 4 bytes, and the barrier of a team.
#pragma once
#include "common/pipeline.cuh"

// Copies `bytes` <= SIZE bytes and fills the rest of the SIZE with zeros; does not wait where the hardware need not (sm_80).
template <int SIZE>
__device__ __forceinline__ void copy_piece(char* shared, const char* global, int bytes) {
#if __CUDA_ARCH__ >= 800
    async_copy<SIZE>(shared, global, bytes);
#else
    for (int byte = 0; byte < SIZE; byte += 4)
        *reinterpret_cast<u32*>(shared + byte) = byte < bytes ? *reinterpret_cast<const u32*>(global + byte) : 0u;
#endif
}

__device__ __forceinline__ void copies_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most PENDING of this thread's committed groups are on their way.
template <int PENDING>
__device__ __forceinline__ void copies_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// A barrier of the warps of one team. Number 0 is __syncthreads(), 1 belongs to sync_warps.
template <int WARPS>
__device__ __forceinline__ void sync_team(int team) {
    if constexpr (WARPS == 1)
        __syncwarp();
    else
        asm volatile("bar.sync %0, %1;" ::"r"(team + 2), "n"(32 * WARPS) : "memory");
}
