// Takes the place of blockvec/kernels/cuda/common/ptx.cuh on the host: the same functions, which check what they are given.
#pragma once
#include "cuda.hpp"

// ---- shared memory

#define SHARED(TYPE, NAME) auto& NAME = emulator::static_shared<TYPE, __COUNTER__>()
#define SHARED_ARRAY(TYPE, NAME, EXTENTS)  \
    using Type_of_##NAME = TYPE EXTENTS;   \
    auto& NAME = emulator::static_shared<Type_of_##NAME, __COUNTER__>()
#define DYNAMIC_SHARED(NAME, ALIGNMENT) char* NAME = emulator::current->block->shared

inline u32 count_up(u32* counter, u32 last) { return std::exchange(*counter, *counter >= last ? 0 : *counter + 1); }

// ---- barriers of threads

template <int THREADS>
void named_barrier(int id) {
    emulator::meet_block(id, THREADS);
}
inline bool elect_one() {
    __syncwarp();
    return threadIdx.x % 32 == 0;
}

// ---- mbarriers

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
inline bool has_ended(u64* at, u32 parity) {
    const bool ended = emulator::barrier(at).phase != parity;
    if (!ended || emulator::draw() % 4 == 0) emulator::yield();
    return ended;
}

// ---- bulk copies

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
// The words of a map here: address, bytes of a row, rows, bytes between rows; bytes of a row of the box, its rows.
struct TensorMap {
    u64 words[16];
};
inline void box_load(void* to, const TensorMap* map, int row, u64* at) {
    if (uintptr_t(to) % 128) emulator::fail("a box is not aligned to 128 bytes");
    if ((map->words[0] | map->words[3] | map->words[4]) % 16) emulator::fail("a tensor map is not in units of 16 bytes");
    const u64 bytes = map->words[4], rows = map->words[5];
    if (!rows || rows > 256 || bytes > 2048) emulator::fail("a box is too large");
    emulator::check_shared(to, rows * bytes);
    emulator::barrier(at);
    emulator::in_flight.push_back([=] {
        for (u64 i = 0; i < rows; ++i) {
            char* line = static_cast<char*>(to) + i * bytes;
            memset(line, 0, bytes);
            if (row + i >= map->words[2]) continue;
            const char* from = reinterpret_cast<const char*>(map->words[0] + (row + i) * map->words[3]);
            memcpy(line, from, std::min(bytes, map->words[1]));
        }
        emulator::barriers[at].bytes -= rows * bytes;
        emulator::settle(emulator::barriers[at]);
    });
}
inline void bulk_store(void* to, const void* from, u32 bytes) {
    if ((uintptr_t(to) | uintptr_t(from) | bytes) % 16 || !bytes) emulator::fail("a bulk store is not in units of 16 bytes");
    emulator::check_result(to, bytes);
    emulator::check_shared(from, bytes);
    emulator::current->stores.push_back([=] { memcpy(to, from, bytes); });
}
inline void bulk_store_fence() {}
inline void bulk_store_commit() {
    auto group = std::make_shared<emulator::StoreGroup>();
    group->copies = std::exchange(emulator::current->stores, {});
    emulator::current->storing.push_back(group);
    emulator::in_flight.push_back([group] {  // shared memory is read late
        for (auto& copy : group->copies) copy();
        group->done = true;
    });
}
template <int PENDING>
void bulk_store_wait_read() {
    auto& groups = emulator::current->storing;
    while (groups.size() > PENDING) {
        while (!groups.front()->done) emulator::yield();
        groups.pop_front();
    }
}
template <int PENDING>
void bulk_store_wait() {
    bulk_store_wait_read<PENDING>();
}

// ---- asynchronous copies by threads: land at once, or when they are waited for

template <int SIZE>
void async_copy(void* to, const void* from, u32 bytes) {
    if ((uintptr_t(to) | uintptr_t(from)) % SIZE) emulator::fail("an asynchronous copy is not aligned");
    if (bytes > SIZE) emulator::fail("an asynchronous copy has the wrong size");
    if (bytes) emulator::check_global(from, bytes);
    emulator::check_shared(to, SIZE);
    auto copy = [=] {
        memset(to, 0, SIZE);
        memcpy(to, from, bytes);
    };
    if (emulator::draw() % 3)
        emulator::current->copies.push_back(copy);
    else
        copy();
}
inline void async_copy_evict_first(void* to, const void* from, u32 bytes) { async_copy<16>(to, from, bytes); }
inline void async_commit() { emulator::current->groups.push_back(std::exchange(emulator::current->copies, {})); }
template <int PENDING>
void async_wait() {
    auto& groups = emulator::current->groups;
    for (; groups.size() > PENDING; groups.pop_front())
        for (auto& copy : groups.front()) copy();
    if (emulator::draw() % 2) emulator::yield();
}
inline void async_arrive(u64* at) {
    emulator::barrier(at);
    emulator::in_flight.push_back([at, copies = std::exchange(emulator::current->copies, {})] {
        for (auto& copy : copies) copy();
        emulator::arrive_at(emulator::barriers[at]);
    });
}

// ---- prefetches

inline void prefetch_sector(const void* at) {
    const u64 sector = uintptr_t(at) / 32;
    bool shared = false;
    for (auto& range : emulator::writable) shared |= sector >= u64(range.first) / 32 && sector <= (u64(range.second) - 1) / 32;
    if (!shared) emulator::fail("a prefetched sector holds nothing of the results");
    emulator::prefetched.insert(sector);
}

// ---- loads and stores of memory that other blocks access meanwhile

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

// ---- predicated loads

template <class Word>
void load_constant_if(bool wanted, Word& word, const void* from) {
    memset(&word, 0xff, sizeof(Word));
    if (wanted) word = __ldg(static_cast<const Word*>(from));
}

// ---- arithmetic

inline const char* address_of(const char* base, u32 row, u32 pitch) { return base + u64(row) * pitch; }
inline void mma_m8n8k4(double (&c)[2], double a, double b) { emulator::multiply<1>({c, nullptr, &a, nullptr, &b}); }
inline void mma_m16n8k4(double (&c_top)[2], double (&c_bottom)[2], const double (&top)[1], const double (&bottom)[1],
                        const double (&b)[1]) {
    emulator::multiply<1>({c_top, c_bottom, top, bottom, b});
}
