// Measures the bandwidth of a mix of reads and writes: each thread reads READS and writes WRITES vectors of 16 bytes, and the hardware starts
// the thread blocks in the order of addresses.
//
// Problem: READS, WRITES. Config: THREADS.
#include "common/element.cuh"

struct alignas(16) Vector {
    u32 word[4];
};

// Vector w of a thread's part of target: the exclusive or of those of source, of w and of four words that no other thread has.
extern "C" __global__ void __launch_bounds__(THREADS) KERNEL(const Vector* source, Vector* target) {
    const i64 block = blockIdx.x;
    const u32 thread = blockIdx.x * THREADS + threadIdx.x;
    Vector sum = {{thread * 0x9e3779b1u, thread * 0x85ebca77u, thread * 0xc2b2ae3du, thread * 0x27d4eb2fu}};
#pragma unroll
    for (int r = 0; r < READS; ++r) {
        const Vector vector = source[(block * READS + r) * THREADS + threadIdx.x];
#pragma unroll
        for (int i = 0; i < 4; ++i) sum.word[i] ^= vector.word[i];
    }
#pragma unroll
    for (int w = 0; w < WRITES; ++w) {
        Vector vector = sum;
        vector.word[0] ^= w;
        target[(block * WRITES + w) * THREADS + threadIdx.x] = vector;
    }
    // Never true for random numbers; keeps the loads alive.
    if (WRITES == 0 && (sum.word[0] & sum.word[1] & sum.word[2] & sum.word[3]) == 0xffffffffu) *target = sum;
}
