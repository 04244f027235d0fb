// Y = alpha (S - shift I) X + beta Y for a sparse S in CSR form and row-major X, Y.
//
//   for each patch of units, assigned in turn to the blocks of each tile of columns
//     for each unit of the patch, assigned in turn to the warps of the block, see spmmv_walk.cuh
//       (a unit has at most ROWS rows with at most ENTRIES entries)
//       its column indices and values are copied to shared memory, STAGES - 1 units ahead of their use
//       for each row i of the unit, shared by GROUPS = 32 / (LANES SPLIT) groups of lanes
//         for each entry k of the row, shared by SPLIT parts of a group, UNROLL of them in flight
//           sum[:] += value[k] X[column[k]][:]                                      LANES lanes, VECTORS packs of VECTOR columns each
//         the parts are added up, in a fixed order, and the first one stores Y[i][:]
//
// The matrix is read as one stream of whole lines for any row lengths, and a warp reads its entries from shared memory, so it waits only
// for rows of X. Products of wide blocks are limited by the bandwidth between L2 and L1. To reuse rows of X in L1, the warps of a block
// process neighbouring units, or, for a matrix of a grid, units of neighbouring lines and planes. All tiles of the same rows are processed
// at the same time, so that only one of them reads the matrix from memory and the others from L2. Warps never wait for each other.
//
// Units: `cuts` has the first row of each, and the number of rows at the end; without it they all have ROWS rows. A row of more than LONG_ROW
// entries is a unit of its own, which this kernel skips and spmmv_csr_long.cu computes.
//
// FLAT: the entries of a unit are shared by groups of LANES lanes regardless of their rows, so that no lane waits for a long row; the products
// are added to the rows' sums through shared memory. The 16-byte pieces of every 128 bytes of a slot are permuted, differently in each of
// eight such lines, so that rows whose lengths are multiples of a power of two do not all start in one bank.
//
// CODED: a slot has no values. `values` are the table of MAX_VALUES, which a block keeps in shared memory: in L1 it would be one more line per
// gather of rows, and L1 finds one line per cycle.
//
// DOTS: a lane sums up over its rows in registers, in double precision; at the end the groups of a warp and the warps of a block are
// added up in a fixed order, and parts[number][kind][column] takes the sums of the blocks of that number, one of each tile. Not for
// matrices with long rows.
//
// Types and problem: see spmmv.cuh.
// Config:  LANES, VECTORS, VECTOR, SPLIT, UNROLL; ROWS <= 32, ENTRIES, LONG_ROW <= ENTRIES; WARPS per block, BLOCKS a multiprocessor;
//          PLANES divides WARPS; FLAT.
// Shared:  WARPS STAGES (ENTRIES + 6) entries; CODED: the table; FLAT: and as many times WARPS rows of a tile.
#include "sparse/spmmv_gram.cuh"
#include "sparse/spmmv_walk.cuh"

constexpr u32 FULL = 0xffffffffu;
constexpr int STAGES = 2;  // units per warp in shared memory
constexpr int SHARE = LANES * SPLIT;  // lanes a row
constexpr int GROUPS = 32 / SHARE;
constexpr int ALIGN = 4;  // entries: copies start at 16-byte boundaries of columns and values
constexpr int SLOT_ALIGN = FLAT ? 32 : ALIGN;  // entries: whole lines of columns and values
constexpr int SLOT = (ENTRIES + 2 * (ALIGN - 1) + SLOT_ALIGN - ALIGN) / SLOT_ALIGN * SLOT_ALIGN;
static_assert(ROWS <= 32 && LONG_ROW <= ENTRIES);

