// The division of rows into units, and of long rows into tasks: see `Units` in units.py.
//
//   for each block of `rows` rows, one lane each
//     for each row:  a unit begins if the row is the first or long, follows a long one, or would be beyond `entries` entries;
//       a long row has a task per `task_entries` entries, and a sum if these are several
//
// First counts[piece] = the units, tasks, sums and slots of the piece; then, given those `before` each piece, the lists.
//
// Types: Index. Config: see spmmv_pieces.cuh.
#include "sparse/spmmv_pieces.cuh"

struct Counts {
    i64 units, tasks, sums, slots;
};
struct Part {
    i64 row, begin, end, slot;
};

// What lists have up to the end of a block of rows, given what they have before it. Under WRITES they are written.
template <bool WRITES>
__device__ __forceinline__ Counts divide(const Index* pointers, i64 row, i64 end, int entries, int long_row, int task_entries, Counts at,
                                         Index* cuts, Part* tasks, Part* sums) {
    Index begin = row < end ? __ldg(pointers + row) : 0, first = begin;
    for (bool begins = true; row < end; ++row) {
        const Index next = __ldg(pointers + row + 1);
        const bool is_long = next - begin > long_row;
        if (begins || is_long || next - first > entries) {
            if constexpr (WRITES) cuts[at.units] = static_cast<Index>(row);
            ++at.units;
            first = begin;
        }
        if (is_long) {
            const i64 parts = (static_cast<i64>(next) - begin + task_entries - 1) / task_entries;
            if constexpr (WRITES) {
                i64 from = begin;
                for (i64 part = 0; part < parts; ++part, from += task_entries)
                    tasks[at.tasks + part] = {row, from, min(from + task_entries, static_cast<i64>(next)), parts > 1 ? at.slots + part : -1};
                if (parts > 1) sums[at.sums] = {row, at.slots, at.slots + parts, -1};
            }
            at.tasks += parts;
            at.sums += parts > 1;
            at.slots += parts > 1 ? parts : 0;
        }
        begins = is_long;
        begin = next;
    }
    return at;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    KERNEL(const Index* pointers, i64 n_rows, int rows, int entries, int long_row, int task_entries, const Counts* before, Counts* counts,
           Index* cuts, Part* tasks, Part* sums) {
    const i64 first = warp_number() * PIECE * rows;
    if (first >= n_rows) return;
    Counts sum = before == nullptr ? Counts{} : before[warp_number()];
    for (int round = 0; round < ROUNDS; ++round) {
        const i64 row = min(n_rows, first + (32 * round + static_cast<i64>(threadIdx.x % 32)) * rows), end = min(n_rows, row + rows);
        const Counts own = divide<false>(pointers, row, end, entries, long_row, task_entries, {}, cuts, tasks, sums);
        const Counts at = {take_places(own.units, sum.units), take_places(own.tasks, sum.tasks), take_places(own.sums, sum.sums),
                           take_places(own.slots, sum.slots)};
        if (before == nullptr) continue;
        divide<true>(pointers, row, end, entries, long_row, task_entries, at, cuts, tasks, sums);
        if (row < end && end == n_rows) cuts[at.units + own.units] = static_cast<Index>(n_rows);
    }
    if (before == nullptr && threadIdx.x % 32 == 0) counts[warp_number()] = sum;
}
