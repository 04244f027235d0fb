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

void barrier_init(u64* at, u32 arrivals);
inline void barrier_init_fence() {}
void expect(u64* at, u32 bytes);
void arrive(u64* at);
bool has_ended(u64* at, u32 parity);

// ---- bulk copies

void bulk_load(void* to, const void* from, u32 bytes, u64* at);
// The words of a map here: address, bytes of a row, rows, bytes between rows; bytes of a row of the box, its rows.
struct TensorMap {
    u64 words[16];
};
void box_load(void* to, const TensorMap* map, int row, u64* at);
void bulk_store(void* to, const void* from, u32 bytes);
inline void bulk_store_fence() {}
void bulk_store_commit();
void wait_for_stores(size_t pending);
template <int PENDING>
void bulk_store_wait_read() {
    wait_for_stores(PENDING);
}
template <int PENDING>
void bulk_store_wait() {
    wait_for_stores(PENDING);
}

// ---- asynchronous copies by threads: land at once, or when they are waited for

void async_copy(void* to, const void* from, u32 bytes, u32 size);
template <int SIZE>
void async_copy(void* to, const void* from, u32 bytes) {
    async_copy(to, from, bytes, SIZE);
}
inline void async_copy_evict_first(void* to, const void* from, u32 bytes) { async_copy<16>(to, from, bytes); }
void async_commit();
void wait_for_copies(size_t pending);
template <int PENDING>
void async_wait() {
    wait_for_copies(PENDING);
}
void async_arrive(u64* at);

// ---- prefetches

void prefetch_sector(const void* at);

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
inline void mma_m8n8k4(double (&c)[2], double a, double b) { emulator::multiply({c, nullptr, &a, nullptr, &b}); }
inline void mma_m16n8k4(double (&c_top)[2], double (&c_bottom)[2], const double (&top)[1], const double (&bottom)[1],
                        const double (&b)[1]) {
    emulator::multiply({c_top, c_bottom, top, bottom, b});
}
