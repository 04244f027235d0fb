// Memory to shared memory by the bulk copy engine (sm_90), through a ring of stages guarded by mbarriers.
//
// One producer warp waits until a stage is empty, says how many bytes will land in it and starts the copies; every consumer
// warp waits until it is full, reads it, and gives it back. Copies complete on the full barrier themselves, so up to
// STAGES stages are in flight without a register or an instruction spent on them:
//
//   producer                                            consumer
//   for each stage of this block:                       for each stage of this block:
//       wait(ring.empty[at.stage], at.parity ^ 1)           wait(ring.full[at.stage], at.parity)
//       expect(ring.full[at.stage], bytes); bulk_load(...)  ...; __syncwarp(); if (lane == 0) arrive(ring.empty[at.stage])
//       at.advance()                                        at.advance()
//
// Addresses (both sides) and sizes of a bulk copy are multiples of 16 bytes; one phase of a barrier counts below 2^20 bytes.
#pragma once

using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

__device__ __forceinline__ u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// ---- mbarriers

__device__ __forceinline__ void barrier_init(u64* barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// Makes freshly initialised barriers visible to the copy engine; a __syncthreads() must follow.
__device__ __forceinline__ void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// One arrival that also announces `bytes` of copies; the phase ends when all arrivals and all bytes are in.
__device__ __forceinline__ void expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Waits until the phase of the given parity has ended; the phase before a barrier's first one counts as ended.
__device__ __forceinline__ void wait(u64* barrier, u32 parity) {
    u32 ended;
    do {
        asm volatile(
            "{\n\t.reg .pred p;\n\t"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t}"
            : "=r"(ended)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
    } while (!ended);
}

// ---- bulk copies

__device__ __forceinline__ void bulk_load(void* shared, const void* global, u32 bytes, u64* barrier) {
    // The .shared::cta destination is newer PTX that CUDA 12.4 refuses; a block's own address is valid in its cluster.
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

__device__ __forceinline__ void bulk_store(void* global, const void* shared, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared_address(shared)), "r"(bytes)
                 : "memory");
}

// Ordinary stores to shared memory become visible to the copy engine: every storing thread runs this before the block's barrier.
__device__ __forceinline__ void bulk_store_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void bulk_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Waits until at most PENDING of this thread's committed groups still read shared memory.
template <int PENDING>
__device__ __forceinline__ void bulk_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// Waits until at most PENDING of this thread's committed groups are still being written.
template <int PENDING>
__device__ __forceinline__ void bulk_store_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}

// ---- the ring

template <int STAGES>
struct Ring {
    u64 full[STAGES];
    u64 empty[STAGES];

    // By one thread, before a __syncthreads(); `consumers` arrivals give a stage back.
    __device__ __forceinline__ void init(u32 consumers) {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(full + s, 1);
            barrier_init(empty + s, consumers);
        }
        barrier_init_fence();
    }
};

// Where a producer or a consumer stands in the ring; the parity flips at each turn.
template <int STAGES>
struct Cursor {
    int stage = 0;
    u32 parity = 0;

    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// Barrier number ID among `THREADS` threads of the block (whole warps); number 0 is __syncthreads().
template <int ID, int THREADS>
__device__ __forceinline__ void sync_warps() {
    asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}
