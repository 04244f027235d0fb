// The diagonal of a Hermitian matrix: values[row] = sum of the real parts of its entries (row, row).
//
// Types: Index; Real, of which an entry has `parts`. Config: see spmmv_pieces.cuh.
#include "sparse/spmmv_pieces.cuh"

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    KERNEL(const Index* pointers, i64 n_rows, const Index* columns, const Real* entries, int parts, double* values) {
    const i64 first = 32 * PIECE * warp_number(), end = min(n_rows, first + 32 * PIECE);
    for (i64 row = first + threadIdx.x % 32; row < end; row += 32) {
        double sum = 0;
        const Index last = __ldg(pointers + row + 1);
        for (Index k = __ldg(pointers + row); k < last; ++k)
            if (__ldg(columns + k) == row) sum += __ldg(entries + i64(parts) * k);
        values[row] = sum;
    }
}
