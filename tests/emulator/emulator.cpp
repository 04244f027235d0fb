// The threads, meetings, barriers and copies of emulator.hpp and ptx.hpp.
#include "ptx.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

namespace emulator {

Thread* current;
u32 grid, tile;
long progress;

namespace {

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

using Copies = std::vector<std::function<void()>>;
using Ranges = std::vector<std::pair<char*, char*>>;

struct StoreGroup {
    Copies copies;
    bool done = false;
};

struct WholeBlock : Block {
    size_t shared_bytes;
    std::vector<Meeting> warps;
    std::map<int, Meeting> named;
    std::map<std::string, std::pair<char*, size_t>> statics;
};

struct Fiber : Thread {
    ucontext_t context;
    bool done;
    std::vector<char> stack;
    Copies copies;                                    // cp.async not yet committed or attached to a barrier
    std::deque<Copies> groups;                        // committed
    Copies stores;                                    // bulk stores not yet committed
    std::deque<std::shared_ptr<StoreGroup>> storing;  // committed
};

ucontext_t scheduler;
u64 random_state;
std::map<u64*, Barrier> barriers;
Copies in_flight;
Ranges readable, writable;
std::set<u64> sectors;  // sectors, by the last launch
void (*body)(void** arguments);
void** body_arguments;

Fiber& fiber() { return *static_cast<Fiber*>(current); }
WholeBlock& block() { return *static_cast<WholeBlock*>(current->block); }

bool is_within(const Ranges& ranges, const void* at, size_t bytes) {
    for (auto& range : ranges)
        if ((char*)at >= range.first && (char*)at + bytes <= range.second) return true;
    return false;
}

void check_shared(const void* to, size_t bytes) {
    if (is_within({{block().shared, block().shared + block().shared_bytes}}, to, bytes)) return;
    for (auto& [name, memory] : block().statics)
        if (is_within({{memory.first, memory.first + memory.second}}, to, bytes)) return;
    fail("a copy lies outside the block's shared memory");
}

void meet(Meeting& meeting, int count, void* argument, void (*action)(void**)) {
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

Barrier& barrier(u64* at) {
    auto found = barriers.find(at);
    if (found == barriers.end()) fail("a barrier was not initialised");
    return found->second;
}

void settle(Barrier& b) {
    if (b.pending || b.bytes) return;
    b.phase ^= 1;
    b.pending = b.arrivals;
    ++progress;
}

void arrive_at(Barrier& b) {
    if (!b.pending) fail("more arrivals than a barrier expects");
    --b.pending;
    settle(b);
}

void land_some() {
    for (size_t many = in_flight.size() / 2 + 1; many && !in_flight.empty(); --many) {
        const size_t i = draw() % in_flight.size();
        auto copy = in_flight[i];
        in_flight.erase(in_flight.begin() + i);
        ++progress;
        copy();
    }
}

void entry() {
    body(body_arguments);
    fiber().done = true;
    yield();
}

// Runs the kernel for all threads of a tile; false on a deadlock.
bool run_tile(u32 blocks_, int threads, size_t shared_bytes, u64 seed) {
    constexpr size_t STACK = 96 << 10;
    grid = blocks_;
    random_state = seed * 2654435761u + 88172645463325252ull;
    barriers.clear();
    in_flight.clear();
    std::vector<WholeBlock> blocks(grid);
    std::vector<Fiber> all(size_t(grid) * threads);
    for (u32 b = 0; b < grid; ++b) {
        blocks[b].index = b;
        blocks[b].threads = threads;
        blocks[b].warps.resize(threads / 32);
        blocks[b].shared_bytes = shared_bytes;
        blocks[b].shared = static_cast<char*>(aligned_alloc(1024, (shared_bytes + 1023) / 1024 * 1024));
        memset(blocks[b].shared, 0xff, shared_bytes);
        for (int t = 0; t < threads; ++t) {
            Fiber& thread = all[size_t(b) * threads + t];
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
            WholeBlock& block = blocks[draw() % started];
            const int first = draw() % warps;
            for (int w = 0; w < warps; ++w)
                for (int lane = 0; lane < 32; ++lane) {
                    Fiber& thread = all[size_t(block.index) * threads + (w + first) % warps * 32 + lane];
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
    for (WholeBlock& block : blocks) {
        free(block.shared);
        for (auto& memory : block.statics) free(memory.second.first);
    }
    return true;
}

}  // namespace

u64 draw() {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

[[noreturn]] void fail(const char* what) {
    fprintf(stderr, "emulator: %s (block %u, thread %u)\n", what, current->block->index, current->index);
    fflush(stderr);
    _exit(3);
}

void yield() { swapcontext(&fiber().context, &scheduler); }

void check_global(const void* from, size_t bytes) {
    if (!is_within(readable, from, bytes)) fail("a load or copy reads outside the operands");
}

void check_result(const void* to, size_t bytes) {
    if (!is_within(writable, to, bytes)) fail("a store writes outside the results");
}

void* static_memory(const char* type, int tag, size_t bytes) {
    auto& memory = block().statics[type + std::to_string(tag)];
    if (!memory.first) {
        memory = {static_cast<char*>(aligned_alloc(128, (bytes + 127) / 128 * 128)), bytes};
        memset(memory.first, 0xff, bytes);
    }
    return memory.first;
}

void meet_warp(void* argument, void (*action)(void**)) { meet(block().warps[current->index / 32], 32, argument, action); }

void meet_block(int id, int threads) {
    meet(block().named[id], threads, nullptr, [](void**) {});
}

void multiply(Product product) {
    meet_warp(&product, [](void** lanes) {
        auto of = [&](int lane) -> Product& { return *static_cast<Product*>(lanes[lane]); };
        for (int lane = 0; lane < 32; ++lane)
            for (int q = 0; q < 2; ++q) {
                const int g = lane / 4, n = 2 * (lane % 4) + q;
                Product& mine = of(lane);
                for (int k = 0; k < 4; ++k) {
                    const double b = *of(4 * n + k).b;
                    mine.c_top[q] = std::fma(*of(4 * g + k).top, b, mine.c_top[q]);
                    if (mine.c_bottom) mine.c_bottom[q] = std::fma(*of(4 * g + k).bottom, b, mine.c_bottom[q]);
                }
            }
    });
}

const char* launch(const Launch& by, const u64* sizes, u64 count, void (*kernel)(void**)) {
    if (count != by.count || !std::equal(sizes, sizes + count, by.sizes))
        return "the arguments' number or sizes are not those of the parameters";
    body = kernel;
    body_arguments = by.arguments;
    sectors.clear();
    readable.clear();
    writable.clear();
    for (u64 i = 0; i < by.n_reads; ++i) readable.push_back({by.reads[2 * i], by.reads[2 * i + 1]});
    for (u64 i = 0; i < by.n_writes; ++i) writable.push_back({by.writes[2 * i], by.writes[2 * i + 1]});
    for (tile = 0; tile < by.tiles; ++tile)
        if (!run_tile(by.blocks, by.threads, by.shared_bytes, by.seed + tile)) return "deadlock: no thread progresses";
    return nullptr;
}

}  // namespace emulator

extern "C" u64 prefetched() { return emulator::sectors.size(); }

// ---- ptx.hpp

using namespace emulator;

void barrier_init(u64* at, u32 arrivals) {
    if (current->index) fail("barriers are initialised by thread 0 alone: see Ring::init");
    barriers[at] = {arrivals, arrivals, 0, 0};
}
void expect(u64* at, u32 bytes) {
    barrier(at).bytes += bytes;
    arrive_at(barrier(at));
}
void arrive(u64* at) { arrive_at(barrier(at)); }
bool has_ended(u64* at, u32 parity) {
    const bool ended = barrier(at).phase != parity;
    if (!ended || draw() % 4 == 0) yield();
    return ended;
}

void bulk_load(void* to, const void* from, u32 bytes, u64* at) {
    if ((uintptr_t(to) | uintptr_t(from) | bytes) % 16 || !bytes) fail("a bulk copy is not in units of 16 bytes");
    check_global(from, bytes);
    check_shared(to, bytes);
    barrier(at);
    in_flight.push_back([=] {
        memcpy(to, from, bytes);
        barriers[at].bytes -= bytes;
        settle(barriers[at]);
    });
}
void box_load(void* to, const TensorMap* map, int row, u64* at) {
    if (uintptr_t(to) % 128) fail("a box is not aligned to 128 bytes");
    if ((map->words[0] | map->words[3] | map->words[4]) % 16) fail("a tensor map is not in units of 16 bytes");
    const u64 bytes = map->words[4], rows = map->words[5];
    if (!rows || rows > 256 || bytes > 2048) fail("a box is too large");
    check_shared(to, rows * bytes);
    barrier(at);
    in_flight.push_back([=] {
        for (u64 i = 0; i < rows; ++i) {
            char* line = static_cast<char*>(to) + i * bytes;
            memset(line, 0, bytes);
            if (row + i >= map->words[2]) continue;
            const char* from = reinterpret_cast<const char*>(map->words[0] + (row + i) * map->words[3]);
            memcpy(line, from, std::min(bytes, map->words[1]));
        }
        barriers[at].bytes -= rows * bytes;
        settle(barriers[at]);
    });
}
void bulk_store(void* to, const void* from, u32 bytes) {
    if ((uintptr_t(to) | uintptr_t(from) | bytes) % 16 || !bytes) fail("a bulk store is not in units of 16 bytes");
    check_result(to, bytes);
    check_shared(from, bytes);
    fiber().stores.push_back([=] { memcpy(to, from, bytes); });
}
void bulk_store_commit() {
    auto group = std::make_shared<StoreGroup>();
    group->copies = std::exchange(fiber().stores, {});
    fiber().storing.push_back(group);
    in_flight.push_back([group] {  // shared memory is read late
        for (auto& copy : group->copies) copy();
        group->done = true;
    });
}
void wait_for_stores(size_t pending) {
    auto& groups = fiber().storing;
    while (groups.size() > pending) {
        while (!groups.front()->done) yield();
        groups.pop_front();
    }
}

void async_copy(void* to, const void* from, u32 bytes, u32 size) {
    if ((uintptr_t(to) | uintptr_t(from)) % size) fail("an asynchronous copy is not aligned");
    if (bytes > size) fail("an asynchronous copy has the wrong size");
    if (bytes) check_global(from, bytes);
    check_shared(to, size);
    auto copy = [=] {
        memset(to, 0, size);
        memcpy(to, from, bytes);
    };
    if (draw() % 3)
        fiber().copies.push_back(copy);
    else
        copy();
}
void async_commit() { fiber().groups.push_back(std::exchange(fiber().copies, {})); }
void wait_for_copies(size_t pending) {
    auto& groups = fiber().groups;
    for (; groups.size() > pending; groups.pop_front())
        for (auto& copy : groups.front()) copy();
    if (draw() % 2) yield();
}
void async_arrive(u64* at) {
    barrier(at);
    in_flight.push_back([at, copies = std::exchange(fiber().copies, {})] {
        for (auto& copy : copies) copy();
        arrive_at(barriers[at]);
    });
}

void prefetch_sector(const void* at) {
    const u64 sector = uintptr_t(at) / 32;
    bool shared = false;
    for (auto& range : writable) shared |= sector >= u64(range.first) / 32 && sector <= (u64(range.second) - 1) / 32;
    if (!shared) fail("a prefetched sector holds nothing of the results");
    sectors.insert(sector);
}
