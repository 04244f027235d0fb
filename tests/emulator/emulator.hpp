// Runs a CUDA kernel of blockvec on the host, thread by thread, so that its indices, barriers and tails can be tested without a GPU.
// cuda.hpp declares what CUDA C++ has built in, ptx.hpp takes the place of common/ptx.cuh; what they need is in emulator.cpp,
// which is compiled once and linked to every kernel.
//
//   threads    one fiber each; blocks start one after another and run interleaved, in an order drawn from a seed
//   warps      meet in tensor products, shuffles and __syncwarp(), as whole warps
//   copies     land late and in any order: what is read too early is NaN
//   memory     shared memory starts as NaN; copies, cached loads and marked stores are checked for alignment and bounds
//   deadlock   no thread progresses for a long time: an error
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <typeinfo>
#include <utility>

using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

namespace emulator {

struct Block {
    u32 index;
    int threads;
    char* shared;
};

struct Thread {
    Block* block;
    u32 index;
};

extern Thread* current;
extern u32 grid, tile;  // blockIdx.y: one after another
extern long progress;

u64 draw();
[[noreturn]] void fail(const char* what);
void yield();
void check_global(const void* from, size_t bytes);
void check_result(const void* to, size_t bytes);
void* static_memory(const char* type, int tag, size_t bytes);
// The last thread of a warp to come runs the action, on what all lanes have brought.
void meet_warp(void* argument, void (*action)(void** lanes));
void meet_block(int id, int threads);

template <class T, int TAG>
T& static_shared() {
    return *static_cast<T*>(static_memory(typeid(T).name(), TAG, sizeof(T)));
}

// The value of another lane.
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

struct Product {
    double *c_top, *c_bottom;
    const double *top, *bottom, *b;
};
void multiply(Product product);

// One launch, as host.py describes it.
struct Launch {
    u32 blocks, tiles, threads;
    u64 shared_bytes, seed;
    void** arguments;       // pointers to the values
    const u64* sizes;       // of the values in bytes
    u64 count;              // of arguments
    char **reads, **writes; // pairs of bounds
    u64 n_reads, n_writes;  // pairs
};

// Runs a kernel for all threads; returns why the launch is wrong or failed, or nullptr.
const char* launch(const Launch& by, const u64* sizes, u64 count, void (*kernel)(void** arguments));

template <auto kernel, class... P, size_t... I>
void call(void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<P*>(arguments[I])...);
}

template <auto kernel, class... P>
const char* run(void (*)(P...), const Launch& by) {
    const u64 sizes[] = {sizeof(P)...};
    return launch(by, sizes, sizeof...(P),
                  [](void** arguments) { call<kernel, P...>(arguments, std::index_sequence_for<P...>()); });
}

}  // namespace emulator
