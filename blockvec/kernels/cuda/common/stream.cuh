// Loads and stores with cache hints, for data that are read or written once (sm_80).
//
// A matrix that is read once and a block that is written once should not evict from L2 what is read again, so their lines are marked to be
// evicted first.
#pragma once
#include "common/element.cuh"
#include "common/word.cuh"

// base + row pitch, in one instruction where the row is of 32 bits.
template <class Index>
__device__ __forceinline__ const char* row_address(const char* base, Index row, u32 pitch) {
    if constexpr (sizeof(Index) == 4)
        return address_of(base, static_cast<u32>(row), pitch);
    else
        return base + row * pitch;
}

// N neighbouring elements, in as few loads and stores as ALIGNED (see Pack) allows.
template <class T, int N, bool ALIGNED>
struct StreamPack : Pack<T, N, ALIGNED> {
    static constexpr int SIZE = N * sizeof(T);
    static constexpr int BYTES = ALIGNED ? (SIZE < 16 ? SIZE : 16) : static_cast<int>(sizeof(typename Kind<T>::Real));
    static constexpr int WORDS = SIZE / BYTES;
    using Word = WordOf<BYTES>;

    // From memory that is constant during the kernel. Undefined unless wanted.
    __device__ __forceinline__ void load_constant(const void* from, bool wanted) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) load_constant_if(wanted, reinterpret_cast<Word*>(this)[i], static_cast<const Word*>(from) + i);
    }

    __device__ __forceinline__ void load(const void* from) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) reinterpret_cast<Word*>(this)[i] = static_cast<const Word*>(from)[i];
    }

    // From memory that is not read again soon.
    __device__ __forceinline__ void load_passing(const void* from) {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) reinterpret_cast<Word*>(this)[i] = __ldcs(static_cast<const Word*>(from) + i);
    }

    // PASSING: the data are not read again soon.
    template <bool PASSING>
    __device__ __forceinline__ void store(void* to) const {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) {
            const Word word = reinterpret_cast<const Word*>(this)[i];
            if constexpr (PASSING)
                __stcs(static_cast<Word*>(to) + i, word);
            else
                __stwb(static_cast<Word*>(to) + i, word);  // with a plain store the compiler takes dozens of registers more
        }
    }
};
