// Data that pass through once, and what tells the caches so (sm_80).
//
// A matrix that is read once and a block that is written once need not push out of L2 what is read again: their lines are the
// first to be evicted. Copies of the matrix to shared memory bypass L1.
#pragma once
#include "common/element.cuh"

using u32 = unsigned int;

// Starts to copy `bytes` <= 16 bytes and fills the rest of the 16 with zeros; both addresses are multiples of 16.
__device__ __forceinline__ void stream_copy(void* shared, const void* global, u32 bytes) {
    const u32 to = static_cast<u32>(__cvta_generic_to_shared(shared));
    asm volatile(
        "{\n\t.reg .b64 policy;\n\t"
        "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n\t"
        "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, policy;\n\t}" ::"r"(to),
        "l"(global), "r"(bytes)
        : "memory");
}

// Starts to copy 16 bytes that others will read again; both addresses are multiples of 16.
__device__ __forceinline__ void shared_copy(void* shared, const void* global) {
    const u32 to = static_cast<u32>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}

// Closes a group of this thread's copies.
__device__ __forceinline__ void stream_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until all but the last PENDING groups of this thread have landed.
template <int PENDING>
__device__ __forceinline__ void stream_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// base + row pitch, in one instruction where the row is of 32 bits.
template <class Index>
__device__ __forceinline__ const char* row_address(const char* base, Index row, u32 pitch) {
    if constexpr (sizeof(Index) == 4) {
        const char* address;
        asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(address) : "r"(row), "r"(pitch), "l"(base));
        return address;
    } else {
        return base + row * pitch;
    }
}

// What one load or store moves. A load that is not wanted leaves its register as it is: no branch, and no move to merge results.
template <int BYTES>
struct StreamWord;

template <>
struct StreamWord<4> {
    using Type = u32;
    static __device__ __forceinline__ void load_constant(u32& word, const void* from, bool wanted) {
        asm("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %2, 0;\n\t@p ld.global.nc.u32 %0, [%1];\n\t}"
            : "+r"(word)
            : "l"(from), "r"(static_cast<u32>(wanted)));
    }
};

template <>
struct StreamWord<8> {
    using Type = uint2;
    static __device__ __forceinline__ void load_constant(uint2& word, const void* from, bool wanted) {
        asm("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %3, 0;\n\t@p ld.global.nc.v2.u32 {%0, %1}, [%2];\n\t}"
            : "+r"(word.x), "+r"(word.y)
            : "l"(from), "r"(static_cast<u32>(wanted)));
    }
};

template <>
struct StreamWord<16> {
    using Type = uint4;
    static __device__ __forceinline__ void load_constant(uint4& word, const void* from, bool wanted) {
        asm("{\n\t.reg .pred p;\n\tsetp.ne.u32 p, %5, 0;\n\t@p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n\t}"
            : "+r"(word.x), "+r"(word.y), "+r"(word.z), "+r"(word.w)
            : "l"(from), "r"(static_cast<u32>(wanted)));
    }
};

// N neighbouring elements, in as few loads and stores as ALIGNED (see Pack) allows.
template <class T, int N, bool ALIGNED>
struct StreamPack : Pack<T, N, ALIGNED> {
    static constexpr int SIZE = N * sizeof(T);
    static constexpr int BYTES = ALIGNED ? (SIZE < 16 ? SIZE : 16) : static_cast<int>(sizeof(typename Kind<T>::Real));
    static constexpr int WORDS = SIZE / BYTES;
    using Word = typename StreamWord<BYTES>::Type;

    // From memory that nobody writes during the kernel. Undefined unless wanted.
    __device__ __forceinline__ void load_constant(const void* from, bool wanted) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) StreamWord<BYTES>::load_constant(reinterpret_cast<Word*>(this)[i], static_cast<const Word*>(from) + i, wanted);
    }

    __device__ __forceinline__ void load(const void* from) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) reinterpret_cast<Word*>(this)[i] = static_cast<const Word*>(from)[i];
    }

    // From memory that nobody reads again soon.
    __device__ __forceinline__ void load_passing(const void* from) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) reinterpret_cast<Word*>(this)[i] = __ldcs(static_cast<const Word*>(from) + i);
    }

    // PASSING: nobody reads it soon.
    template <bool PASSING>
    __device__ __forceinline__ void store(void* to) const {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) {
            const Word word = reinterpret_cast<const Word*>(this)[i];
            if constexpr (PASSING)
                __stcs(static_cast<Word*>(to) + i, word);
            else
                __stwb(static_cast<Word*>(to) + i, word);  // a plain store would cost the compiler dozens of registers
        }
    }
};
