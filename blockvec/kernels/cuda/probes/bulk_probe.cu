// A mix of reads and writes (see mix_probe.cu) by the bulk copy engine (sm_90): a thread block of one warp reads `read` and writes `write`
// bytes, multiples of 16, through shared memory of the larger size. If it writes more than it reads, the rest is uninitialised.
#include "common/pipeline.cuh"

extern "C" __global__ void __launch_bounds__(32) KERNEL(const char* source, char* target, u32 read, u32 write) {
    DYNAMIC_SHARED(memory, 128);
    SHARED(u64, full);
    const i64 block = blockIdx.x;
    if (threadIdx.x == 0) {
        barrier_init(&full, 1);
        barrier_init_fence();
    }
    __syncwarp();
    if (!elect_one()) return;
    if (read) {
        expect(&full, read);
        bulk_load(memory, source + block * read, read, &full);
        wait(&full, 0);
    }
    if (write) {
        bulk_store(target + block * write, memory, write);
        bulk_store_commit();
        bulk_store_wait_read<0>();
    }
}
