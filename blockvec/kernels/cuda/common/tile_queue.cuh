// A queue of the tiles of a tall matrix: the thread blocks of a launch take tiles in the order of their addresses.
//
// Multiprocessors do not get equal shares of the bandwidth of a busy memory. On one H200 every eighth multiprocessor gets a third more
// than the others: with equal numbers of rows it ends when the others have a quarter of theirs left. With a queue a faster
// multiprocessor takes more tiles. Sums over rows cannot use it, because the order of their additions would change between launches.
//
// A team of warps that works on one tile at a time starts with fixed tiles, one per stage. After these it takes RUN consecutive tiles at a
// time, because a counter in memory serves about 200 additions per microsecond, and it requests each run one run ahead, because an addition
// takes one to two microseconds. There are fewer than 2^31 tiles.
#pragma once
#include "common/ptx.cuh"

struct TileQueue {  // at the start of the workspace; both counters are zero between launches
    u32 taken, done;
};

// The numbers of a team's tiles after its fixed ones, for the warp that loads them.
template <int RUN>
struct Runs {
    u32* taken;  // runs that were requested
    u32 first;   // first tile of the queue
    u32 tile, left = 0, run;

    // Requests the run after the current one.
    __device__ __forceinline__ void ask(int lane) {
        if (lane == 0) run = atomicAdd(taken, 1u);
    }

    __device__ __forceinline__ u32 next(int lane) {
        if (left == 0) {
            tile = first + RUN * __shfl_sync(0xffffffffu, run, 0);
            left = RUN;
            ask(lane);
        }
        --left;
        return tile++;
    }
};

// Called by one thread of each block, after a barrier behind the block's last request. The last block resets the queue for the next launch.
__device__ __forceinline__ void queue_leave(TileQueue* queue) {
    __threadfence();  // the block's requests are counted
    if (atomicAdd(&queue->done, 1u) == gridDim.x - 1) {
        __threadfence();
        queue->taken = queue->done = 0;
    }
}