// A row's last batch reads past its end: behind the columns are values, or as many places more.
constexpr int MARGIN = CODED ? (UNROLL * (FLAT ? 32 / LANES : SPLIT) + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN : 0;

struct alignas(FLAT ? 128 : 16) Slot {
    Entry columns[SLOT + MARGIN];
    S values[CODED ? 1 : SLOT];
};
static_assert(UNROLL * SPLIT <= SLOT && SLOT < 1 << 16);

// The offset of byte `at` of a slot's columns or values.
__device__ __forceinline__ int place(int at) { return FLAT ? at ^ (at >> 3 & 0x70) : at; }

template <class T>
__device__ __forceinline__ T entry(const T* entries, int k) {
    return *reinterpret_cast<const T*>(reinterpret_cast<const char*>(entries) + place(k * static_cast<int>(sizeof(T))));
}

struct Products {
    PackY at[FLAT ? SLOT * LANES * VECTORS : 1];
};

struct Staged {
    Slot slots[WARPS][STAGES];
    Products products[WARPS];
    S table[CODED ? MAX_VALUES : 1];
};

union Memory {
    Staged staged;
    Dot dots[WARPS][DOT_KINDS > 0 ? DOT_KINDS : 1][TILE];  // at the end
    Dot grams[GRAM_SUMS > 0 ? GRAM_SUMS : 1];              // after that
};

struct Rows {
    Index first;
    int count;
};

// Lane i: where the entries of row i begin and end.
struct Bounds {
    Rows rows;
    Index start, stop;
};

// The same relative to a slot, as start + 2^16 stop; NO_ROW for lanes without a row to work on.
struct Unit {
    Index first;
    u32 range;
};
constexpr u32 NO_ROW = ~0u;

__device__ __forceinline__ Bounds bounds_of(const Index* pointers, Rows rows, int lane) {
    return {rows, __ldg(pointers + rows.first + min(lane, rows.count)), __ldg(pointers + rows.first + min(lane + 1, rows.count))};
}

template <int BYTES>
__device__ __forceinline__ void copy_range(void* shared, const void* global, int bytes, int lane) {
#pragma unroll 4
    for (int first = 0; first < BYTES; first += 32 * 16) {
        const int at = first + lane * 16;
        if (at < bytes)
            async_copy_evict_first(static_cast<char*>(shared) + place(at), static_cast<const char*>(global) + at, min(16, bytes - at));
    }
}

__device__ __forceinline__ Unit fetch(Slot& slot, const Bounds& bounds, const Index* columns, const S* values, int lane) {
    const Index first = __shfl_sync(FULL, bounds.start, 0), end = __shfl_sync(FULL, bounds.stop, 31);
    const Index base = first & ~static_cast<Index>(ALIGN - 1);
    const bool is_long = bounds.rows.count == 1 && end - first > LONG_ROW;
    if (!is_long) {
        const int count = static_cast<int>(end - base);
        copy_range<SLOT * sizeof(Entry)>(slot.columns, columns + base, count * static_cast<int>(sizeof(Entry)), lane);
        if constexpr (!CODED) copy_range<sizeof(slot.values)>(slot.values, values + base, count * static_cast<int>(sizeof(S)), lane);
    }
    async_commit();
    const u32 range = static_cast<u32>(bounds.start - base) | static_cast<u32>(bounds.stop - base) << 16;
    return {bounds.rows.first, is_long || lane >= bounds.rows.count ? NO_ROW : range};
}

// Calls take(k, v, i, value[k], element i of pack v of row column[k] of X) for entries k = start, start + STEP, ..., UNROLL in flight.
template <int STEP, class Take>
__device__ __forceinline__ void gather(const Lane& block, const Slot& slot, const S* table, int start, int stop, Take take) {
    for (int k = start; k < stop; k += UNROLL * STEP) {
        PackX x[UNROLL][VECTORS];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const char* from = block.x_row(column_of(entry(slot.columns, k + u * STEP)));
#pragma unroll
            for (int v = 0; v < VECTORS; ++v) x[u][v].load_constant(Lane::x_at(from, v), k + u * STEP < stop && block.has(v));
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u)
            if (const int at = k + u * STEP; at < stop) {
                S s;
                if constexpr (CODED)
                    s = table[entry(slot.columns, at) >> CODE_BIT];
                else
                    s = entry(slot.values, at);
#pragma unroll
                for (int v = 0; v < VECTORS; ++v)
#pragma unroll
                    for (int i = 0; i < VECTOR; ++i) take(at, v, i, s, x[u][v].at[i]);
            }
    }
}

