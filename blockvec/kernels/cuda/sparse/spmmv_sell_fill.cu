// The entries of a matrix in SELL-C form, C = 32, from those in compressed rows; see spmmv_sell.cu.
//
//   for each chunk of C rows, one warp each
//     for BATCH entries of each row, to the longest of the chunk
//       the entries are read to shared memory, those of a row by neighbouring lanes
//       lane i:  entry k of row i, or the column -1, is stored for each k of the batch
//
// CODED: there are no values beside the entries, see column_of in spmmv.cuh.
//
// Types: SReal of the parts of values, complex under S_COMPLEX; Index.
// Config: BATCH, a divisor of C; WARPS per block.
#include "common/stream.cuh"

using S = ElementOf<S_COMPLEX, SReal>;
constexpr int C = 32;
constexpr u32 FULL = 0xffffffffu;

struct Piece {
    Index columns[C][BATCH + 1];
    S values[C][CODED ? 1 : BATCH + 1];
};

extern "C" __global__ void __launch_bounds__(C * WARPS)
    KERNEL(const Index* pointers, const Index* columns, const S* values, const Index* starts, Index n_rows,
           Index n_chunks, Index* to_columns, S* to_values) {
    SHARED_ARRAY(Piece, pieces, [WARPS]);
    const Index chunk = static_cast<Index>(blockIdx.x) * WARPS + threadIdx.x / C;
    if (chunk >= n_chunks) return;
    Piece& piece = pieces[threadIdx.x / C];
    const int lane = threadIdx.x % C;
    const Index row = chunk * C + lane;
    Index from = row < n_rows ? __ldg(pointers + row) : 0;
    const Index stop = row < n_rows ? __ldg(pointers + row + 1) : 0, end = __ldg(starts + chunk + 1);
    for (Index to = __ldg(starts + chunk) + lane; to - lane < end; from += BATCH) {
#pragma unroll
        for (int i = 0; i < C; i += C / BATCH) {
            const int other = i + lane / BATCH, k = lane % BATCH;
            const Index at = __shfl_sync(FULL, from, other) + k;
            if (at < __shfl_sync(FULL, stop, other)) {
                piece.columns[other][k] = __ldg(columns + at);
                if constexpr (!CODED) piece.values[other][k] = load_constant(values + at);
            }
        }
        __syncwarp();
        for (int k = 0; k < BATCH && to < end; ++k, to += C) {
            const bool is_entry = from + k < stop;
            to_columns[to] = is_entry ? piece.columns[lane][k] : -1;
            if constexpr (!CODED) to_values[to] = is_entry ? piece.values[lane][k] : S{};
        }
        __syncwarp();
    }
}
