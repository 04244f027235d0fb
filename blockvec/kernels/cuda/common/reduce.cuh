// Sums over the blocks of one launch, in a fixed order and without a second kernel.
//
// Each block leaves its partial result in the workspace; then the result is cut into slices and every slice is summed over
// the blocks, in block order, by one block. A single last block would take tens of microseconds for a 64 x 64 result of 132
// blocks (4.3 MB at the rate of one multiprocessor), so the slices are distributed over the blocks that have not ended:
//
//   started    counts blocks as they begin, of all launches; `before` those of earlier launches. A block that sees that all
//              blocks of its launch have started may wait for them: they are resident or done and wait for nothing else, so waiting
//              cannot deadlock, whatever else runs on the device. The block that started last always may. The others decline.
//
// Small results (FLAGGED): every partial sum is stored together with a flag that no other launch uses, so a thread that sees the flag
// sees the sum. No other message is needed: one store to L2 and one load. Block b sums slices b, b + blocks, ...; the flags also tell
// which blocks declined, and the first block that did not sums the slices of those that did.
//
// Large results, for which flags would double the bytes written:
//   arrived    low half: blocks whose partial is written; high half: those of them that wait. The old value is the rank of
//              a waiting block, the final one the number of waiting blocks.
//   departed   waiting blocks that are done; the last one resets the counters for the next launch.
//
// The block that sums a slice may vary, the order of the additions does not: results are bit-identical.
#pragma once
#include "common/ptx.cuh"

struct GridHeader {  // of the workspace, zero before its first launch
    u32 arrived, departed;  // zero between launches
    u64 started, before;    // equal between launches
};

constexpr int GRID_HEADER_BYTES = 128;
constexpr int FLAGGED_DOUBLES = 2048;
constexpr int MIN_SLICE_DOUBLES = 8;    // whole sectors; with flags a whole line
constexpr int MAX_SUMS = 16;            // threads that share the sum of one element
constexpr u64 FLAG = 0x7ff4ull << 48;   // a signalling NaN, which no sum is, so partial sums of other launches cannot equal a flag

__device__ __forceinline__ GridHeader* grid_header(void* workspace) { return static_cast<GridHeader*>(workspace); }

__device__ __forceinline__ double* grid_partials(void* workspace) {
    return reinterpret_cast<double*>(static_cast<char*>(workspace) + GRID_HEADER_BYTES);
}

// Called by one thread of each block, at its start; returns the flag of this launch, which the block shares.
__device__ __forceinline__ u64 grid_started(void* workspace) {
    if (gridDim.x == 1) return 0;
    atomicAdd(&grid_header(workspace)->started, u64(1));
    return FLAG + 2 * load_relaxed(&grid_header(workspace)->before);
}

// Called by that thread: grid_seen after the block's last product returns the number of blocks that have started, and grid_decided, before
// the barrier that ends the block's sums, returns the flag, which is odd if the block declines.
__device__ __forceinline__ u32 grid_seen(void* workspace) {
    return gridDim.x == 1 ? 0 : static_cast<u32>(load_relaxed(&grid_header(workspace)->started));
}

__device__ __forceinline__ u64 grid_decided(u64 flag, u32 seen) { return flag + (seen - static_cast<u32>((flag - FLAG) / 2) != gridDim.x); }

__device__ __forceinline__ bool is_declined(u64 flag) { return flag & 1; }

// Stores partial sum `k` of this block.
template <int DOUBLES>
__device__ __forceinline__ void grid_put(void* workspace, int k, double value, u64 flag) {
    const i64 at = static_cast<i64>(blockIdx.x) * DOUBLES + k;
    if constexpr (DOUBLES <= FLAGGED_DOUBLES)
        store_flagged(grid_partials(workspace) + 2 * at, value, flag);
    else
        __stcg(grid_partials(workspace) + at, value);
}

// The slices of a result: whole elements, at most THREADS doubles each.
template <int DOUBLES, int PARTS, int THREADS>
struct Slices {
    static_assert(DOUBLES % PARTS == 0, "whole elements");
    static constexpr int ELEMENTS = DOUBLES / PARTS;
    // In flight: nine are the run of a thread for 132 blocks, one per multiprocessor; five fit into 64 registers.
    static constexpr int LOADS = BLOCKS > 1 || THREADS > 256 ? 5 : 9;
    int doubles, count;

    __device__ __forceinline__ Slices() {
        constexpr int LEAST = (DOUBLES + THREADS - 1) / THREADS, MOST = (DOUBLES + MIN_SLICE_DOUBLES - 1) / MIN_SLICE_DOUBLES;
        const int wanted = max(LEAST + 1, min(static_cast<int>(gridDim.x), MOST));
        doubles = (ELEMENTS + wanted - 1) / wanted * PARTS;
        count = (DOUBLES + doubles - 1) / doubles;
    }

