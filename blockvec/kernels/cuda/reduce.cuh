// Sums over the blocks of one launch, in a fixed order and without a second kernel.
//
// Each block leaves its partial result in the workspace; then the result is cut into slices and every slice is summed over
// the blocks, in block order, by one block. A single last block would take tens of microseconds for a 64 x 64 result of 132
// blocks (4.3 MB at the rate of one multiprocessor), so the slices are spread over the blocks that are still there:
//
//   started    counts blocks as they begin. A block that sees all of them started may wait for them: they are resident or done,
//              and none waits for anything else, so waiting cannot deadlock, whatever else runs on the device.
//   arrived    low half: blocks whose partial is written; high half: those of them that wait. The old value gives a waiter
//              its rank, the final one the number of waiters. The block that started last always waits.
//   departed   waiters that are done; the last one sets everything back to zero for the next launch.
//
// Which block sums a slice may vary, the order of its sum does not: results are bit-identical. A result small enough for one
// slice is summed by the block that arrives last, and nobody waits.
#pragma once
#include "pipeline.cuh"

struct GridCounters {  // at the head of the workspace, zero between launches
    u32 started, arrived, departed;
};

constexpr int GRID_HEADER_BYTES = 128;
constexpr int ONE_SLICE_DOUBLES = 32;   // results up to here are summed by one block ...
constexpr int MIN_SLICE_DOUBLES = 8;    // ... and above in slices no smaller than this: two whole sectors
constexpr int MAX_SUMS = 16;            // threads that share the sum of one element
constexpr int LOADS = 12;               // of a thread in flight: a run of 132 blocks' partials over MAX_SUMS, and some

__device__ __forceinline__ double* grid_partials(void* workspace) {
    return reinterpret_cast<double*>(static_cast<char*>(workspace) + GRID_HEADER_BYTES);
}

// By one thread of each block, early on.
__device__ __forceinline__ void grid_started(void* workspace) {
    if (gridDim.x > 1) atomicAdd(&static_cast<GridCounters*>(workspace)->started, 1u);
}

__device__ __forceinline__ bool grid_all_started(void* workspace) {
    return load_acquire(&static_cast<GridCounters*>(workspace)->started) == gridDim.x;
}

// Called by threads 0 .. THREADS-1 of every block after they stored the block's `DOUBLES` partial sums at
// grid_partials(workspace) + blockIdx.x * DOUBLES. `scratch` is shared memory for THREADS doubles. `store(e, sums)` is called
// once for each element e of the result, with its PARTS sums (re and im of a complex element), by some thread of some block.
template <int DOUBLES, int PARTS, int THREADS, class Store>
__device__ __forceinline__ void grid_sum(void* workspace, double* scratch, bool all_started, Store store) {
    static_assert(DOUBLES % PARTS == 0, "whole elements");
    const int thread = threadIdx.x;
    const int blocks = gridDim.x;
    GridCounters* counters = static_cast<GridCounters*>(workspace);
    const double* partials = grid_partials(workspace);

    // Slices of whole elements, each at most THREADS doubles.
    constexpr int ELEMENTS = DOUBLES / PARTS;
    constexpr int LEAST = (DOUBLES + THREADS - 1) / THREADS, MOST = (DOUBLES + MIN_SLICE_DOUBLES - 1) / MIN_SLICE_DOUBLES;
    const int wanted = DOUBLES <= ONE_SLICE_DOUBLES ? 1 : max(LEAST + 1, min(blocks, MOST));
    const int slice_doubles = (ELEMENTS + wanted - 1) / wanted * PARTS;
    const int slices = (DOUBLES + slice_doubles - 1) / slice_doubles;

    __shared__ int shared_turn, shared_turns;
    sync_warps<1, THREADS>();  // the block's partial is written
    if (thread == 0) {
        int turn = -1, turns = 1;
        __threadfence();
        if (slices == 1) {
            if (atomicAdd(&counters->arrived, 1u) == blocks - 1u) {
                turn = 0;
                __threadfence();
            }
        } else {
            const int rank = atomicAdd(&counters->arrived, all_started ? 0x10001u : 1u) >> 16;
            if (all_started && rank < slices) {
                u32 arrived;
                do arrived = load_acquire(&counters->arrived);
                while ((arrived & 0xffffu) < blocks);
                turn = rank;
                turns = arrived >> 16;
            }
        }
        shared_turn = turn;
        shared_turns = turns;
    }
    sync_warps<1, THREADS>();
    const int turn = shared_turn, turns = shared_turns;
    if (turn < 0) return;

    // Within a slice, thread (q, d) sums double d over the q-th run of blocks; then the runs are summed in order.
    const int sums = min(min(THREADS / slice_doubles, MAX_SUMS), blocks);
    const int run = (blocks + sums - 1) / sums;
    const int q = thread / slice_doubles, d = thread % slice_doubles;
    for (int slice = turn; slice < slices; slice += turns) {
        const int first = slice * slice_doubles;
        if (q < sums && first + d < DOUBLES) {
            double sum = 0;
            const int end = min((q + 1) * run, blocks);
            for (int block = q * run; block < end; block += LOADS) {
                double part[LOADS];
#pragma unroll
                for (int l = 0; l < LOADS; ++l)
                    part[l] = block + l < end ? __ldcg(partials + static_cast<i64>(block + l) * DOUBLES + first + d) : 0.0;
#pragma unroll
                for (int l = 0; l < LOADS; ++l) sum += part[l];
            }
            scratch[q * slice_doubles + d] = sum;
        }
        sync_warps<1, THREADS>();
        const int element = first / PARTS + thread;
        if (thread < slice_doubles / PARTS && element < ELEMENTS) {
            double total[PARTS] = {};
            for (int r = 0; r < sums; ++r)
#pragma unroll
                for (int part = 0; part < PARTS; ++part) total[part] += scratch[r * slice_doubles + thread * PARTS + part];
            store(element, total);
        }
        sync_warps<1, THREADS>();
    }
    if (thread == 0 && (slices == 1 || atomicAdd(&counters->departed, 1u) == min(turns, slices) - 1u))
        *counters = GridCounters{0, 0, 0};
}
