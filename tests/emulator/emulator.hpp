// Runs a CUDA kernel of blockvec on the host, thread by thread, so that its indices, barriers and tails can be tested
// without a GPU. It stands in for pipeline.cuh and mma.cuh, the two files that hold PTX:
//
//   threads    one fiber each; blocks start one after another and run interleaved, in an order drawn from a seed
//   warps      meet in tensor products, shuffles and __syncwarp(), as whole warps
//   copies     land late and in any order: what is read too early is NaN
//   memory     shared memory starts as NaN; copies are checked for alignment and bounds
//   deadlock   no thread moves for a long time: an error
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <ucontext.h>
#include <unistd.h>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __CUDA_ARCH__ 900

using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

struct Dim {
    unsigned x, y, z;
};
struct alignas(16) double2 {
    double x, y;
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

namespace emulator {

struct Meeting {
    int count = 0;
    unsigned turn = 0;
    void* slots[32];
};

struct Barrier {
    u32 pending, arrivals;
    long bytes;
    u32 phase;
};

struct Block {
    u32 index;
    int threads;
    char* shared;
    size_t shared_bytes;
    std::vector<Meeting> warps;
    std::map<int, Meeting> named;
    std::map<std::string, void*> statics;
};

struct Thread {
    ucontext_t context;
    Block* block;
    u32 index;
    bool done;
    std::vector<char> stack;
    std::vector<std::function<void()>> copies;  // cp.async not yet attached to a barrier
};

inline Thread* current;
inline ucontext_t scheduler;
inline u32 grid;
inline u64 random_state;
inline long progress;
inline std::map<u64*, Barrier> barriers;
inline std::vector<std::function<void()>> in_flight;
inline std::vector<std::pair<const char*, const char*>> readable;
inline std::function<void()> body;

inline u64 draw() {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

[[noreturn]] inline void fail(const char* what) {
    fprintf(stderr, "emulator: %s (block %u, thread %u)\n", what, current->block->index, current->index);
    fflush(stderr);
    _exit(3);
}

inline void yield() { swapcontext(&current->context, &scheduler); }

inline void check_global(const void* from, size_t bytes) {
    for (auto& range : readable)
        if ((const char*)from >= range.first && (const char*)from + bytes <= range.second) return;
    fail("a copy reads outside its operand");
}

inline void check_shared(const void* to, size_t bytes) {
    Block* block = current->block;
    if ((char*)to < block->shared || (char*)to + bytes > block->shared + block->shared_bytes)
        fail("a copy writes outside the block's shared memory");
}

template <class Action>
void meet(Meeting& meeting, int count, void* argument, Action action) {
    const unsigned turn = meeting.turn;
    if (argument) meeting.slots[current->index % 32] = argument;
    if (++meeting.count == count) {
        action(meeting.slots);
        meeting.count = 0;
        ++meeting.turn;
        ++progress;
    } else {
        while (meeting.turn == turn) yield();
    }
}

template <class Action>
void meet_warp(void* argument, Action action) {
    meet(current->block->warps[current->index / 32], 32, argument, action);
}

inline void meet_block(int id, int threads) {
    meet(current->block->named[id], threads, nullptr, [](void**) {});
}

template <class T, int TAG>
T& static_shared() {
    void*& memory = current->block->statics[typeid(T).name() + std::to_string(TAG)];
    if (!memory) memory = memset(malloc(sizeof(T)), 0xa5, sizeof(T));
    return *static_cast<T*>(memory);
}

inline Barrier& barrier(u64* at) {
    auto found = barriers.find(at);
    if (found == barriers.end()) fail("a barrier was not initialised");
    return found->second;
}

inline void settle(Barrier& b) {
    if (b.pending || b.bytes) return;
    b.phase ^= 1;
    b.pending = b.arrivals;
    ++progress;
}

inline void arrive_at(Barrier& b) {
    if (!b.pending) fail("more arrivals than a barrier expects");
    --b.pending;
    settle(b);
}

inline void land_some() {
    for (size_t many = in_flight.size() / 2 + 1; many && !in_flight.empty(); --many) {
        const size_t i = draw() % in_flight.size();
        auto copy = in_flight[i];
        in_flight.erase(in_flight.begin() + i);
        ++progress;
        copy();
    }
}

struct Product {
    double *c_top, *c_bottom;
    const double *top, *bottom, *b;
};

template <int SETS>
void multiply(Product product) {
    meet_warp(&product, [](void** lanes) {
        auto of = [&](int lane) -> Product& { return *static_cast<Product*>(lanes[lane]); };
        for (int lane = 0; lane < 32; ++lane)
            for (int q = 0; q < 2; ++q) {
                const int g = lane / 4, n = 2 * (lane % 4) + q;
                Product& mine = of(lane);
                for (int u = 0; u < SETS; ++u)
                    for (int k = 0; k < 4; ++k) {
                        const double b = of(4 * n + k).b[u];
                        mine.c_top[q] = std::fma(of(4 * g + k).top[u], b, mine.c_top[q]);
                        if (mine.c_bottom) mine.c_bottom[q] = std::fma(of(4 * g + k).bottom[u], b, mine.c_bottom[q]);
                    }
            }
    });
}

inline void entry() {
    body();
    current->done = true;
    swapcontext(&current->context, &scheduler);
}

// Runs `kernel` for all threads; 0, or 4 on a deadlock.
inline int launch(u32 blocks_, int threads, size_t shared_bytes, u64 seed, std::function<void()> kernel) {
    constexpr size_t STACK = 96 << 10;
    grid = blocks_;
    body = kernel;
    random_state = seed * 2654435761u + 88172645463325252ull;
    barriers.clear();
    in_flight.clear();
    std::vector<Block> blocks(grid);
    std::vector<Thread> all(size_t(grid) * threads);
    for (u32 b = 0; b < grid; ++b) {
        blocks[b].index = b;
        blocks[b].threads = threads;
        blocks[b].warps.resize(threads / 32);
        blocks[b].shared_bytes = shared_bytes;
        blocks[b].shared = static_cast<char*>(aligned_alloc(1024, (shared_bytes + 1023) / 1024 * 1024));
        memset(blocks[b].shared, 0xff, shared_bytes);
        for (int t = 0; t < threads; ++t) {
            Thread& thread = all[size_t(b) * threads + t];
            thread.block = &blocks[b];
            thread.index = t;
            thread.done = false;
            thread.stack.resize(STACK);
            getcontext(&thread.context);
            thread.context.uc_stack.ss_sp = thread.stack.data();
            thread.context.uc_stack.ss_size = STACK;
            thread.context.uc_link = nullptr;
            makecontext(&thread.context, entry, 0);
        }
    }
    size_t left = all.size();
    const int warps = threads / 32;
    long idle = 0;
    for (long round = 1; left; ++round) {
        const long before = progress;
        const size_t left_before = left;
        const u32 started = std::min<long>(grid, 1 + round / 3);
        for (u32 i = 0; i < started; ++i) {
            Block& block = blocks[draw() % started];
            const int first = draw() % warps;
            for (int w = 0; w < warps; ++w)
                for (int lane = 0; lane < 32; ++lane) {
                    Thread& thread = all[size_t(block.index) * threads + (w + first) % warps * 32 + lane];
                    if (thread.done) continue;
                    current = &thread;
                    swapcontext(&scheduler, &thread.context);
                    left -= thread.done;
                }
        }
        land_some();
        idle = progress == before && left == left_before ? idle + 1 : 0;
        if (idle > 3000) return 4;
    }
    for (Block& block : blocks) {
        free(block.shared);
        for (auto& memory : block.statics) free(memory.second);
    }
    return 0;
}

}  // namespace emulator

// ---- CUDA

#define threadIdx (Dim{emulator::current->index, 0, 0})
#define blockIdx (Dim{emulator::current->block->index, 0, 0})
#define gridDim (Dim{emulator::grid, 1, 1})

inline void __syncthreads() { emulator::meet_block(0, emulator::current->block->threads); }
inline void __syncwarp() {
    emulator::meet_warp(nullptr, [](void**) {});
}
inline u32 __shfl_sync(u32, u32 value, int source) {
    emulator::meet_warp(&value, [source](void** lanes) {
        const u32 chosen = *static_cast<u32*>(lanes[source]);
        for (int lane = 0; lane < 32; ++lane) *static_cast<u32*>(lanes[lane]) = chosen;
    });
    return value;
}
inline void __threadfence() {}
inline u32 atomicAdd(u32* at, u32 value) {
    ++emulator::progress;
    return std::exchange(*at, *at + value);
}
inline u64 atomicAdd(u64* at, u64 value) {
    ++emulator::progress;
    return std::exchange(*at, *at + value);
}
inline double __ldcg(const double* at) { return *at; }
inline void __stcg(double* at, double value) { *at = value; }
inline double __longlong_as_double(long long bits) {
    double x;
    memcpy(&x, &bits, 8);
    return x;
}
inline long long __double_as_longlong(double x) {
    long long bits;
    memcpy(&bits, &x, 8);
    return bits;
}
inline u32 __double2hiint(double x) { return u32(u64(__double_as_longlong(x)) >> 32); }
inline u32 __double2loint(double x) { return u32(__double_as_longlong(x)); }
inline double __hiloint2double(u32 high, u32 low) { return __longlong_as_double(i64(u64(high) << 32 | low)); }

// ---- pipeline.cuh

inline void barrier_init(u64* at, u32 arrivals) {
    if (emulator::current->index) emulator::fail("barriers are initialised by thread 0 alone: see Ring::init");
    emulator::barriers[at] = {arrivals, arrivals, 0, 0};
}
inline void barrier_init_fence() {}
inline void expect(u64* at, u32 bytes) {
    emulator::barrier(at).bytes += bytes;
    emulator::arrive_at(emulator::barrier(at));
}
inline void arrive(u64* at) { emulator::arrive_at(emulator::barrier(at)); }
inline void wait(u64* at, u32 parity) {
    while (emulator::barrier(at).phase == parity) emulator::yield();
    if (emulator::draw() % 4 == 0) emulator::yield();
}
inline bool elect_one() {
    __syncwarp();
    return threadIdx.x % 32 == 0;
}
inline void bulk_load(void* to, const void* from, u32 bytes, u64* at) {
    if ((uintptr_t(to) | uintptr_t(from) | bytes) % 16 || !bytes) emulator::fail("a bulk copy is not in units of 16 bytes");
    emulator::check_global(from, bytes);
    emulator::check_shared(to, bytes);
    emulator::barrier(at);
    emulator::in_flight.push_back([=] {
        memcpy(to, from, bytes);
        emulator::barriers[at].bytes -= bytes;
        emulator::settle(emulator::barriers[at]);
    });
}
template <int SIZE>
void async_copy(void* to, const void* from, u32 bytes) {
    if ((uintptr_t(to) | uintptr_t(from)) % SIZE || bytes > SIZE) emulator::fail("an asynchronous copy is not aligned");
    if (bytes) emulator::check_global(from, bytes);
    emulator::check_shared(to, SIZE);
    emulator::current->copies.push_back([=] {
        memset(to, 0, SIZE);
        memcpy(to, from, bytes);
    });
}
inline void async_arrive(u64* at) {
    emulator::barrier(at);
    emulator::in_flight.push_back([at, copies = std::exchange(emulator::current->copies, {})] {
        for (auto& copy : copies) copy();
        emulator::arrive_at(emulator::barriers[at]);
    });
}
inline u32 count_up(u32* counter, u32 last) { return std::exchange(*counter, *counter >= last ? 0 : *counter + 1); }
template <int ID, int THREADS>
void sync_warps() {
    emulator::meet_block(ID, THREADS);
}
inline u32 load_acquire(const u32* at) {
    emulator::yield();
    return *static_cast<const volatile u32*>(at);
}
inline u64 load_relaxed(const u64* at) {
    emulator::yield();
    return *static_cast<const volatile u64*>(at);
}
inline void store_flagged(double* at, double value, u64 flag) {
    ++emulator::progress;
    at[0] = value;
    memcpy(at + 1, &flag, 8);
}
inline void load_flagged(double& value, u64& flag, const double* at) {
    emulator::yield();
    value = at[0];
    memcpy(&flag, at + 1, 8);
}

// ---- mma.cuh

inline void mma_m8n8k4(double (&c)[2], double a, double b) { emulator::multiply<1>({c, nullptr, &a, nullptr, &b}); }
template <int SETS>
void mma_m16n8(double (&c_top)[2], double (&c_bottom)[2], const double (&top)[SETS], const double (&bottom)[SETS],
               const double (&b)[SETS]) {
    emulator::multiply<SETS>({c_top, c_bottom, top, bottom, b});
}
inline double flip_sign(double x) { return -x; }
