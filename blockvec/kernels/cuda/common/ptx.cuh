// Every instruction that needs inline PTX, one function per instruction, and the declarations of shared memory.
//
// No other file contains `asm` or `__shared__`, so a kernel runs on a host when this header is replaced: tests/emulator has such a
// replacement. Functions whose comment names an architecture need it; the others run on all.
#pragma once

using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

// ---- shared memory

// One variable per block; an array of the given extents ("[ROWS][COLUMNS]"); the bytes whose number the launch gives.
#define SHARED(TYPE, NAME) __shared__ TYPE NAME
#define SHARED_ARRAY(TYPE, NAME, EXTENTS) __shared__ TYPE NAME EXTENTS
#define DYNAMIC_SHARED(NAME, ALIGNMENT) extern __shared__ __align__(ALIGNMENT) char NAME[]

// The address in the shared window, which PTX takes in a 32-bit register.
__device__ __forceinline__ u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

// atom.inc: counts from 0 to `last` and back to 0; returns the value before. Orders the memory accesses of the threads that count.
__device__ __forceinline__ u32 count_up(u32* counter, u32 last) {
    u32 before;
    asm volatile("atom.acq_rel.cta.shared::cta.inc.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "r"(shared_address(counter)), "r"(last)
                 : "memory");
    return before;
}

// ---- barriers of threads

// bar.sync: barrier `id` among THREADS threads of the block, in whole warps. Number 0 is __syncthreads().
template <int THREADS>
__device__ __forceinline__ void named_barrier(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(THREADS) : "memory");
}

// elect.sync (sm_90): true in one lane of a converged warp. With `lane == 0` instead the compiler does not know that a single lane is
// left, and wraps each bulk copy into a loop over the lanes, which takes close to a hundred cycles.
__device__ __forceinline__ bool elect_one() {
#if __CUDA_ARCH__ >= 900
    u32 chosen;
    asm volatile("{\n\t.reg .pred p;\n\telect.sync _|p, 0xffffffff;\n\tselp.u32 %0, 1, 0, p;\n\t}" : "=r"(chosen));
    return chosen;
#else
    return threadIdx.x % 32 == 0;
#endif
}

// ---- mbarriers (sm_80): barriers in shared memory that also count the bytes of copies

// mbarrier.init
__device__ __forceinline__ void barrier_init(u64* barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

// fence.mbarrier_init: makes initialised barriers visible to the copy engine; a __syncthreads() must follow.
__device__ __forceinline__ void barrier_init_fence() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// mbarrier.arrive.expect_tx (sm_90): one arrival that announces `bytes` of copies; the phase ends after all arrivals and all bytes.
__device__ __forceinline__ void expect(u64* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// mbarrier.arrive
__device__ __forceinline__ void arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// mbarrier.try_wait.parity, which suspends the thread for a while (sm_90), or mbarrier.test_wait.parity: whether the phase of the
// given parity has ended. The phase before a barrier's first one counts as ended.
__device__ __forceinline__ bool has_ended(u64* barrier, u32 parity) {
    u32 ended;
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
#if __CUDA_ARCH__ >= 900
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
#else
        "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
#endif
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(ended)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
    return ended;
}

// ---- bulk copies (sm_90): addresses on both sides and sizes are multiples of 16 bytes

// cp.async.bulk: memory to shared memory, completing on an mbarrier.
__device__ __forceinline__ void bulk_load(void* shared, const void* global, u32 bytes, u64* barrier) {
    // CUDA 12.4 refuses a .shared::cta destination, which is newer PTX; a block's own address is valid in its cluster.
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// cp.async.bulk: shared memory to memory, completing with the thread's open group.
__device__ __forceinline__ void bulk_store(void* global, const void* shared, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared_address(shared)), "r"(bytes)
                 : "memory");
}

// fence.proxy.async: makes a thread's stores to shared memory visible to the copy engine; every storing thread runs it before the
// barrier that a bulk_store follows.
__device__ __forceinline__ void bulk_store_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// cp.async.bulk.commit_group
__device__ __forceinline__ void bulk_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// cp.async.bulk.wait_group.read: waits until at most PENDING of this thread's groups still read shared memory.
template <int PENDING>
__device__ __forceinline__ void bulk_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// cp.async.bulk.wait_group: waits until at most PENDING of this thread's groups are still being written.
template <int PENDING>
__device__ __forceinline__ void bulk_store_wait() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}

// ---- asynchronous copies to shared memory by single threads (sm_80; before, async_copy copies at once)

// cp.async: copies `bytes` <= SIZE bytes and sets the rest of the SIZE bytes to zero. SIZE is 4, 8 or 16 and divides both addresses.
// Copies of 16 bytes bypass L1.
template <int SIZE>
__device__ __forceinline__ void async_copy(void* shared, const void* global, u32 bytes) {
#if __CUDA_ARCH__ >= 800
    if constexpr (SIZE == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes), "n"(SIZE)
                     : "memory");
