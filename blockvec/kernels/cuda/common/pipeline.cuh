// Memory to shared memory by the bulk copy engine (sm_90), through a ring of stages guarded by mbarriers.
//
// The warp that fills an empty stage announces the number of bytes on its barrier and starts the copies; every consumer warp waits until
// the stage is full, reads it, and releases it. The copy engine itself completes the phase of the full barrier, so STAGES stages are in
// flight without registers or instructions. A stage is known to be empty in one of two ways:
//
//   a producer warp                                     consumer warps
//   for each stage of this block:                       for each stage of this block:
//       wait(ring.empty + at.stage, at.parity ^ 1)          wait(ring.full + at.stage, at.parity)
//       expect(ring.full + at.stage, bytes); bulk_load(...) ...; __syncwarp(); if (lane == 0) arrive(ring.empty + at.stage)
//       at.advance()                                        at.advance()
//
//   no producer: the last warp that reads a stage fills it again. Registers are allocated to whole warps in each quadrant of a
//   multiprocessor, so a ninth warp would lower the limit of eight warps from 255 registers to 168.
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

    // Called by one thread, before a __syncthreads(), with the numbers of arrivals that fill and that release a stage. Not by several
    // threads: the assembler of CUDA 13.0 then overwrites a predicate that is still needed, and warp 0 stays diverged.
    __device__ __forceinline__ void init(u32 producers, u32 consumers) {
#pragma unroll
        for (int stage = 0; stage < STAGES; ++stage) {
            barrier_init(full + stage, producers);
            barrier_init(empty + stage, consumers);
            readers[stage] = 0;
        }
        barrier_init_fence();
    }

    // Called by a converged warp that has read a stage: whether it is the last one of `warps`.
    __device__ __forceinline__ bool is_last_reader(int stage, u32 warps, int lane) {
        const u32 before = lane == 0 ? count_up(readers + stage, warps - 1) : 0;
        return __shfl_sync(0xffffffffu, before, 0) == warps - 1;
    }
};

// The position of a producer or a consumer in the ring; the parity flips each time the ring has been passed once.
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
