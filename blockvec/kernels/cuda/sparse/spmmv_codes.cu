// The entries of a matrix of few different values as one number each: see column_of in spmmv.cuh.
//
//   for each entry k, one lane each
//     entries[k] = columns[k] + 2^CODE_BIT place of values[k] in the table
//   missing[warp] = a value that the table lacks, and lacks[warp] = 1, if there is one among the entries of the warp
//
// Values are compared by their bits, so that a zero keeps its sign. Where a value is missing, the entries are not to be used.
//
// Types: SReal of the parts of values, complex under S_COMPLEX.
// Config: CODE_BIT; WARPS per block.
#include "common/stream.cuh"

using S = ElementOf<S_COMPLEX, SReal>;

__device__ __forceinline__ bool is_same(const S& a, const S& b) {
    bool same = true;
#pragma unroll
    for (unsigned i = 0; i < sizeof(S) / sizeof(u32); ++i) same &= reinterpret_cast<const u32*>(&a)[i] == reinterpret_cast<const u32*>(&b)[i];
    return same;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    KERNEL(const int* columns, const S* values, i64 n_entries, const S* table, int count, int* entries, S* missing, int* lacks) {
    const int lane = threadIdx.x % 32;
    const i64 warp = static_cast<i64>(blockIdx.x) * WARPS + threadIdx.x / 32;
    bool is_first = true;
    for (i64 first = 32 * warp; first < n_entries; first += 32ll * WARPS * gridDim.x) {
        const i64 k = first + lane;
        int place = 0;
        S value{};
        if (k < n_entries) {
            value = load_constant(values + k);
            while (place < count && !is_same(value, load_constant(table + place))) ++place;
            entries[k] = __ldg(columns + k) + (place << CODE_BIT);
        }
        const u32 lacking = __ballot_sync(0xffffffffu, k < n_entries && place == count);
        if (is_first && lacking != 0) {
            if (lane == __ffs(lacking) - 1) missing[warp] = value, lacks[warp] = 1;
            is_first = false;
        }
    }
}
