// The plan of spmmv_planes.cu for a matrix: which rows of X each step loads, and which slot of the ring holds the row of X of each entry.
//
//   for each step of a block's plane sweep, see spmmv_planes.cuh
//     the columns of the patch's entries are put into a table; before a unit's first plane, those that its first step needs of the previous
//       plane, at the second step those of the plane itself too (on a periodic grid the last plane precedes the first)
//     columns of the previous step's table that were loaded at most two steps ago keep their slots; the others are loaded;
//       rows that an earlier unit loaded are not kept, as they would have to be loaded again in the middle of this unit
//     each entry takes the slot of its column
//
// `failed` is set where steps load more rows than there is room for, or have more columns than the table holds: such a matrix is not a grid
// of planes.
//
// Config: ACROSS, LINES; ENTRIES, the most of a row; TABLE, a power of two; WARPS per block.
#include "common/stream.cuh"
#include "sparse/spmmv_planes.cuh"

constexpr u32 FULL = 0xffffffffu;
constexpr int THREADS = 32 * WARPS;
constexpr int NONE = -1, RUN = 16;  // columns that stay next to each other in a table, and so in the ring
constexpr u32 STEPS_KEPT = 2;

struct Table {
    int column[TABLE];
    u32 state[TABLE];  // steps since it was loaded, then 16 bits of its slot
};

struct Memory {
    Table tables[2];
    int loaded, fails;
};

__device__ __forceinline__ int home(int column) {
    const u32 run = static_cast<u32>(column) / RUN;
    return __umulhi(run * 2654435761u, TABLE / RUN) * RUN + column % RUN;
}

// The position of a column in a table, inserted if PUT; NONE where the table is full, or the column is absent and not to be inserted.
template <bool PUT>
__device__ __forceinline__ int place(Table& table, int column) {
    for (int i = 0; i < TABLE; ++i) {
        const int at = (static_cast<u32>(home(column)) + i) % TABLE;
        int found = table.column[at];
        if (PUT && found == NONE) found = atomicCAS(table.column + at, NONE, column);
        if (found == column || (PUT && found == NONE)) return at;
        if (found == NONE) return NONE;
    }
    return NONE;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    KERNEL(const int* pointers, const int* columns, int n_rows, int line, int plane, int depth, int programs, int* counts, int* loads,
           unsigned short* slots, int* failed) {
    SHARED(Memory, memory);
    const int thread = threadIdx.x, lane = thread % 32;
    PlaneSweep sweep(n_rows, line, plane, depth, blockIdx.x, programs);
    for (int i = thread; i < TABLE; i += THREADS) memory.tables[1].column[i] = NONE;
    if (thread == 0) memory.fails = 0;
    int position = 0, lately[3] = {};  // rows loaded in all, and in the last steps
    for (int at = 0; sweep.goes_on(); ++at, sweep.advance()) {
        const Step step = sweep.step;
        Table &now = memory.tables[at % 2], &past = memory.tables[1 - at % 2];
        for (int i = thread; i < TABLE; i += THREADS) now.column[i] = NONE;
        if (thread == 0) memory.loaded = 0;
        __syncthreads();

        // Calls take(entry, column) for the entries of the patch.
        const auto each_entry = [&](auto take) {
            for (int i = thread; i < LINES * ACROSS * ENTRIES; i += THREADS) {
                const int k = i % ENTRIES, point = i / ENTRIES % ACROSS, j = i / ENTRIES / ACROSS;
                if (point >= step.count(j, line)) continue;
                const int row = step.row + j * line + point;
                const int begin = __ldg(pointers + row);
                if (k < __ldg(pointers + row + 1) - begin) take(begin + k, __ldg(columns + begin + k));
            }
        };
        const bool starts = step.before == BEFORE;
        for (int i = thread; i < TABLE && !starts; i += THREADS)
            if (past.column[i] != NONE && past.state[i] >> 16 < STEPS_KEPT && place<true>(now, past.column[i]) == NONE) memory.fails = 1;
        const int here = step.row / plane;
        each_entry([&](int, int column) {
            const int ahead = column / plane - here;
            if (step.before > 0 && (ahead < -1 || (ahead > 1 - step.before && ahead <= 1))) return;
            if (place<true>(now, column) == NONE) memory.fails = 1;
        });
        __syncthreads();
        if (memory.fails) break;

        for (int i = thread; i < TABLE; i += THREADS) {
            const int column = now.column[i];
            u32 state = 0;
            bool is_new = column != NONE;
            if (is_new) {
                const int before = starts ? NONE : place<false>(past, column);
                if (before != NONE && past.state[before] >> 16 < STEPS_KEPT) {
                    state = past.state[before] + (1u << 16);
                    is_new = false;
                }
            }
            const u32 mask = __ballot_sync(FULL, is_new);
            int rank = lane == 0 ? atomicAdd(&memory.loaded, __popc(mask)) : 0;
            rank = __shfl_sync(FULL, rank, 0) + __popc(mask & ((1u << lane) - 1));
            if (is_new && rank < MOST) loads[static_cast<i64>(step.number) * MOST + rank] = column;
            if (is_new) state = (position + rank) % SLOTS;
            now.state[i] = state;
        }
        __syncthreads();

        if (step.before == 0)
            each_entry([&](int entry, int column) {
                const int found = place<false>(now, column);
                if (found != NONE) slots[entry] = static_cast<unsigned short>(now.state[found]);
            });
        if (thread == 0) {
            counts[step.number] = min(memory.loaded, MOST);
            if (memory.loaded > MOST || memory.loaded + lately[0] + lately[1] + lately[2] > SLOTS) memory.fails = 1;
        }
        position = (position + memory.loaded) % SLOTS;
        lately[0] = lately[1], lately[1] = lately[2], lately[2] = memory.loaded;
        __syncthreads();
    }
    __syncthreads();
    if (thread == 0 && memory.fails) *failed = 1;
}