    // Thread (q, d) sums double d over the q-th run of blocks; then the runs are summed in order. `load(part, block, end, k)` gets partial
    // sum k of LOADS blocks from `block` on, zeros from `end` on.
    template <class Load, class Store>
    __device__ __forceinline__ void sum(int slice, double* scratch, Load load, Store store) const {
        const int thread = threadIdx.x, blocks = gridDim.x;
        const int sums = min(min(THREADS / doubles, MAX_SUMS), blocks);
        const int run = (blocks + sums - 1) / sums;
        const int q = thread / doubles, d = thread % doubles;
        const int first = slice * doubles;
        if (q < sums && first + d < DOUBLES) {
            double sum = 0;
            const int end = min((q + 1) * run, blocks);
            for (int block = q * run; block < end; block += LOADS) {
                double part[LOADS];
                load(part, block, end, first + d);
#pragma unroll
                for (int l = 0; l < LOADS; ++l) sum += part[l];
            }
            scratch[q * doubles + d] = sum;
        }
        named_barrier<THREADS>(1);
        const int element = first / PARTS + thread;
        if (thread < doubles / PARTS && element < ELEMENTS) {
            double total[PARTS] = {};
            for (int r = 0; r < sums; ++r)
#pragma unroll
                for (int part = 0; part < PARTS; ++part) total[part] += scratch[r * doubles + thread * PARTS + part];
            store(element, total);
        }
        named_barrier<THREADS>(1);
    }
};

template <int DOUBLES, int PARTS, int THREADS, class Store>
__device__ __forceinline__ void sum_flagged(void* workspace, double* scratch, u64 flag, Store store) {
    const int blocks = gridDim.x;
    const u64 expected = flag & ~u64(1);
    const double* partials = grid_partials(workspace);
    const auto get = [&](double& value, i64 at) {
        u64 seen;
        load_flagged(value, seen, partials + 2 * at);
        return seen;
    };
    const auto has_declined = [&](int block) {
        double unused;
        u64 seen;
        do seen = get(unused, static_cast<i64>(block) * DOUBLES);
        while ((seen & ~u64(1)) != expected);
        return is_declined(seen);
    };
    SHARED(bool, shared_any);
    if (is_declined(flag)) return;
    if (threadIdx.x == 0) shared_any = false;
    named_barrier<THREADS>(1);

    using Cut = Slices<DOUBLES, PARTS, THREADS>;
    bool has_all = false, is_heir = false;
    const auto load = [&](double(&part)[Cut::LOADS], int block, int end, int k) {
        u64 any;
        do {
            any = 0;
#pragma unroll
            for (int l = 0; l < Cut::LOADS; ++l) any |= get(part[l], static_cast<i64>(min(block + l, end - 1)) * DOUBLES + k) ^ expected;
        } while (any > 1);
        if (any && !is_heir) shared_any = true;  // an heir knows it, and other threads may still poll
#pragma unroll
        for (int l = 0; l < Cut::LOADS; ++l)
            if (block + l >= end) part[l] = 0;
    };
    const Cut slices;
    for (int slice = blockIdx.x;; slice += is_heir ? 1 : blocks) {
        if (!is_heir && slice >= slices.count && (!has_all || shared_any)) {  // own slices are done
            int first = 0;
            while (first < blockIdx.x && has_declined(first)) ++first;
            is_heir = first == blockIdx.x;
            slice = is_heir ? 0 : slice;
        }
        if (slice >= slices.count) break;
        if (is_heir && !has_declined(slice % blocks)) continue;
        slices.sum(slice, scratch, load, store);
        has_all = true;
    }
    // All blocks have stored their sums, so none reads `before` any more.
    if (threadIdx.x == 0 && has_all) grid_header(workspace)->before = (expected - FLAG) / 2 + blocks;
}

// Called by threads 0 .. THREADS-1 of every block after they stored the block's `DOUBLES` partial sums by `grid_put`. `scratch` is
// shared memory for THREADS doubles. `store(e, sums)` is called once for each element e of the result, with its PARTS sums (re and im of
// a complex element), by some thread of some block.
template <int DOUBLES, int PARTS, int THREADS, class Store>
__device__ __forceinline__ void grid_sum(void* workspace, double* scratch, u64 flag, Store store) {
    if constexpr (DOUBLES <= FLAGGED_DOUBLES) {
        sum_flagged<DOUBLES, PARTS, THREADS>(workspace, scratch, flag, store);
        return;
    }
    using Cut = Slices<DOUBLES, PARTS, THREADS>;
    const Cut slices;
    const int blocks = gridDim.x;
    GridHeader* header = grid_header(workspace);
    SHARED(int, shared_turn);
    SHARED(int, shared_turns);
    named_barrier<THREADS>(1);  // the block's partial is written
    if (threadIdx.x == 0) {
        __threadfence();
        const bool waits = !is_declined(flag);
        const int rank = atomicAdd(&header->arrived, waits ? 0x10001u : 1u) >> 16;
        shared_turn = -1;
        if (waits && rank < slices.count) {
            u32 arrived;
            do arrived = load_acquire(&header->arrived);
            while ((arrived & 0xffffu) < blocks);
            shared_turn = rank;
            shared_turns = arrived >> 16;
        }
    }
    named_barrier<THREADS>(1);
    const int turn = shared_turn, turns = shared_turns;
    if (turn < 0) return;
    const double* partials = grid_partials(workspace);
    const auto load = [&](double(&part)[Cut::LOADS], int block, int end, int k) {
#pragma unroll
        for (int l = 0; l < Cut::LOADS; ++l) part[l] = block + l < end ? __ldcg(partials + static_cast<i64>(block + l) * DOUBLES + k) : 0.0;
    };
    for (int slice = turn; slice < slices.count; slice += turns) slices.sum(slice, scratch, load, store);
    if (threadIdx.x == 0 && atomicAdd(&header->departed, 1u) == min(turns, slices.count) - 1u) {
        header->arrived = header->departed = 0;
        header->before = (flag - FLAG) / 2 + blocks;
    }
}
