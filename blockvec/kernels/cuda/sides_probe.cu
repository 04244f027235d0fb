// How long an atomic addition takes from each multiprocessor to each of LINES places in L2: where L2 has two parts, the way is longer to
// the part that the multiprocessor is not beside. Reads would not tell, since each part keeps copies of what it fetched from the other.
//
// A block a multiprocessor; latencies[multiprocessor][line] takes the shortest of REPEATS, in cycles. `places` are zeros.
// Config: LINES; STRIDE, words from place to place; REPEATS.
#include "element.cuh"

using u32 = unsigned int;

extern "C" __global__ void __launch_bounds__(32) KERNEL(u32* places, u32* latencies) {
    __shared__ volatile u32 answer;
    if (threadIdx.x != 0) return;
    u32 multiprocessor;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
    u32* own = latencies + multiprocessor * LINES;
    for (int repeat = 0; repeat < REPEATS; ++repeat)
        for (int i = 0; i < LINES; ++i) {
            const int line = (i + 7 * blockIdx.x) % LINES;  // not all at one place at a time
            u32 begin, end, zero;
            asm volatile("mov.u32 %0, %%clock;" : "=r"(begin)::"memory");
            asm volatile("atom.global.add.u32 %0, [%1], 0;" : "=r"(zero) : "l"(places + static_cast<i64>(line) * STRIDE) : "memory");
            answer = zero;  // waits for it
            asm volatile("mov.u32 %0, %%clock;" : "=r"(end)::"memory");
            const u32 before = own[line];
            if (repeat == 0 || end - begin < before) own[line] = end - begin;
        }
}