// Products of entries with rows of X, whatever rows the entries are of.
__device__ __forceinline__ void multiply_entries(const Lane& block, const Slot& slot, const S* table, int begin, int end, int lane,
                                                 Products& products) {
    constexpr int AT_A_TIME = 32 / LANES;
    const int group = lane / LANES;
    gather<AT_A_TIME>(block, slot, table, begin + group, group < AT_A_TIME ? end : begin, [&](int k, int v, int i, S s, X x) {
        products.at[(k * VECTORS + v) * LANES + lane % LANES].at[i] = multiply_add(Y{}, s, x);
    });
    __syncwarp();
}

__device__ __forceinline__ void add_products(const Products& products, int start, int stop, int lane, Sums& sums) {
#pragma unroll 4
    for (int k = start; k < stop; k += SPLIT)
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
#pragma unroll
            for (int i = 0; i < VECTOR; ++i)
                sums.at[v][i] = add(sums.at[v][i], products.at[(k * VECTORS + v) * LANES + lane % LANES].at[i]);
}

__device__ __forceinline__ void multiply_unit(const Lane& block, const Unit& unit, const Slot& slot, const S* table, Products& products,
                                              int lane, Dots& dots, Grams& grams) {
    const int group = lane / SHARE, part = lane % SHARE / LANES;
    const int rows = __popc(__ballot_sync(FULL, unit.range != NO_ROW));
    if constexpr (FLAT)
        multiply_entries(block, slot, table, __shfl_sync(FULL, unit.range, 0) & 0xffff, __shfl_sync(FULL, unit.range, rows - 1 & 31) >> 16, lane,
                         products);
#pragma unroll 1
    for (int first = 0; first < rows; first += GROUPS) {
        const int row = first + group;
        const bool busy = group < GROUPS && row < rows && (WIDTH % TILE == 0 || block.has(0));
        const u32 range = __shfl_sync(FULL, unit.range, row & 31);
        const int start = range & 0xffff, stop = busy ? range >> 16 : start;
        Lane::Own own;
        if (busy && part == 0) block.load(own, unit.first + row);
        Sums sums;
        if constexpr (FLAT)
            add_products(products, start + part, stop, lane, sums);
        else
            gather<SPLIT>(block, slot, table, start + part, stop, [&](int, int v, int i, S s, X x) { sums.at[v][i] = multiply_add(sums.at[v][i], s, x); });
#pragma unroll
        for (int parts = SPLIT / 2; parts > 0; parts /= 2)
#pragma unroll
            for (int v = 0; v < VECTORS; ++v)
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) sums.at[v][i] = add(sums.at[v][i], shuffle_down(sums.at[v][i], parts * LANES));
        if (busy && part == 0) block.finish(unit.first + row, sums, own, dots);
        if constexpr (GRAM != 0) grams.take(block, unit.first + first, rows - first, busy && block.fuses(unit.first + row), sums, lane);
    }
}

// By all threads of a block, which are done with `slots`; the same for the next.
__device__ __forceinline__ void store_dots(Memory& memory, Dots& sums, int warp, int lane, int tile, Dot* dots) {
    const int group = lane / SHARE;
    __syncthreads();
#pragma unroll
    for (int kind = 0; kind < DOT_KINDS; ++kind)
#pragma unroll
        for (int v = 0; v < VECTORS; ++v)
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) {
                Dot sum = sums.at[kind][v][i];
#pragma unroll
                for (int left = GROUPS; left > 1; left = (left + 1) / 2) {
                    const int half = (left + 1) / 2;
                    const Dot other = shuffle_down(sum, half * SHARE);
                    if (group < left - half) sum = add(sum, other);
                }
                if (lane < LANES) memory.dots[warp][kind][lane * VECTOR + v * STRIDE + i] = sum;
            }
    __syncthreads();
    for (int at = threadIdx.x; at < DOT_KINDS * TILE; at += 32 * WARPS) {
        const int kind = at / TILE, column = at % TILE, in_block = tile * TILE + column;
        Dot sum{};
#pragma unroll
        for (int w = 0; w < WARPS; ++w) sum = add(sum, memory.dots[w][kind][column]);
        if (in_block < WIDTH) dots[kind * WIDTH + in_block] = sum;
    }
}

