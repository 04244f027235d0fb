// Memory to shared memory by the bulk copy engine (sm_90), through a ring of stages guarded by mbarriers.
//
// A filler says how many bytes will land in an empty stage and starts the copies; every consumer warp waits until the stage is
// full, reads it, and gives it back. Copies complete on the full barrier themselves, so STAGES stages are in flight without a
// register or an instruction spent on them. Two ways to find out that a stage is empty:
//
//   a producer warp                                     consumer warps
//   for each stage of this block:                       for each stage of this block:
//       wait(ring.empty + at.stage, at.parity ^ 1)          wait(ring.full + at.stage, at.parity)
//       expect(ring.full + at.stage, bytes); bulk_load(...) ...; __syncwarp(); if (lane == 0) arrive(ring.empty + at.stage)
//       at.advance()                                        at.advance()
//
//   no producer: the last warp to read a stage fills it again. Registers are dealt out by whole warps in each quadrant of a
//   multiprocessor, so a ninth warp would cut the limit of eight from 255 registers to 168.
//       wait(ring.full + at.stage, at.parity); ...; __syncwarp()
//       if (ring.is_last_reader(at.stage, warps, lane)) { expect(...); bulk_load(...) }   the first STAGES are filled up front
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
__device__ __forceinline__ void barrier_init_fence() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

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
#if __CUDA_ARCH__ >= 900
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"  // sleeps for a while
#else
            "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
#endif
            "selp.u32 %0, 1, 0, p;\n\t}"
            : "=r"(ended)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
    } while (!ended);
}

// ---- bulk copies

// By a converged warp: true in one of its lanes. Unlike `lane == 0` the compiler knows that it is one, and issues a bulk copy in a
// few cycles; else it wraps each into a loop over the lanes that takes close to a hundred.
__device__ __forceinline__ bool elect_one() {
#if __CUDA_ARCH__ >= 900
    u32 chosen;
    asm volatile("{\n\t.reg .pred p;\n\telect.sync _|p, 0xffffffff;\n\tselp.u32 %0, 1, 0, p;\n\t}" : "=r"(chosen));
    return chosen;
#else
    return threadIdx.x % 32 == 0;
#endif
}

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

// ---- asynchronous copies by threads (sm_80): no 16-byte rule, for views and unaligned bases

// Copies `bytes` <= SIZE bytes and fills the rest of the SIZE bytes with zeros; SIZE is 4, 8 or 16, and the alignment of both sides.
template <int SIZE>
__device__ __forceinline__ void async_copy(void* shared, const void* global, u32 bytes) {
    if constexpr (SIZE == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes), "n"(SIZE)
                     : "memory");
}

// Arrives at a barrier once all earlier async_copy of this thread have landed; the barrier was initialised to expect it.
__device__ __forceinline__ void async_arrive(u64* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// ---- the ring

// Counts from 0 to `last` and back to 0; returns the value before. Orders the memory accesses of those who count.
__device__ __forceinline__ u32 count_up(u32* counter, u32 last) {
    u32 before;
    asm volatile("atom.acq_rel.cta.shared::cta.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "r"(shared_address(counter)), "r"(last)
                 : "memory");
    return before;
}

template <int STAGES>
struct Ring {
    u64 full[STAGES];
    u64 empty[STAGES];    // with a producer warp
    u32 readers[STAGES];  // without: warps that have read a stage

    // By one thread, before a __syncthreads(): how many arrivals fill a stage and how many give it back. By one, because the assembler of
    // CUDA 13.0 spoils a predicate that is still needed where several threads initialise barriers: warp 0 was torn apart by it for good.
    __device__ __forceinline__ void init(u32 producers, u32 consumers) {
#pragma unroll
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(full + stage, producers);
            barrier_init(empty + stage, consumers);
            readers[stage] = 0;
        }
        barrier_init_fence();
    }

    // By a converged warp that has read a stage: whether it was the last one of `warps` to do so.
    __device__ __forceinline__ bool is_last_reader(int stage, u32 warps, int lane) {
        const u32 before = lane == 0 ? count_up(readers + stage, warps - 1) : 0;
        return __shfl_sync(0xffffffffu, before, 0) == warps - 1;
    }
};

// Where a producer or a consumer stands in the ring; the parity flips at each turn.
template <int STAGES>
struct Cursor {
    int stage = 0;
    u32 parity = 0;

    template <int BY = 1>
    __device__ __forceinline__ void advance() {
        static_assert(BY <= STAGES, "one turn at most");
        stage += BY;
        if (stage >= STAGES) {
            stage -= STAGES;
            parity ^= 1;
        }
    }
};

// Barrier number ID among `THREADS` threads of the block (whole warps); number 0 is __syncthreads().
template <int ID, int THREADS>
__device__ __forceinline__ void sync_warps() {
    asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}

// A load that sees what other blocks stored before they released the value it returns.
__device__ __forceinline__ u32 load_acquire(const u32* p) {
    u32 value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
    return value;
}

__device__ __forceinline__ u64 load_relaxed(const u64* p) {
    u64 value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(p) : "memory");
    return value;
}

// A number and a flag that are stored and loaded as one: who sees the flag sees the number. `at` is aligned to 16 bytes.
__device__ __forceinline__ void store_flagged(double* at, double value, u64 flag) {
    asm volatile("{\n\t.reg .b128 both;\n\tmov.b128 both, {%1, %2};\n\tst.relaxed.gpu.global.b128 [%0], both;\n\t}" ::"l"(at),
                 "l"(__double_as_longlong(value)), "l"(flag)
                 : "memory");
}

__device__ __forceinline__ void load_flagged(double& value, u64& flag, const double* at) {
    u64 bits;
    asm volatile("{\n\t.reg .b128 both;\n\tld.relaxed.gpu.global.b128 both, [%2];\n\tmov.b128 {%0, %1}, both;\n\t}"
                 : "=l"(bits), "=l"(flag)
                 : "l"(at)
                 : "memory");
    value = __longlong_as_double(static_cast<i64>(bits));
}
