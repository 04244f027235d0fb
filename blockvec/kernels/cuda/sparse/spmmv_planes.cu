// Y = alpha (S - shift I) X + beta Y for a sparse S in CSR form on a grid of planes: rows of X are used from shared memory.
//
//   for each step of a block's plane sweep, see spmmv_planes.cuh
//     rows of X that the next step needs and the ring lacks are copied into it, and that step's slots and values beside it
//     for each row of the step's patch, shared by groups of LANES lanes
//       for each entry k of the row, UNROLL of them in flight
//         sum[:] += value[k] ring[slot[k]][:]                                      LANES lanes, VECTORS packs of VECTOR columns each
//       the row of Y is stored
//
// A warp waits for shared memory only, and copies in flight take no registers. spmmv_planes_plan.cu has computed which rows each step
// loads, `loads`, and the slot of the ring that holds the row of X of each entry, `slots`, which replaces its column index.
// A row is summed up in the order of its entries, as spmmv_csr.cu does with SPLIT = 1: the results are the same to the last bit.
//
// Besides memory, the limit is the rate at which shared memory serves 128 bytes: a row of X per entry, and an entry's slot and value for
// every 32 / LANES rows. Few lanes with many packs each are therefore fastest. Eight lanes read 128 bytes at a time; where they belong to
// several rows, these take their packs in different orders to avoid bank conflicts.
//
// Types and problem: see spmmv.cuh. 32-bit indices; X of the type of Y, its rows in packs of 16 bytes; whole tiles.
// Config:  LANES, VECTORS, VECTOR; UNROLL; SHARED_BYTES; ENTRIES, the most of a row; ACROSS, LINES; WARPS per block, BLOCKS per multiprocessor.
// Registers: UNROLL VECTORS packs of X, VECTORS packs of sums, and ~45 more.
// Shared:  SLOTS rows of a tile of X, and the entries of two patches.
#include "sparse/spmmv.cuh"
#include "sparse/spmmv_planes.cuh"

constexpr int THREADS = 32 * WARPS, GROUPS = THREADS / LANES;
constexpr int PIECE = 16;  // bytes of a copy
constexpr int RING_ROW = TILE * static_cast<int>(sizeof(X)), ROW_PIECES = RING_ROW / PIECE;
constexpr int ALIGN = 8;  // entries: copies of slots and values start at multiples of 16 bytes
constexpr int SEGMENT = (ACROSS * ENTRIES + 2 * ALIGN - 1) / ALIGN * ALIGN;
constexpr int VALUE_PIECES = SEGMENT * static_cast<int>(sizeof(S)) / PIECE, SLOT_PIECES = SEGMENT * 2 / PIECE;
static_assert(WIDTH % TILE == 0 && DOTS == 0 && GRAM == 0 && X_ALIGNED && VECTOR * sizeof(X) == PIECE && sizeof(Index) == 4);
static_assert(UNROLL <= ALIGN && MOST <= THREADS && LINES * (ACROSS + 1) <= THREADS, "a thread reads one of each");

using Slot = unsigned short;

struct Entries {
    S values[LINES][SEGMENT];
    Slot slots[LINES][SEGMENT];  // behind the values, as a row's last batch reads values past its end
};

struct Memory {
    Entries entries[2];
    int loads[2][MOST];
    int pointers[3][LINES][ACROSS + 1];
};
static_assert(SLOTS * RING_ROW + sizeof(Memory) <= SHARED_BYTES);

// Packs that differ in their position among the first TURNS lie in different banks.
constexpr int lowest_bit(int n) { return n & -n; }
constexpr int TURNS = lowest_bit(VECTORS);

// The offset of pack v of a lane in a row of the ring; `mine` contains the lane's turn.
__device__ __forceinline__ int pack_at(int mine, int v) { return (mine ^ v % TURNS * LANES * PIECE) + v / TURNS * TURNS * LANES * PIECE; }

__device__ __forceinline__ void in_turn(Sums& sums, int turn) {
#pragma unroll
    for (int bit = 1; bit < TURNS; bit *= 2)
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
#pragma unroll
            for (int i = 0; i < VECTOR; ++i)
                if ((v & bit) == 0 && (turn & bit) != 0) {
                    const Y other = sums.at[v][i];
                    sums.at[v][i] = sums.at[v ^ bit][i];
                    sums.at[v ^ bit][i] = other;
                }
}

