// The emulator for kernels that stage rows by copies of single threads: a stand-in for copies.cuh, plain multiply-adds, and
// shuffles of doubles. Copies land when they are waited for; until then their place holds what was there before.
#pragma once
#include "emulator.hpp"

#include <deque>

struct alignas(8) uint2 {
    u32 x, y;
};
struct alignas(16) uint4 {
    u32 x, y, z, w;
};

inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }

template <class T>
T __ldg(const T* from) {
    return *from;
}

inline double __shfl_xor_sync(u32, double value, int mask) {
    struct Offer {
        double value;
        int mask;
        double taken;
    } offer{value, mask, value};
    emulator::meet_warp(&offer, [](void** lanes) {
        for (int lane = 0; lane < 32; ++lane) {
            Offer& mine = *static_cast<Offer*>(lanes[lane]);
            mine.taken = static_cast<Offer*>(lanes[lane ^ mine.mask])->value;
        }
    });
    return offer.taken;
}

inline double atomicAdd(double* at, double value) {
    ++emulator::progress;
    return std::exchange(*at, *at + value);
}

// ---- copies.cuh

namespace emulator {
struct Copies {
    std::vector<std::function<void()>> open;
    std::deque<std::vector<std::function<void()>>> groups;
};
inline std::map<Thread*, Copies> copies;
}  // namespace emulator

template <int SIZE>
void copy_piece(char* to, const char* from, int bytes) {
    if (uintptr_t(to) % SIZE || (bytes && uintptr_t(from) % SIZE)) emulator::fail("a copy is not aligned");
    if (bytes < 0 || bytes > SIZE) emulator::fail("a copy has the wrong size");
    if (bytes) emulator::check_global(from, bytes);
    emulator::check_shared(to, SIZE);
    emulator::copies[emulator::current].open.push_back([=] {
        memset(to, 0, SIZE);
        memcpy(to, from, bytes);
    });
}
inline void copies_commit() {
    auto& mine = emulator::copies[emulator::current];
    mine.groups.push_back(std::exchange(mine.open, {}));
}
template <int PENDING>
void copies_wait() {
    auto& groups = emulator::copies[emulator::current].groups;
    for (; int(groups.size()) > PENDING; groups.pop_front())
        for (auto& copy : groups.front()) copy();
    if (emulator::draw() % 2) emulator::yield();
}
template <int WARPS>
void sync_team(int team) {
    if (WARPS == 1)
        __syncwarp();
    else
        emulator::meet_block(team + 2, 32 * WARPS);
}
