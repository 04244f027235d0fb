// Y = alpha (S - shift I) X + beta Y for a sparse S in SELL-C form, C = 32, and row-major X, Y of few columns.
//
//   for each chunk of C rows, assigned in turn to the warps of all blocks, see spmmv_walk.cuh
//     lane i:  for each entry k of row i of the chunk, UNROLL of them in flight
//                sum[:] += value[k] X[column[k]][:]                                 VECTORS packs of VECTOR columns
//              the row of Y is stored
//
// Entry k of row i of a chunk is kept at starts[chunk] + C k + i, so neighbouring lanes read neighbouring entries straight into
// registers. Rows shorter than the longest of their chunk are padded with entries of column -1, for which nothing is loaded or
// added. A row is summed up in the order in which its entries are stored, as spmmv_csr.cu does with SPLIT = 1: the results are the same to
// the last bit.
//
// CODED: `values` are the table of values.
//
// Types and problem: see spmmv.cuh.
// Config:  VECTORS, VECTOR, LANES = 1: one tile of columns; UNROLL; WARPS per block, BLOCKS per multiprocessor.
#include "sparse/spmmv.cuh"
constexpr int PLANES = 1;  // of the walk
#include "sparse/spmmv_walk.cuh"

constexpr int C = 32;
static_assert(LANES == 1 && TILES == 1 && DOTS == 0 && GRAM == 0);
using Column = StreamPack<Index, 1, true>;
using Value = StreamPack<S, 1, true>;

__device__ __forceinline__ void gather(const Lane& block, const Index* columns, const S* values, Index begin, Index end, Sums& sums) {
#pragma unroll 1
    for (Index at = begin; at < end; at += C * UNROLL) {
        Column column[UNROLL];
        Value value[UNROLL];
        PackX x[UNROLL][VECTORS];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            column[u].at[0] = -1;
            if (at + C * u < end) column[u].load_passing(columns + at + C * u);
            if (!CODED && at + C * u < end) value[u].load_passing(values + at + C * u);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const char* from = block.x_row(column_of(column[u].at[0]));
#pragma unroll
            for (int v = 0; v < VECTORS; ++v) x[u][v].load_constant(Lane::x_at(from, v), column[u].at[0] >= 0);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (column[u].at[0] >= 0) {
                const S s = CODED ? coded_value(values, column[u].at[0]) : value[u].at[0];
#pragma unroll
                for (int v = 0; v < VECTORS; ++v)
#pragma unroll
                    for (int i = 0; i < VECTOR; ++i) sums.at[v][i] = multiply_add(sums.at[v][i], s, x[u][v].at[i]);
            }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    KERNEL(const Index* starts, const Index* columns, const S* values, Index n_rows, Index n_chunks, int line,
           i64 by_line, int lots, i64 by_lots, int plane, const X* x, i64 ldx, Y* y, i64 ldy, Y* z, i64 ldz, Factor alpha, Factor beta, Factor shift,
           Factor delta, Factor eta, const Y* shifts, i64 fused_begin, i64 fused_end) {
    const int lane = threadIdx.x % C;
    const Lane block = lane_of(x, ldx, y, ldy, z, ldz, alpha, beta, shift, delta, eta, shifts, fused_begin, fused_end, 0, 0);
    Walk walk(n_chunks, line, by_line, lots, by_lots, plane, threadIdx.x / 32, blockIdx.x, gridDim.x);
    struct Chunk {
        Index number, begin, end;
    };
    const auto next_chunk = [&]() -> Chunk {
        const Index number = walk.next();
        if (number < 0) return {number, 0, 0};
        return {number, __ldg(starts + number), __ldg(starts + number + 1)};
    };
    for (Chunk chunk = next_chunk(), next; chunk.number != Walk::END; chunk = next) {
        next = next_chunk();
        if (chunk.number == Walk::NONE) continue;
        const Index row = chunk.number * C + lane;
        if (row >= n_rows) continue;
        Sums sums;
        gather(block, columns, values, chunk.begin + lane, chunk.end, sums);
        Lane::Own own;  // loaded late: ahead of the gathers it would cost registers, and so warps
        Dots none;
        block.load(own, row);
        block.finish(row, sums, own, none);
    }
}
