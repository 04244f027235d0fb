// The long rows of Y = alpha (S - shift I) X + beta Y, cut into tasks, each summed by one block.
//
//   for each task (row, begin, end, slot) and tile of columns, one block each
//     for k in [begin, end), shared by the GROUPS groups of LANES lanes of the block, UNROLL of them in flight
//       sum[:] += value[k] X[column[k]][:]          (SUMS: sum[:] += partials[k][:], the sums of earlier tasks)
//     the groups are added up, in a fixed order
//     slot >= 0: partials[slot][:] = sum[:]; else the row is complete: Y[row][:] = alpha (sum[:] - shift X[row][:]) + beta Y[row][:]
//
// A row of one task is complete after the first launch; a second launch, with SUMS, adds up the parts of the other rows.
//
// Types and problem: see spmmv.cuh.
// Config:  LANES, VECTORS, VECTOR; UNROLL; WARPS per block.
#include "sparse/spmmv.cuh"

static_assert(DOTS == 0, "column dots take rows of one kernel");
constexpr int GROUPS_A_WARP = 32 / LANES, GROUPS = WARPS * GROUPS_A_WARP;
using PackSum = StreamPack<Y, VECTOR, true>;

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
    KERNEL(const i64* tasks, const Index* columns, const S* values, Y* partials, const X* x, i64 ldx, Y* y, i64 ldy, Y* z, i64 ldz,
           Factor alpha, Factor beta, Factor shift, Factor delta, Factor eta, const Y* shifts, i64 fused_begin, i64 fused_end) {
    SHARED_ARRAY(Y, scratch, [GROUPS][TILE]);
    const i64* task = tasks + 4 * static_cast<i64>(blockIdx.x);
    const i64 row = task[0], begin = task[1], end = task[2], slot = task[3];
    const int lane = threadIdx.x % 32, group = threadIdx.x / 32 * GROUPS_A_WARP + lane / LANES;
    const Lane block = lane_of(x, ldx, y, ldy, z, ldz, alpha, beta, shift, delta, eta, shifts, fused_begin, fused_end, blockIdx.y, lane % LANES);
    const bool busy = lane / LANES < GROUPS_A_WARP && block.has(0);

    Sums sums;
    for (i64 k = begin + group; busy && k < end; k += UNROLL * GROUPS) {
        PackX gathered[UNROLL][VECTORS];
        PackSum parts[UNROLL][VECTORS];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const i64 at = k + u * GROUPS;
            const char* from = SUMS ? nullptr : block.x_row(at < end ? column_of(__ldg(columns + at)) : 0);
#pragma unroll
            for (int v = 0; v < VECTORS; ++v) {
                const bool wanted = at < end && block.has(v);
                if constexpr (SUMS)
                    parts[u][v].load_constant(partials + at * WIDTH + block.column + v * STRIDE, wanted);
                else
                    gathered[u][v].load_constant(Lane::x_at(from, v), wanted);
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (k + u * GROUPS < end) {
                S s{};
                if constexpr (!SUMS) s = CODED ? coded_value(values, __ldg(columns + k + u * GROUPS)) : load_constant(values + k + u * GROUPS);
#pragma unroll
                for (int v = 0; v < VECTORS; ++v)
#pragma unroll
                    for (int i = 0; i < VECTOR; ++i)
                        sums.at[v][i] = SUMS ? add(sums.at[v][i], parts[u][v].at[i]) : multiply_add(sums.at[v][i], s, gathered[u][v].at[i]);
            }
    }

    const int own = lane % LANES * VECTOR;
    const auto for_columns = [&](auto act) {
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) act(sums.at[v][i], own + v * STRIDE + i);
    };
    if (busy) for_columns([&](Y& sum, int column) { scratch[group][column] = sum; });
    __syncthreads();
    for (int left = GROUPS; left > 1;) {
        const int half = (left + 1) / 2;
        if (busy && group < left - half)
            for_columns([&](Y&, int column) { scratch[group][column] = add(scratch[group][column], scratch[group + half][column]); });
        __syncthreads();
        left = half;
    }
    if (!busy || group != 0) return;
    for_columns([&](Y& sum, int column) { sum = scratch[0][column]; });
    if (slot < 0) {
        Lane::Own own;
        Dots none;
        block.load(own, row);
        block.finish(row, sums, own, none);
        return;
    }
#pragma unroll
    for (int v = 0; v < VECTORS; ++v)
        if (block.has(v)) {
            PackSum part;
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) part.at[i] = sums.at[v][i];
            part.template store<false>(partials + slot * WIDTH + block.column + v * STRIDE);
        }
}
