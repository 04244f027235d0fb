// Keeps a stream busy for `duration_ns` with one waiting thread, so that the host can queue the kernels to be timed meanwhile: they then
// run back to back.
#include "common/ptx.cuh"

extern "C" __global__ void __launch_bounds__(1) KERNEL(i64 duration_ns) {
    for (const i64 begin = global_time_ns(); global_time_ns() - begin < duration_ns;) {
    }
}