#else
    for (u32 byte = 0; byte < SIZE; byte += 4)
        *reinterpret_cast<u32*>(static_cast<char*>(shared) + byte) =
            byte < bytes ? *reinterpret_cast<const u32*>(static_cast<const char*>(global) + byte) : 0u;
#endif
}

// cp.async with an L2 cache hint: async_copy<16> of data that pass through once, whose lines L2 evicts first.
__device__ __forceinline__ void async_copy_evict_first(void* shared, const void* global, u32 bytes) {
    asm volatile(
        "{\n\t.reg .b64 policy;\n\t"
        "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n\t"
        "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, policy;\n\t}" ::"r"(shared_address(shared)),
        "l"(global), "r"(bytes)
        : "memory");
}

// cp.async.commit_group: closes a group of this thread's copies.
__device__ __forceinline__ void async_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// cp.async.wait_group: waits until at most PENDING of this thread's groups have not landed.
template <int PENDING>
__device__ __forceinline__ void async_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// cp.async.mbarrier.arrive.noinc: arrives at a barrier once all earlier copies of this thread have landed. It is one of the arrivals
// that the barrier was initialised with.
__device__ __forceinline__ void async_arrive(u64* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// ---- loads and stores of memory that other blocks access meanwhile

// ld.acquire: sees what other blocks stored before they released the value it returns.
__device__ __forceinline__ u32 load_acquire(const u32* p) {
    u32 value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
    return value;
}

// ld.relaxed
__device__ __forceinline__ u64 load_relaxed(const u64* p) {
    u64 value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(p) : "memory");
    return value;
}

// st.relaxed.b128: stores a number and a flag as one, so that a thread that sees the flag sees the number. `at` is aligned to 16 bytes.
__device__ __forceinline__ void store_flagged(double* at, double value, u64 flag) {
    asm volatile("{\n\t.reg .b128 both;\n\tmov.b128 both, {%1, %2};\n\tst.relaxed.gpu.global.b128 [%0], both;\n\t}" ::"l"(at),
                 "l"(__double_as_longlong(value)), "l"(flag)
                 : "memory");
}

// ld.relaxed.b128: loads what store_flagged stored.
__device__ __forceinline__ void load_flagged(double& value, u64& flag, const double* at) {
    u64 bits;
    asm volatile("{\n\t.reg .b128 both;\n\tld.relaxed.gpu.global.b128 both, [%2];\n\tmov.b128 {%0, %1}, both;\n\t}"
                 : "=l"(bits), "=l"(flag)
                 : "l"(at)
                 : "memory");
    value = __longlong_as_double(static_cast<i64>(bits));
}

// prefetch.global.L2: requests the sector of 32 bytes that contains an address.
__device__ __forceinline__ void prefetch_sector(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

// ---- predicated loads of memory that is constant during the kernel

// ld.global.nc under a predicate: an unwanted load leaves its register unchanged, without a branch or a move that merges results.
__device__ __forceinline__ void load_constant_if(bool wanted, u32& word, const void* from) {
    asm("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %2, 0;\n\t@p ld.global.nc.u32 %0, [%1];\n\t}"
        : "+r"(word)
        : "l"(from), "r"(static_cast<u32>(wanted)));
}

__device__ __forceinline__ void load_constant_if(bool wanted, uint2& word, const void* from) {
    asm("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %3, 0;\n\t@p ld.global.nc.v2.u32 {%0, %1}, [%2];\n\t}"
        : "+r"(word.x), "+r"(word.y)
        : "l"(from), "r"(static_cast<u32>(wanted)));
}

__device__ __forceinline__ void load_constant_if(bool wanted, uint4& word, const void* from) {
    asm("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %5, 0;\n\t@p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
        : "+r"(word.x), "+r"(word.y), "+r"(word.z), "+r"(word.w)
        : "l"(from), "r"(static_cast<u32>(wanted)));
}

// ---- arithmetic

// mad.wide.u32: base + row pitch.
__device__ __forceinline__ const char* address_of(const char* base, u32 row, u32 pitch) {
    const char* address;
    asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(address) : "r"(row), "r"(pitch), "l"(base));
    return address;
}

// mma.sync with .f64, C (m x n) += A (m x k) B (k x n) by one warp; mma.cuh says which elements a lane has. Pure statements, so not
// volatile: the compiler may interleave them with loads.

// m8n8k4 (sm_80)
__device__ __forceinline__ void mma_m8n8k4(double (&c)[2], double a, double b) {
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+d"(c[0]), "+d"(c[1])
        : "d"(a), "d"(b));
}

// m16n8k4 (sm_90)
__device__ __forceinline__ void mma_m16n8k4(double (&c_top)[2], double (&c_bottom)[2], const double (&top)[1],
                                            const double (&bottom)[1], const double (&b)[1]) {
    asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+d"(c_top[0]), "+d"(c_top[1]), "+d"(c_bottom[0]), "+d"(c_bottom[1])
        : "d"(top[0]), "d"(bottom[0]), "d"(b[0]));
}

// ---- time

// %globaltimer: nanoseconds of a clock that all multiprocessors share.
__device__ __forceinline__ i64 global_time_ns() {
    i64 time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
}
