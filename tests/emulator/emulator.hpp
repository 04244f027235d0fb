// Runs a CUDA kernel of blockvec on the host, thread by thread, so that its indices, barriers and tails can be tested without a GPU.
// cuda.hpp declares what CUDA C++ has built in, ptx.hpp takes the place of common/ptx.cuh.
//
//   threads    one fiber each; blocks start one after another and run interleaved, in an order drawn from a seed
//   warps      meet in tensor products, shuffles and __syncwarp(), as whole warps
//   copies     land late and in any order: what is read too early is NaN
//   memory     shared memory starts as NaN; copies, cached loads and marked stores are checked for alignment and bounds
//   deadlock   no thread progresses for a long time: an error
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <ucontext.h>
#include <unistd.h>
#include <utility>
#include <vector>

using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

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
    std::map<std::string, std::pair<char*, size_t>> statics;
};

using Copies = std::vector<std::function<void()>>;

struct StoreGroup {
    Copies copies;
    bool done = false;
};

struct Thread {
    ucontext_t context;
    Block* block;
    u32 index;
    bool done;
    std::vector<char> stack;
    Copies copies;                                    // cp.async not yet committed or attached to a barrier
    std::deque<Copies> groups;                        // committed
    Copies stores;                                    // bulk stores not yet committed
    std::deque<std::shared_ptr<StoreGroup>> storing;  // committed
};

inline Thread* current;
inline ucontext_t scheduler;
inline u32 grid, tile;  // blockIdx.y: one after another
inline u64 random_state;
inline long progress;
inline std::map<u64*, Barrier> barriers;
inline Copies in_flight;
inline std::vector<std::pair<char*, char*>> readable, writable;
inline std::set<u64> prefetched;  // sectors, by the last launch
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

inline bool is_within(const std::vector<std::pair<char*, char*>>& ranges, const void* at, size_t bytes) {
    for (auto& range : ranges)
        if ((char*)at >= range.first && (char*)at + bytes <= range.second) return true;
    return false;
}

inline void check_global(const void* from, size_t bytes) {
    if (!is_within(readable, from, bytes)) fail("a load or copy reads outside the operands");
}

inline void check_result(const void* to, size_t bytes) {
    if (!is_within(writable, to, bytes)) fail("a store writes outside the results");
}

inline void check_shared(const void* to, size_t bytes) {
    Block* block = current->block;
    if (is_within({{block->shared, block->shared + block->shared_bytes}}, to, bytes)) return;
    for (auto& [name, memory] : block->statics)
        if (is_within({{memory.first, memory.first + memory.second}}, to, bytes)) return;
    fail("a copy lies outside the block's shared memory");
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
    auto& memory = current->block->statics[typeid(T).name() + std::to_string(TAG)];
    if (!memory.first) {
        memory = {static_cast<char*>(aligned_alloc(128, (sizeof(T) + 127) / 128 * 128)), sizeof(T)};
        memset(memory.first, 0xff, sizeof(T));
    }
    return *reinterpret_cast<T*>(memory.first);
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

// Runs `kernel` for all threads; false on a deadlock.
inline bool launch(u32 blocks_, int threads, size_t shared_bytes, u64 seed, std::function<void()> kernel) {
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
        if (idle > 3000) return false;
    }
    for (Block& block : blocks) {
        free(block.shared);
        for (auto& memory : block.statics) free(memory.second.first);
    }
    return true;
}

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

template <class... P, size_t... I>
void call(void (*kernel)(P...), void** arguments, std::index_sequence<I...>) {
    kernel(*static_cast<P*>(arguments[I])...);
}

// Returns why the launch is wrong or failed, or nullptr.
template <class... P>
const char* run(void (*kernel)(P...), const Launch& by) {
    const std::vector<u64> wanted{sizeof(P)...};
    if (wanted != std::vector<u64>(by.sizes, by.sizes + by.count)) return "the arguments' number or sizes are not those of the parameters";
    readable.clear();
    writable.clear();
    for (u64 i = 0; i < by.n_reads; ++i) readable.push_back({by.reads[2 * i], by.reads[2 * i + 1]});
    for (u64 i = 0; i < by.n_writes; ++i) writable.push_back({by.writes[2 * i], by.writes[2 * i + 1]});
    for (tile = 0; tile < by.tiles; ++tile)
        if (!launch(by.blocks, by.threads, by.shared_bytes, by.seed + tile, [=] { call(kernel, by.arguments, std::index_sequence_for<P...>()); }))
            return "deadlock: no thread progresses";
    return nullptr;
}

}  // namespace emulator
