// What `structure_of` in structure.py needs of a matrix.
//
//   found[piece] = longest row of the piece, one warp each
//   for each of `samples` rows, evenly distributed over the matrix, one warp each
//     found[n_pieces + sample_entries sample + k] = |column - row| of its entry k, or -1 if it has fewer entries
//
// Types: Index. Config: see spmmv_pieces.cuh.
#include "sparse/spmmv_pieces.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    KERNEL(const Index* pointers, i64 n_rows, const Index* columns, i64 n_pieces, int samples, int sample_entries, i64* found) {
    const int lane = threadIdx.x % 32;
    const i64 warp = warp_number(), sample = warp - n_pieces;
    if (sample < 0) {
        const i64 end = min(n_rows, 32 * PIECE * (warp + 1));
        Index longest = 0;
#pragma unroll 8
        for (i64 row = 32 * PIECE * warp + lane; row < end; row += 32) longest = max(longest, __ldg(pointers + row + 1) - __ldg(pointers + row));
#pragma unroll
        for (int lanes = 16; lanes > 0; lanes /= 2) longest = max(longest, __shfl_xor_sync(FULL, longest, lanes));
        if (lane == 0) found[warp] = longest;
    } else if (sample < samples) {
        const i64 row = sample * (n_rows - 1) / (samples - 1);
        const Index begin = __ldg(pointers + row), length = __ldg(pointers + row + 1) - begin;
        for (int k = lane; k < sample_entries; k += 32) {
            const i64 ahead = k < length ? __ldg(columns + begin + k) - row : -1;
            found[n_pieces + sample * sample_entries + k] = k < length && ahead < 0 ? -ahead : ahead;
        }
    }
}