__device__ __forceinline__ void gather(const char* ring, const S* values, const Slot* slots, int begin, int end, int mine, Sums& sums) {
#pragma unroll 1
    for (int k = begin; k < end; k += UNROLL) {
        S value[UNROLL];
        PackX x[UNROLL][VECTORS];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int row = (k + u < end ? slots[k + u] : 0) * RING_ROW + mine;
            value[u] = values[k + u];
#pragma unroll
            for (int v = 0; v < VECTORS; ++v) x[u][v].load(ring + pack_at(row, v));
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (k + u < end)
#pragma unroll
                for (int v = 0; v < VECTORS; ++v)
#pragma unroll
                    for (int i = 0; i < VECTOR; ++i) sums.at[v][i] = multiply_add(sums.at[v][i], value[u], x[u][v].at[i]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    KERNEL(const int* pointers, const S* values, const Slot* slots, const int* counts, const int* loads, int n_rows, int line, int plane,
           int depth, int programs, const X* x, i64 ldx, Y* y, i64 ldy, Y* z, i64 ldz, Factor alpha, Factor beta, Factor shift, Factor delta,
           Factor eta, const Y* shifts) {
    DYNAMIC_SHARED(ring, 128);
    Memory& memory = *reinterpret_cast<Memory*>(ring + SLOTS * RING_ROW);
    const int thread = threadIdx.x, tile = blockIdx.x % TILES, lane = thread % LANES;
    const int turn = thread % 8 / LANES % TURNS, mine = lane * PIECE + turn * LANES * PIECE;
    const Lane block = lane_of(x, ldx, y, ldy, z, ldz, alpha, beta, shift, delta, eta, shifts, tile, lane);
    const char* from = reinterpret_cast<const char*>(x + tile * TILE);
    const int on_line = thread / (ACROSS + 1), at_point = thread % (ACROSS + 1);

    // Read two steps ahead, one row pointer and one row index of X per thread, and not used before the next step, not even the count: the
    // warp would wait for it.
    struct Lists {
        int pointer, load, count;
    };
    const auto read = [&](const Step& step) -> Lists {
        const int points = step.count(on_line, line);
        return {step.before == 0 && at_point <= points && points > 0 ? __ldg(pointers + step.row + on_line * line + at_point) : 0,
                thread < MOST ? __ldg(loads + static_cast<i64>(step.number) * MOST + thread) : 0, __ldg(counts + step.number)};
    };
    const auto keep = [&](const Lists& lists, int at) {
        if (thread < MOST) memory.loads[at % 2][thread] = lists.load;
        if (on_line < LINES) memory.pointers[at % 3][on_line][at_point] = lists.pointer;
    };
    const auto fetch = [&](const Step& step, int count, int first, int at) {
        const int* rows = memory.loads[at % 2];
        for (int i = thread; i < count * ROW_PIECES; i += THREADS) {
            const int row = i / ROW_PIECES, piece = i % ROW_PIECES;
            const int slot = first + row < SLOTS ? first + row : first + row - SLOTS;
            async_copy<16>(ring + slot * RING_ROW + piece * PIECE, row_address(from, rows[row], block.x_pitch) + piece * PIECE, 16);
        }
        if (step.before > 0) return;
        Entries& entries = memory.entries[at % 2];
        const auto starts = memory.pointers[at % 3];
        for (int i = thread; i < LINES * (VALUE_PIECES + SLOT_PIECES); i += THREADS) {
            const bool of_values = i < LINES * VALUE_PIECES;
            const int j = of_values ? i / VALUE_PIECES : (i - LINES * VALUE_PIECES) / SLOT_PIECES;
            const int piece = of_values ? i % VALUE_PIECES : (i - LINES * VALUE_PIECES) % SLOT_PIECES;
            const int base = starts[j][0] & -ALIGN, size = of_values ? static_cast<int>(sizeof(S)) : 2;
            const int left = (starts[j][step.count(j, line)] - base) * size - piece * PIECE;
            const char* source = of_values ? reinterpret_cast<const char*>(values + base) : reinterpret_cast<const char*>(slots + base);
            char* to = of_values ? reinterpret_cast<char*>(entries.values[j]) : reinterpret_cast<char*>(entries.slots[j]);
            if (left > 0) async_copy_evict_first(to + piece * PIECE, source + piece * PIECE, min(PIECE, left));
        }
    };
    const auto compute = [&](const Step& step, int at) {
        const Entries& entries = memory.entries[at % 2];
#pragma unroll 1
        for (int r = thread / LANES; r < ACROSS * LINES; r += GROUPS) {
            const int j = r / ACROSS, i = r % ACROSS;
            if (i >= step.count(j, line)) continue;
            const int* starts = memory.pointers[at % 3][j];
            const int base = starts[0] & -ALIGN;
            Sums sums;
            gather(ring, entries.values[j], entries.slots[j], starts[i] - base, starts[i + 1] - base, mine, sums);
            in_turn(sums, turn);
            Lane::Own own;  // loaded late: ahead of the gathers it would cost registers
            Dots none;
            const i64 row = step.row + j * line + i;
            block.load(own, row);
            block.finish(row, sums, own, none);
        }
    };

    PlaneSweep sweep(n_rows, line, plane, depth, blockIdx.x / TILES, programs);
    if (!sweep.goes_on()) return;
    Step now = sweep.step, ahead;
    Lists lists = read(now);
    int count = lists.count, first = 0;
    keep(lists, 0);
    __syncthreads();
    fetch(now, count, first, 0);
    async_commit();
    first += count;
    sweep.advance();
    bool more = sweep.goes_on();
    if (more) {
        ahead = sweep.step;
        lists = read(ahead);
        count = lists.count;
        keep(lists, 1);
    }
#pragma unroll 1
    for (int at = 0;; ++at) {
        async_wait<0>();
        __syncthreads();  // this step's rows and entries have arrived, and no warp works on the previous step
        const bool fetches = more;
        Step later = ahead;
        if (fetches) {
            fetch(ahead, count, first, at + 1);
            first = first + count < SLOTS ? first + count : first + count - SLOTS;
            sweep.advance();
            more = sweep.goes_on();
            if (more) {
                later = sweep.step;
                lists = read(later);
            }
        }
        async_commit();
        if (now.before == 0) compute(now, at);
        if (!fetches) break;
        count = lists.count;
        keep(lists, at + 2);
        now = ahead;
        ahead = later;
    }
}