__device__ __forceinline__ void store_grams(Memory& memory, const Grams& grams, int warp, int lane, Dot* sums) {
    grams.add_up(memory.grams, warp, lane);
    for (int at = threadIdx.x; at < GRAM_SUMS; at += 32 * WARPS) sums[at] = memory.grams[at];
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    KERNEL(const Index* pointers, const Index* columns, const S* values, Index n_rows, const Index* cuts, Index n_units, int line,
           i64 by_line, int lots, i64 by_lots, int plane, Dot* parts, const X* x, i64 ldx, Y* y, i64 ldy, Y* z, i64 ldz, Factor alpha, Factor beta, Factor shift, Factor delta,
           Factor eta, const Y* shifts, i64 fused_begin, i64 fused_end) {
    SHARED(Memory, memory);
    Slot(&slots)[WARPS][STAGES] = memory.staged.slots;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int blocks = gridDim.x / TILES;  // of a tile
    const int tile = blockIdx.x % TILES, number = blockIdx.x / TILES;
    const Lane block = lane_of(x, ldx, y, ldy, z, ldz, alpha, beta, shift, delta, eta, shifts, fused_begin, fused_end, tile, lane % LANES);
    Dots dots;
    Grams grams;
    if constexpr (CODED) {
        for (int i = threadIdx.x; i < MAX_VALUES; i += 32 * WARPS) memory.staged.table[i] = load_constant(values + i);
        __syncthreads();
    }

    Walk walk(n_units, line, by_line, lots, by_lots, plane, warp, number, blocks);
    const auto next_rows = [&]() -> Rows {
        const Index unit = walk.next();
        if (unit < 0) return {unit == Walk::END ? n_rows : 0, 0};
        const Index first = cuts ? __ldg(cuts + unit) : unit * ROWS;
        const Index end = cuts ? __ldg(cuts + unit + 1) : n_rows - first > ROWS ? first + ROWS : n_rows;
        return {first, static_cast<int>(end - first)};
    };

    // In flight: entries of STAGES - 1 units, the bounds of one more, the rows of the one after that.
    Bounds bounds = bounds_of(pointers, next_rows(), lane);
    Rows rows = next_rows();
    Unit units[STAGES];
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        units[s] = fetch(slots[warp][s], bounds, columns, values, lane);
        bounds = bounds_of(pointers, rows, lane);
        rows = next_rows();
    }
    for (int stage = 0; units[0].first < n_rows;) {
        const int free = stage == 0 ? STAGES - 1 : stage - 1;
        units[STAGES - 1] = fetch(slots[warp][free], bounds, columns, values, lane);
        bounds = bounds_of(pointers, rows, lane);
        rows = next_rows();
        async_wait<STAGES - 1>();
        __syncwarp();
        multiply_unit(block, units[0], slots[warp][stage], memory.staged.table, memory.staged.products[warp], lane, dots, grams);
        __syncwarp();
        stage = stage + 1 == STAGES ? 0 : stage + 1;
#pragma unroll
        for (int s = 0; s < STAGES - 1; ++s) units[s] = units[s + 1];
    }
    async_wait<0>();
    Dot* own_parts = parts + static_cast<i64>(number) * (DOT_KINDS * WIDTH + GRAM_SUMS);
    if constexpr (DOTS != 0) store_dots(memory, dots, warp, lane, tile, own_parts);
    if constexpr (GRAM != 0) store_grams(memory, grams, warp, lane, own_parts + DOT_KINDS * WIDTH);
}
