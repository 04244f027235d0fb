// What CUDA C++ has built in, for the emulator.
#pragma once
#include "emulator.hpp"

#define __device__
#define __global__
#define __forceinline__ inline
#define __restrict__
#define __grid_constant__
#define __launch_bounds__(...)
#define __CUDA_ARCH__ 900

struct Dim {
    unsigned x, y, z;
};
struct alignas(16) double2 {
    double x, y;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    u32 x, y;
};
struct alignas(16) uint4 {
    u32 x, y, z, w;
};
inline double2 make_double2(double x, double y) { return {x, y}; }
template <class A, class B>
std::common_type_t<A, B> max(A a, B b) {
    return a > b ? std::common_type_t<A, B>(a) : std::common_type_t<A, B>(b);
}
template <class A, class B>
std::common_type_t<A, B> min(A a, B b) {
    return a < b ? std::common_type_t<A, B>(a) : std::common_type_t<A, B>(b);
}

#define threadIdx (Dim{emulator::current->index, 0, 0})
#define blockIdx (Dim{emulator::current->block->index, emulator::tile, 0})
#define gridDim (Dim{emulator::grid, 1, 1})

// ---- warps and blocks

inline void __syncthreads() { emulator::meet_block(0, emulator::current->block->threads); }
inline void __syncwarp() {
    emulator::meet_warp(nullptr, [](void**) {});
}
inline void __threadfence() {}
template <class T>
T __shfl_sync(u32, T value, int from) {
    return emulator::exchange(value, from);
}
template <class T>
T __shfl_up_sync(u32, T value, int lanes) {
    const int lane = threadIdx.x % 32;
    return emulator::exchange(value, lane >= lanes ? lane - lanes : lane);
}
template <class T>
T __shfl_down_sync(u32, T value, int lanes) {
    const int lane = threadIdx.x % 32;
    return emulator::exchange(value, lane + lanes < 32 ? lane + lanes : lane);
}
template <class T>
T __shfl_xor_sync(u32, T value, int mask) {
    return emulator::exchange(value, (threadIdx.x % 32) ^ mask);
}
inline u32 __ballot_sync(u32, bool vote) {
    u32 votes = vote;
    emulator::meet_warp(&votes, [](void** lanes) {
        u32 all = 0;
        for (int lane = 0; lane < 32; ++lane) all |= *static_cast<u32*>(lanes[lane]) << lane;
        for (int lane = 0; lane < 32; ++lane) *static_cast<u32*>(lanes[lane]) = all;
    });
    return votes;
}

// ---- memory

template <class T>
T atomicAdd(T* at, std::common_type_t<T> value) {
    ++emulator::progress;
    return std::exchange(*at, *at + value);
}
inline int atomicCAS(int* at, int expected, int value) {
    if (emulator::draw() % 4 == 0) emulator::yield();
    return std::exchange(*at, *at == expected ? value : *at);
}
template <class T>
T __ldg(const T* from) {
    if (uintptr_t(from) % sizeof(T)) emulator::fail("a load is not aligned");
    emulator::check_global(from, sizeof(T));
    return *from;
}
template <class T>
T __ldcs(const T* from) {
    return __ldg(from);
}
template <class T>
void __stwb(T* to, T value) {
    if (uintptr_t(to) % sizeof(T)) emulator::fail("a store is not aligned");
    emulator::check_result(to, sizeof(T));
    *to = value;
}
template <class T>
void __stcs(T* to, T value) {
    __stwb(to, value);
}
// Of the workspace and of buffers, which no bounds are given for.
template <class T>
T __ldcg(const T* at) {
    return *at;
}
template <class T>
void __stcg(T* at, T value) {
    *at = value;
}

// ---- arithmetic

inline float __fmaf_rn(float a, float b, float c) { return std::fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline int __popc(u32 bits) { return __builtin_popcount(bits); }
inline int __ffs(u32 bits) { return __builtin_ffs(static_cast<int>(bits)); }
inline u32 __umulhi(u32 a, u32 b) { return static_cast<u32>(u64(a) * b >> 32); }
inline double __longlong_as_double(i64 bits) {
    double x;
    memcpy(&x, &bits, 8);
    return x;
}
inline i64 __double_as_longlong(double x) {
    i64 bits;
    memcpy(&bits, &x, 8);
    return bits;
}
inline u32 __double2hiint(double x) { return u32(u64(__double_as_longlong(x)) >> 32); }
inline u32 __double2loint(double x) { return u32(__double_as_longlong(x)); }
inline double __hiloint2double(u32 high, u32 low) { return __longlong_as_double(i64(u64(high) << 32 | low)); }
