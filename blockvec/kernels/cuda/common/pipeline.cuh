// Memory to shared memory by the bulk copy engine (sm_90), through a ring of stages guarded by mbarriers.
//
// A filler says how many bytes will land in an empty stage and starts the copies; every consumer warp waits until the stage is
// full, reads it, and gives it back. Copies complete on the full barrier themselves, so STAGES stages are in flight without a
// register or an instruction spent on them. Two ways to find out that a stage is empty:
//
//   a producer warp                                     consumer warps
//   for each stage of this block:                       for each stage of this block:
//       wait(ring.empty + at.stage, at.parity ^ 1)          wait(ring.full + at.stage, at.parity)
//       expect(ring.full + at.stage, bytes); bulk_load(...) ...; __syncwarp(); if (lane == 0) arrive(ring.empty + at.stage)
//       at.advance()                                        at.advance()
//
//   no producer: the last warp to read a stage fills it again. Registers are dealt out by whole warps in each quadrant of a
//   multiprocessor, so a ninth warp would cut the limit of eight from 255 registers to 168.
//       wait(ring.full + at.stage, at.parity); ...; __syncwarp()
//       if (ring.is_last_reader(at.stage, warps, lane)) { expect(...); bulk_load(...) }   the first STAGES are filled up front
//
// Addresses (both sides) and sizes of a bulk copy are multiples of 16 bytes; one phase of a barrier counts below 2^20 bytes.
#pragma once
#include "common/ptx.cuh"

// Waits until the phase of the given parity has ended.
__device__ __forceinline__ void wait(u64* barrier, u32 parity) {
    while (!has_ended(barrier, parity)) {
    }
}

template <int STAGES>
struct Ring {
    u64 full[STAGES];
    u64 empty[STAGES];    // with a producer warp
    u32 readers[STAGES];  // without: warps that have read a stage

    // By one thread, before a __syncthreads(): how many arrivals fill a stage and how many give it back. By one, because the assembler of
    // CUDA 13.0 spoils a predicate that is still needed where several threads initialise barriers: warp 0 was torn apart by it for good.
    __device__ __forceinline__ void init(u32 producers, u32 consumers) {
#pragma unroll
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(full + stage, producers);
            barrier_init(empty + stage, consumers);
            readers[stage] = 0;
        }
        barrier_init_fence();
    }

    // By a converged warp that has read a stage: whether it was the last one of `warps` to do so.
    __device__ __forceinline__ bool is_last_reader(int stage, u32 warps, int lane) {
        const u32 before = lane == 0 ? count_up(readers + stage, warps - 1) : 0;
        return __shfl_sync(0xffffffffu, before, 0) == warps - 1;
    }
};

// Where a producer or a consumer stands in the ring; the parity flips at each turn.
template <int STAGES>
struct Cursor {
    int stage = 0;
    u32 parity = 0;

    template <int BY = 1>
    __device__ __forceinline__ void advance() {
        static_assert(BY <= STAGES, "one turn at most");
        stage += BY;
        if (stage >= STAGES) {
            stage -= STAGES;
            parity ^= 1;
        }
    }
};
