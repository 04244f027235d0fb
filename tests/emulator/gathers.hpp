// The emulator for kernels that gather: shuffles and votes of any lane, a second dimension of blocks, and a stand-in for
// the part of stream.cuh that is PTX. Copies of a group land at once or when they are waited for, whatever reads too early
// sees NaN; loads and stores are checked for alignment and bounds.
#pragma once
#include "emulator.hpp"

#include <deque>

struct alignas(8) uint2 {
    u32 x, y;
};
struct alignas(16) uint4 {
    u32 x, y, z, w;
};

namespace emulator {

inline u32 tile;
inline std::vector<std::pair<char*, char*>> writable;

struct Copies {
    std::vector<std::function<void()>> open;
    std::deque<std::vector<std::function<void()>>> groups;
};
inline std::map<Thread*, Copies> copies;

inline void check_load(const void* from, size_t bytes) {
    if (uintptr_t(from) % bytes) fail("a load is not aligned");
    check_global(from, bytes);
}

template <class T>
T exchange(T value, int from) {
    struct Offer {
        T value;
        int from;
        T taken;
    } offer{value, from & 31, value};
    meet_warp(&offer, [](void** lanes) {
        for (int lane = 0; lane < 32; ++lane) {
            Offer& mine = *static_cast<Offer*>(lanes[lane]);
            mine.taken = static_cast<Offer*>(lanes[mine.from])->value;
        }
    });
    return offer.taken;
}

// Blocks one after another and tile by tile: they do not talk.
inline int launch_tiles(u32 blocks, u32 tiles, int threads, size_t shared_bytes, u64 seed, std::function<void()> kernel) {
    for (tile = 0; tile < tiles; ++tile)
        if (int status = launch(blocks, threads, shared_bytes, seed + tile, kernel)) return status;
    return 0;
}

}  // namespace emulator

inline u32 __umulhi(u32 a, u32 b) { return static_cast<u32>(u64(a) * b >> 32); }

#undef blockIdx
#define blockIdx (Dim{emulator::current->block->index, emulator::tile, 0})
#define __shfl_sync(mask, value, from) emulator::exchange(value, from)
#define __shfl_down_sync(mask, value, lanes) emulator::exchange(value, (threadIdx.x % 32 + (lanes)) % 32)

inline u32 __ballot_sync(u32, bool vote) {
    u32 votes = vote;
    emulator::meet_warp(&votes, [](void** lanes) {
        u32 all = 0;
        for (int lane = 0; lane < 32; ++lane) all |= *static_cast<u32*>(lanes[lane]) << lane;
        for (int lane = 0; lane < 32; ++lane) *static_cast<u32*>(lanes[lane]) = all;
    });
    return votes;
}
inline int atomicAdd(int* at, int value) {
    ++emulator::progress;
    return std::exchange(*at, *at + value);
}
inline int atomicCAS(int* at, int expected, int value) {
    if (emulator::draw() % 4 == 0) emulator::yield();
    return std::exchange(*at, *at == expected ? value : *at);
}
inline int __popc(u32 bits) { return __builtin_popcount(bits); }

template <class T>
T __ldg(const T* from) {
    emulator::check_load(from, sizeof(T));
    return *from;
}
template <class T>
T __ldcs(const T* from) {
    return __ldg(from);
}
template <class T>
void __stwb(T* to, T value) {
    if (uintptr_t(to) % sizeof(T)) emulator::fail("a store is not aligned");
    for (auto& range : emulator::writable)
        if ((char*)to >= range.first && (char*)(to + 1) <= range.second) {
            *to = value;
            return;
        }
    emulator::fail("a store outside the result");
}
template <class T>
void __stcs(T* to, T value) {
    __stwb(to, value);
}

// ---- stream.cuh

inline void stream_copy(void* shared, const void* global, u32 bytes) {
    if ((uintptr_t(shared) | uintptr_t(global)) % 16 || bytes > 16) emulator::fail("a copy is not aligned");
    emulator::check_global(global, bytes);
    auto copy = [=] {
        memset(shared, 0, 16);
        memcpy(shared, global, bytes);
    };
    if (emulator::draw() % 3)
        emulator::copies[emulator::current].open.push_back(copy);
    else
        copy();
}
inline void shared_copy(void* shared, const void* global) { stream_copy(shared, global, 16); }
inline void stream_commit() {
    auto& mine = emulator::copies[emulator::current];
    mine.groups.push_back(std::move(mine.open));
    mine.open.clear();
}
template <int PENDING>
void stream_wait() {
    auto& groups = emulator::copies[emulator::current].groups;
    for (; int(groups.size()) > PENDING; groups.pop_front())
        for (auto& copy : groups.front()) copy();
    if (emulator::draw() % 2) emulator::yield();
}
template <class Index>
const char* row_address(const char* base, Index row, u32 pitch) {
    return base + i64(row) * pitch;
}
template <int BYTES>
struct StreamWord {
    using Type = std::conditional_t<BYTES == 16, uint4, std::conditional_t<BYTES == 8, uint2, u32>>;
    static void load_constant(Type& word, const void* from, bool wanted) {
        memset(&word, 0xff, BYTES);
        if (!wanted) return;
        emulator::check_load(from, BYTES);
        memcpy(&word, from, BYTES);
    }
};
