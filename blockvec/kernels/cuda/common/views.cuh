// Boxes of rows that lie apart, which the copy engine gathers by tensor maps (sm_90). As ptx.cuh, this file is replaced where a kernel runs on a host.
#pragma once
#include "common/ptx.cuh"

// Describes rows of memory to the copy engine (sm_90); the driver encodes it, see kernels/tensor_map.py.
struct alignas(64) TensorMap {
    u64 words[16];
};

// cp.async.bulk.tensor: the rows of a map from `row` on to `shared`, which is aligned to 128 bytes, completing on an mbarrier. What is outside
// of the map becomes zero, and its bytes count.
__device__ __forceinline__ void box_load(void* shared, const TensorMap* map, int row, u64* barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
                     shared_address(shared)),
                 "l"(map), "r"(0), "r"(row), "r"(shared_address(barrier))
                 : "memory");
}
