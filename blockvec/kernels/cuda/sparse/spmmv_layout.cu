// The places of chunks of C = 32 rows in SELL-C form: see `layout` in sell.py.
//
//   for each chunk, one lane each
//     places = C times the length of its longest row
//
// First counts[piece] = the places of the piece; then, given those `before` each piece, starts[chunk].
//
// Types: Index. Config: see spmmv_pieces.cuh.
#include "sparse/spmmv_pieces.cuh"

constexpr int C = 32;

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    KERNEL(const Index* pointers, i64 n_rows, const i64* before, i64* counts, Index* starts) {
    const i64 first = warp_number() * PIECE;
    if (first * C >= n_rows) return;
    i64 sum = before == nullptr ? 0 : before[warp_number()];
    for (int round = 0; round < ROUNDS; ++round) {
        const i64 chunk = first + 32 * round + threadIdx.x % 32, row = min(n_rows, chunk * C), end = min(n_rows, row + C);
        Index begin = row < end ? __ldg(pointers + row) : 0, longest = 0;
        for (i64 i = row; i < end; ++i) {
            const Index next = __ldg(pointers + i + 1);
            longest = max(longest, next - begin);
            begin = next;
        }
        const i64 places = C * static_cast<i64>(longest), at = take_places(places, sum);
        if (before == nullptr || row == end) continue;
        starts[chunk] = static_cast<Index>(at);
        if (end == n_rows) starts[chunk + 1] = static_cast<Index>(at + places);
    }
    if (before == nullptr && threadIdx.x % 32 == 0) counts[warp_number()] = sum;
}
