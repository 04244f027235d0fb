// Tiles of a tall matrix, dealt out to the thread blocks of a launch as they ask for them, in the order of addresses.
//
// Multiprocessors do not get equal shares of a busy memory. On one H200 every eighth gets a third more than the others: with equal
// shares of the rows it is done when they have a quarter of theirs left. So who is faster takes more. Not for sums over rows: they
// would come out in another order each time.
//
// A team of warps that works on a tile at a time begins with fixed tiles, as many as it has stages. Beyond these it takes a run of them at a
// time, since a counter in memory answers some two hundred times a microsecond, and asks for the next run a run ahead, since an answer takes
// a microsecond or two. There are fewer than 2^31 tiles.
#pragma once
#include "common/ptx.cuh"

struct Queue {  // at the head of the workspace, in the place of other counters that are zero between launches, as these are
    u32 taken, done;
};

// The numbers of a team's tiles beyond its first ones, for the warp that loads them.
template <int RUN>
struct Runs {
    u32* taken;  // runs
    u32 first;   // tile that is not dealt out at the start
    u32 tile, left = 0, run;

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

// By one thread of each block, after a barrier behind its last request: the last block sets the queue back for the next launch.
__device__ __forceinline__ void queue_leave(Queue* queue) {
    __threadfence();  // the block's requests are counted
    if (atomicAdd(&queue->done, 1u) == gridDim.x - 1) {
        __threadfence();
        queue->taken = queue->done = 0;
    }
}
