// C (M x N) = alpha A^T B + beta C or alpha A^H B + beta C for tall A (K x M), B (K x N) on FP64 tensor cores.
//
//   for each stage of ROWS rows (assigned to the blocks in turn)                   copied to shared memory ahead of time
//     for each step of 4 rows (shared by WK warps)
//       for each pair of 8-column groups i of A, j of B (shared by WM x WN warps)
//         acc[i][j] (8 x 8) += A(step, group i)^T B(step, group j)                  one tensor product
//   C = alpha (sum of acc over the WK warps, then over the blocks, in fixed order) + beta C
//
// The rows of A and B are the k index of the tensor product, whose order is free: a stage's rows are cut into four chunks
// of CHUNK consecutive ones, and lane (g, t) = (l / 4, l % 4) reads column g of its group from chunk t. Loads of 8 bytes are served by
// half-warps (4 columns x 4 chunks), those of 16 by quarter-warps (2 x 4): 32 bytes a chunk, free of bank conflicts where the chunks
// begin 32 bytes apart modulo 128. Chunks of 32 or 96 bytes modulo 128 do so as they lie in memory, and a stage is one copy. Rows of
// a multiple of 64 bytes cannot: there a GAP of 32 bytes between the second and the third chunk halves the conflicts (none are left
// where chunks are 64 bytes modulo 128, pairs where they are whole lines). Larger gaps are worse than conflicts: a bulk copy whose
// two addresses differ by 64 bytes or more modulo 128 runs at three quarters of its speed.
//
// Columns at and past M in the last group are the next row's first ones (or padding): they only reach rows of the product
// that are dropped. Rows past K are zero in both operands, so nothing outside them reaches a result, NaN or not.
//
// Real: two groups of A, (i, i+1), fill the 16 rows of an m16n8 product; of an odd number of groups the last one takes the role
// of the 8 columns, two groups of B that of the 16 rows (the product comes out transposed). So an 8 x 8 block costs half a
// product and only the last of an odd number of them is padded.
// Complex: (re, im) stay interleaved; with d the operand of fewer groups and s the other, m16n8 products of the 16 rows
// (d_re, d_im) by s_re and (d_im, -d_re) by s_im (the signs of A^T B: (-d_im, d_re)) add up re and im of d conj(s) (d s): two products an 8 x 8 block, no padding.
// THREE_M: three real products instead of those four (the 3M method; Higham, SIAM J. Matrix Anal. Appl. 13 (1992) 681),
//          T1 = A_re^T B_re, T2 = A_im^T B_im, T3 = (A_re -+ A_im)^T (B_re + B_im); A^H B = T1 + T2 + i (T3 - T1 + T2), with the upper sign,
//          A^T B = T1 - T2 + i (T3 - T1 - T2). Each is summed as a real product; a warp adds parts as it loads them.
// SWAPS: where the chunks begin at two addresses modulo 128, lanes of odd t load the columns of each two neighbouring groups in the other order, 64 bytes
//        apart modulo 128 (of elements of 16 bytes the second group takes its columns in the order 4..7, 0..3), and exchange them afterwards.
// SAME (B is A) with all of C in one warp, or complex with 2 x 2 warps: only blocks of one triangle are computed; see tsmttsm_shapes.cuh.
// FOLD > 1, for narrow matrices: FOLD consecutive rows are taken as one FOLD times as wide; C is the sum of the FOLD diagonal blocks of the product.
//
// Types:   Real: parts of elements. Float ones become double on their way from shared memory to a fragment: products are exact and sums in
//          double precision, at the rate of single precision multiply-adds with a fraction of their instructions.
// Problem: M, N; COMPLEX, CONJ, SAME; THREE_M; ALPHA_ONE, BETA_ZERO; A_PIECE, B_PIECE: 0, the operand is contiguous and 16-byte aligned (bulk copies), else
//          16, 8 or 4, bytes a cp.async copies of its rows.
// Config:  ROWS, STAGES of the ring; WM, WN, WK warps; FOLD; UNROLL of steps; AHEAD: fragments are loaded a step ahead; BLOCKS a
//          multiprocessor; PRODUCERS: warps that copy.
// Layout:  A_ROW, B_ROW bytes between (folded) rows in shared memory; A_PITCH, B_PITCH between chunks; A_GAP, B_GAP more between the second and
//          the third; B_OFFSET of B in a stage; STAGE_BYTES.
#include "common/mma.cuh"
#include "common/pipeline.cuh"
#include "common/reduce.cuh"
#include "common/views.cuh"

#ifdef WITH_BOXES
constexpr bool BOXES = true;
#define MAPS , const __grid_constant__ Maps maps
#else
constexpr bool BOXES = false;
#define MAPS
#endif

struct Maps {
    TensorMap map[8];
};

constexpr int PARTS = COMPLEX ? 2 : 1;
constexpr int SUMS = THREE_M ? 3 : PARTS;            // of products, for each element of C
constexpr int REAL = sizeof(Real), SIZE = REAL * PARTS;  // bytes of a real number, of an element
constexpr int CHUNK = ROWS / 4;                      // folded rows a chunk
constexpr int MF = FOLD * M, NF = FOLD * N;          // folded widths
constexpr int GM = (MF + 7) / 8, GN = (NF + 7) / 8;  // groups of 8 columns
constexpr int IM = (GM + WM - 1) / WM, IN = (GN + WN - 1) / WN;  // groups of a warp, at most
constexpr int IM_LEAST = GM / WM, IN_LEAST = GN / WN;           // and at least
constexpr int WARPS = WM * WN * WK, CONSUMERS = 32 * WARPS;
// The WK warps of a tile share the steps of a stage or, where they load ahead and there are stages enough, take the stages in turn:
// then they go on to the next stage at different times, and one keeps the tensor pipe busy meanwhile.
constexpr int TAKERS = AHEAD && STAGES > WK ? WK : 1, SHARERS = WK / TAKERS, READERS = WARPS / TAKERS;
constexpr bool B_IS_D = IN <= IM;                    // which operand plays d in complex products
constexpr bool A_BULK = A_PIECE == 0, B_BULK = B_PIECE == 0 && !SAME;
constexpr bool ANY_BULK = A_BULK || B_BULK, ANY_PIECES = !A_BULK || (B_PIECE != 0 && !SAME);

static_assert(ROWS % 4 == 0, "whole steps");
static_assert(COMPLEX || !(THREE_M || SWAPS), "for complex numbers");

#include "dense/tsmttsm_shapes.cuh"
#include "dense/tsmttsm_stages.cuh"

// ---- consumers

struct alignas(2 * REAL) Pair {
    Real re, im;
};

// The column of an odd group that lane g takes is g ^ TWIST.
constexpr int TWIST = SWAPS && SIZE == 16 ? 4 : 0;

// One step's columns of a warp's groups, lane (g, t) holding column g of row t.
template <int GROUPS, int ROW>
struct Fragments {
    double part[PARTS][GROUPS][1];

    __device__ __forceinline__ void load(const char* lane_base, int step, int groups, const int (&moved)[2], int t) {
#pragma unroll
        for (int group = 0; group < groups; ++group) {
            const int row = BOXES ? (step & ~3) | ((step + t) & 3) : step;
            const char* from = lane_base + row * ROW + group * 8 * SIZE;
            if (SWAPS && (group | 1) < groups) from += moved[group % 2];
            if constexpr (COMPLEX) {
                const Pair pair = *reinterpret_cast<const Pair*>(from);
                part[0][group][0] = pair.re;
                part[PARTS - 1][group][0] = pair.im;
            } else {
                part[0][group][0] = *reinterpret_cast<const Real*>(from);
            }
        }
    }

    // Brings the groups that an odd lane loaded in the other order into theirs.
    __device__ __forceinline__ void exchange(bool is_odd, int groups) {
#pragma unroll
        for (int group = 0; group + 1 < groups; group += 2)
#pragma unroll
            for (int p = 0; p < PARTS; ++p) {
                const double first = part[p][group][0], second = part[p][group + 1][0];
                part[p][group][0] = is_odd ? second : first;
                part[p][group + 1][0] = is_odd ? first : second;
            }
    }

    // A word that depends on all loads.
    __device__ __forceinline__ u32 token(int groups) const {
        u32 word = 0;
#pragma unroll
        for (int group = 0; group < groups; ++group) word |= __double2loint(part[0][group][0]);
        return word;
    }
};

using FragmentsA = Fragments<IM, A_ROW>;
using FragmentsB = Fragments<IN, SAME ? A_ROW : B_ROW>;

__device__ __forceinline__ double xor_words(double x, u32 high, u32 low) {
    return __hiloint2double(__double2hiint(x) ^ high, __double2loint(x) ^ low);
}

struct Accumulators {
    u32 keep, flip;
    // Block (i, j): lane (g, t) holds elements (g, 2t) and (g, 2t + 1), of the transposed block where `transposed` says so.
    double value[IM][IN][SUMS][2];

    static constexpr __device__ __forceinline__ bool transposed(int shape, int i, int j) {
        if (COMPLEX && !THREE_M) return B_IS_D;
        const int im = groups_of_a(shape), in = groups_of_b(shape);
        return !is_diagonal(shape) && im % 2 == 1 && i == im - 1 && !(in % 2 == 1 && j == in - 1);
    }

    // A real product.
    template <int SHAPE>
    __device__ __forceinline__ void add_real(int part, const double (&a)[IM][1], const double (&b)[IN][1]) {
        constexpr int GROUPS_A = groups_of_a(SHAPE), GROUPS_B = groups_of_b(SHAPE);
        if constexpr (is_diagonal(SHAPE)) {
#pragma unroll
            for (int j = 0; j < GROUPS_B; ++j) {
#pragma unroll
                for (int i = 0; i + 1 <= j; i += 2) mma_m16n8(value[i][j][part], value[i + 1][j][part], a[i], a[i + 1], b[j]);
                if (j % 2 == 0) mma_m8n8k4(value[j][j][part], a[j][0], b[j][0]);
            }
        } else {
#pragma unroll
            for (int j = 0; j < GROUPS_B; ++j)
#pragma unroll
                for (int i = 0; i + 1 < GROUPS_A; i += 2)
                    mma_m16n8(value[i][j][part], value[i + 1][j][part], a[i], a[i + 1], b[j]);
            if constexpr (GROUPS_A % 2 == 1) {
                constexpr int LAST = GROUPS_A - 1;
#pragma unroll
                for (int j = 0; j + 1 < GROUPS_B; j += 2)
                    mma_m16n8(value[LAST][j][part], value[LAST][j + 1][part], b[j], b[j + 1], a[LAST]);
                if constexpr (GROUPS_B % 2 == 1) mma_m8n8k4(value[LAST][GROUPS_B - 1][part], a[LAST][0], b[GROUPS_B - 1][0]);
            }
        }
    }

    // Re + Im of the groups of a fragment, or Re - Im.
    template <int GROUPS>
    static __device__ __forceinline__ void sum_parts(double (&sum)[GROUPS][1], const double (&part)[PARTS][GROUPS][1], bool minus) {
#pragma unroll
        for (int group = 0; group < GROUPS; ++group)
            sum[group][0] = minus ? part[0][group][0] - part[PARTS - 1][group][0] : part[0][group][0] + part[PARTS - 1][group][0];
    }

    template <int SHAPE, class FB>
    __device__ __forceinline__ void add_three(const FragmentsA& a, const FB& b) {
        double sum_a[IM][1], sum_b[IN][1];
        sum_parts(sum_a, a.part, CONJ);
        sum_parts(sum_b, b.part, false);
        add_real<SHAPE>(0, a.part[0], b.part[0]);
        add_real<SHAPE>(PARTS - 1, a.part[PARTS - 1], b.part[PARTS - 1]);
        add_real<SHAPE>(SUMS - 1, sum_a, sum_b);
    }

    // Turns the sums of three products into the real and the imaginary part.
    __device__ __forceinline__ void combine() {
#pragma unroll
        for (int i = 0; i < IM; ++i)
#pragma unroll
            for (int j = 0; j < IN; ++j)
#pragma unroll
                for (int q = 0; q < 2; ++q) {
                    const double re = value[i][j][0][q], im = value[i][j][PARTS - 1][q], both = value[i][j][SUMS - 1][q];
                    value[i][j][0][q] = CONJ ? re + im : re - im;
                    value[i][j][PARTS - 1][q] = both - (CONJ ? re - im : re + im);
                }
    }

    template <int SHAPE, class D, class S>
    __device__ __forceinline__ void add_complex(const D& d, const S& s) {
        constexpr int GROUPS_D = B_IS_D ? IN : IM, GROUPS_S = B_IS_D ? IM : IN;
#pragma unroll
        for (int y = 0; y < GROUPS_D; ++y) {
            const double first[1] = {xor_words(d.part[PARTS - 1][y][0], CONJ ? keep : flip, keep)};
            const double second[1] = {xor_words(d.part[0][y][0], CONJ ? flip : keep, keep)};
            auto products = [&](const double(&top)[1], const double(&bottom)[1], const auto& s_part) {
#pragma unroll
                for (int x = 0; x < GROUPS_S; ++x) {
                    const int i = B_IS_D ? x : y, j = B_IS_D ? y : x;
                    if (has_block(SHAPE, i, j)) mma_m16n8(value[i][j][0], value[i][j][PARTS - 1], top, bottom, s_part[x]);
                }
            };
            products(d.part[0][y], d.part[PARTS - 1][y], s.part[0]);
            products(first, second, s.part[PARTS - 1]);
        }
    }

    template <int SHAPE>
    __device__ __forceinline__ void add(const FragmentsA& a, const FragmentsB& b) {
        if constexpr (!COMPLEX) {
            if constexpr (TRIANGLE)
                add_real<SHAPE>(0, a.part[0], a.part[0]);
            else
                add_real<SHAPE>(0, a.part[0], b.part[0]);
        } else if constexpr (THREE_M) {
            if constexpr (is_diagonal(SHAPE))
                add_three<SHAPE>(a, a);
            else
                add_three<SHAPE>(a, b);
        } else if constexpr (is_diagonal(SHAPE)) {
            add_complex<SHAPE>(a, a);
        } else if constexpr (B_IS_D) {
            add_complex<SHAPE>(b, a);
        } else {
            add_complex<SHAPE>(a, b);
        }
    }

    // A word that depends on the last products: each is one of a block in the first row or column, or the last.
    __device__ __forceinline__ u32 token() const {
        u32 word = __double2loint(value[IM - 1][IN - 1][SUMS - 1][0]);
#pragma unroll
        for (int i = 0; i < IM; ++i) word |= __double2loint(value[i][0][SUMS - 1][0]);
#pragma unroll
        for (int j = 0; j < IN; ++j) word |= __double2loint(value[0][j][SUMS - 1][0]);
        return word;
    }

    // Sums over the WK warps of a tile, pairwise in a fixed order, into the warp with wk = 0. `slabs` is shared memory.
    __device__ __forceinline__ void sum_warps(double2* slabs, int tile, int wk, int lane) {
        constexpr int PAIRS = IM * IN * PARTS;
#pragma unroll
        for (int many = WK; many > 1; many = (many + 1) / 2) {
            const int half = (many + 1) / 2;
            double2* slab = slabs + ((wk >= half ? wk - half : wk) * WM * WN + tile) * PAIRS * 32 + lane;
            auto for_pairs = [&](auto action) {
#pragma unroll
                for (int k = 0; k < PAIRS; ++k) {
                    const int i = k / (IN * PARTS), j = k / PARTS % IN;
                    if (!(TRIANGLE && i > j)) action(value[i][j][k % PARTS], slab[32 * k]);
                }
            };
            if (wk >= half && wk < many) for_pairs([](double(&c)[2], double2& s) { s = make_double2(c[0], c[1]); });
            named_barrier<CONSUMERS>(1);
            if (wk + half < many)
                for_pairs([](double(&c)[2], double2& s) {
                    c[0] += s.x;
                    c[1] += s.y;
                });
            named_barrier<CONSUMERS>(1);
        }
    }

    // Writes the tile whose first groups are (m0, n0) into the MF x NF product in shared memory.
    __device__ __forceinline__ void store(double* product, int m0, int n0, int shape, int lane) const {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < IM; ++i)
#pragma unroll
            for (int j = 0; j < IN; ++j) {
                if (!has_block(shape, i, j)) continue;  // the block of another warp, or below the diagonal
                const bool has_mirror = (TRIANGLE || SPLIT_TRIANGLE) && m0 + i != n0 + j;
#pragma unroll
                for (int q = 0; q < 2; ++q) {
                    const bool swap = transposed(shape, i, j);
                    const int row = swap ? 2 * t + q : g, column = swap ? g : 2 * t + q;
                    const int m = (m0 + i) * 8 + (row ^ (i % 2 * TWIST)), n = (n0 + j) * 8 + (column ^ (j % 2 * TWIST));
                    if (m >= MF || n >= NF) continue;
#pragma unroll
                    for (int part = 0; part < PARTS; ++part) {
                        // If A has the role of d, the sum of the products is conj(A^H B).
                        const bool negative = CONJ && !THREE_M && part == 1 && !B_IS_D;
                        const double x = negative ? -value[i][j][part][q] : value[i][j][part][q];
                        product[(m * NF + n) * PARTS + part] = x;
                        if (has_mirror) product[(n * NF + m) * PARTS + part] = CONJ && part == 1 ? -x : x;
                    }
                }
            }
    }
};

// The offsets of a warp's columns in a stage, and its index among the WK warps that share the steps.
struct Place {
    int offset_a, offset_b, wk;
    int t;         // the chunk that the lane reads
    int moved[2];  // bytes from the columns of an even group, of an odd one, to those that the lane loads

    template <int SHAPE>
    __device__ __forceinline__ void load(FragmentsA& a, FragmentsB& b, const char* stage, int turn) const {
        const int step = turn * SHARERS + (TAKERS > 1 ? 0 : wk);
        a.load(stage + offset_a, step, groups_of_a(SHAPE), moved, t);
        if (!is_diagonal(SHAPE)) b.load(stage + offset_b, step, groups_of_b(SHAPE), moved, t);
    }

    template <int SHAPE>
    __device__ __forceinline__ void exchange(FragmentsA& a, FragmentsB& b, bool is_odd) const {
        if constexpr (SWAPS) {
            a.exchange(is_odd, groups_of_a(SHAPE));
            if (!is_diagonal(SHAPE)) b.exchange(is_odd, groups_of_b(SHAPE));
        }
    }

    template <int SHAPE>
    __device__ __forceinline__ u32 token(const FragmentsA& a, const FragmentsB& b) const {
        return a.token(groups_of_a(SHAPE)) | (is_diagonal(SHAPE) ? 0 : b.token(groups_of_b(SHAPE)));
    }
};

// All stages of a consumer warp.
template <int SHAPE>
__device__ __forceinline__ void consume(Accumulators& acc, const Place& place, char* shared, Ring<STAGES>& ring, const Source& source, int lane) {
    const i64 stages = source.stages();
    const i64 step = TAKERS * static_cast<i64>(gridDim.x);
    Cursor<STAGES> at;
    if (TAKERS > 1) at.stage = place.wk;
    i64 stage = blockIdx.x + at.stage * static_cast<i64>(gridDim.x);
    // The assembler moves the arrival at an emptied stage ahead of products without waiting for the loads that they need, and the copies of
    // the next stage overtake them. So the arrival is made to depend on the last loads, or where registers are short on the last products.
    FragmentsA a[2];
    FragmentsB b[2];
    if (AHEAD && stage < stages) {
        wait(ring.full + at.stage, at.parity);
        place.load<SHAPE>(a[0], b[0], shared + at.stage * STAGE_BYTES, 0);
    }
    for (; stage < stages; stage += step) {
        const Cursor<STAGES> now = at;
        char* from = shared + now.stage * STAGE_BYTES;
        int emptied = now.stage;
        at.advance<TAKERS>();
        if constexpr (AHEAD) {
            constexpr int TURNS = CHUNK / SHARERS;
#pragma unroll
            for (int turn = 0; turn < TURNS; ++turn) {
                const int next = (turn + 1) % 2;
                if (turn + 1 < TURNS) {
                    place.load<SHAPE>(a[next], b[next], from, turn + 1);
                } else if (stage + step < stages) {
                    wait(ring.full + at.stage, at.parity);
                    place.load<SHAPE>(a[next], b[next], shared + at.stage * STAGE_BYTES, 0);
                }
                place.exchange<SHAPE>(a[turn % 2], b[turn % 2], lane % 2);
                acc.add<SHAPE>(a[turn % 2], b[turn % 2]);
            }
            emptied += place.token<SHAPE>(a[(TURNS + 1) % 2], b[(TURNS + 1) % 2]) & acc.keep;
            a[0] = a[TURNS % 2];
            b[0] = b[TURNS % 2];
        } else {
            wait(ring.full + now.stage, now.parity);
#pragma unroll UNROLL
            for (int turn = 0; turn * WK + place.wk < CHUNK; ++turn) {
                place.load<SHAPE>(a[0], b[0], from, turn);
                place.exchange<SHAPE>(a[0], b[0], lane % 2);
                acc.add<SHAPE>(a[0], b[0]);
            }
            emptied += acc.token() & acc.keep;
        }
        __syncwarp();
        if constexpr (PRODUCERS > 0) {
            if (lane == 0) arrive(ring.empty + emptied);
        } else if (ring.is_last_reader(emptied, READERS, lane)) {
            const i64 next = stage + STAGES * static_cast<i64>(gridDim.x);
            if (next < stages) fill_bulk(from, ring.full + now.stage, source, next, lane);
        }
    }
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + 32 * PRODUCERS, BLOCKS)
KERNEL(const char* __restrict__ A, const char* __restrict__ B, Real* C, i64 K, i64 lda, i64 ldb, double alpha_re,
       double alpha_im, double beta_re, double beta_im, void* workspace MAPS) {
    DYNAMIC_SHARED(shared, 128);
    SHARED(Ring<STAGES>, ring);
    SHARED(u64, launch);
#ifdef WITH_BOXES
    const Source source = {A, B, K, lda, ldb, maps.map};
#else
    const Source source = {A, B, K, lda, ldb, nullptr};
#endif
    if (threadIdx.x == 0) {
        ring.init((ANY_BULK ? 1 : 0) + (ANY_PIECES ? 32 * PRODUCERS : 0), READERS);
    }
    __syncthreads();
    // From a shuffle, so that the compiler treats it as uniform in a warp: see elect_one().
    const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    if (PRODUCERS > 0 && warp >= WARPS) {
        produce(shared, ring, source);
        return;
    }

    // Tiles in order of size; every other set of four warps takes them backwards, and so does the second block of a multiprocessor, so
    // that its four quadrants, which serve warps in turn, get equal work.
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    constexpr int TILES = WM * WN, TURN = TILES > 4 ? TILES : 4;
    const int wk = warp / TILES;
    const bool backwards = (warp / TURN + blockIdx.x * BLOCKS / gridDim.x) % 2 && (TILES >= 4 || TURN % TILES == 0);
    const int tile = backwards ? TILES - 1 - warp % TILES : warp % TILES;
    const Tile own = tile_of(tile);
    const int m0 = own.m0, n0 = own.n0, shape = own.shape;

    const i64 stages = source.stages();
    if (PRODUCERS == 0 && warp == 0)
        for (int s = 0; s < STAGES && blockIdx.x + s * static_cast<i64>(gridDim.x) < stages; ++s)
            fill_bulk(shared + s * STAGE_BYTES, ring.full + s, source, blockIdx.x + s * static_cast<i64>(gridDim.x), lane);

    if (threadIdx.x == 0) launch = grid_started(workspace);
    Accumulators acc = {};
    acc.keep = static_cast<u32>(K >> 63);
    acc.flip = acc.keep ^ 0x80000000u;
    Place place;
    place.offset_a = t * A_PITCH + t / 2 * A_GAP + (m0 * 8 + g) * SIZE;
    place.offset_b = SAME ? place.offset_a + (n0 - m0) * 8 * SIZE : B_OFFSET + t * B_PITCH + t / 2 * B_GAP + (n0 * 8 + g) * SIZE;
    if constexpr (BOXES) {  // boxes begin at a multiple of 16 bytes
        const int shift_a = (reinterpret_cast<u64>(A) + t * lda * SIZE) % 16, shift_b = (reinterpret_cast<u64>(B) + t * ldb * SIZE) % 16;
        place.offset_a += shift_a;
        place.offset_b += SAME ? shift_a : shift_b;
    }
    place.wk = wk;
    place.t = t;
    const int twist = ((g ^ TWIST) - g) * SIZE;
    place.moved[0] = t % 2 ? 8 * SIZE + twist : 0;
    place.moved[1] = t % 2 ? -8 * SIZE : twist;
    // Shares of unequal size are told apart here and not at each product, where branches would keep loads from running ahead.
    if constexpr (SPLIT_TRIANGLE) {
        if (tile == 0)
            consume<SPLIT>(acc, place, shared, ring, source, lane);
        else if (tile == 1)
            consume<SPLIT + 1>(acc, place, shared, ring, source, lane);
        else if (tile == 2)
            consume<SPLIT + 2>(acc, place, shared, ring, source, lane);
        else
            consume<SPLIT + 3>(acc, place, shared, ring, source, lane);
    } else if (PINWHEEL && shape == ALL_N + CORNER)
        consume<PINWHEEL ? ALL_N + CORNER : 0>(acc, place, shared, ring, source, lane);
    else if (shape == ALL_M + ALL_N)
        consume<ALL_M + ALL_N>(acc, place, shared, ring, source, lane);
    else if (shape == ALL_M)
        consume<ALL_M>(acc, place, shared, ring, source, lane);
    else if (shape == ALL_N)
        consume<ALL_N>(acc, place, shared, ring, source, lane);
    else
        consume<0>(acc, place, shared, ring, source, lane);

    if constexpr (THREE_M) acc.combine();

    // The ring's memory is free after this barrier: the last stage has landed, and all warps have read it.
    const u32 started = threadIdx.x == 0 ? grid_seen(workspace) : 0;
    named_barrier<CONSUMERS>(1);
    acc.sum_warps(reinterpret_cast<double2*>(shared), tile, wk, lane);
    double* product = reinterpret_cast<double*>(shared);
    if (wk == 0) acc.store(product, m0, n0, shape, lane);
    if (threadIdx.x == 0) launch = grid_decided(launch, started);
    named_barrier<CONSUMERS>(1);

    auto finish = [&](int element, const double(&sum)[PARTS]) {
        Real* c = C + element * PARTS;
        if constexpr (COMPLEX) {
            double re = ALPHA_ONE ? sum[0] : alpha_re * sum[0] - alpha_im * sum[PARTS - 1];
            double im = ALPHA_ONE ? sum[PARTS - 1] : alpha_re * sum[PARTS - 1] + alpha_im * sum[0];
            if (!BETA_ZERO) {
                re += beta_re * c[0] - beta_im * c[1];
                im += beta_re * c[1] + beta_im * c[0];
            }
            c[0] = static_cast<Real>(re);
            c[1] = static_cast<Real>(im);
        } else {
            const double value = ALPHA_ONE ? sum[0] : alpha_re * sum[0];
            c[0] = static_cast<Real>(BETA_ZERO ? value : value + beta_re * c[0]);
        }
    };
#pragma unroll 1
    for (int element = threadIdx.x; element < M * N; element += CONSUMERS) {
        double sum[PARTS] = {};
        for (int fold = 0; fold < FOLD; ++fold)
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                const int m = element / N, n = element % N;
                const double x = product[((fold * M + m) * NF + fold * N + n) * PARTS + part];
                // A Gram matrix is Hermitian to the last bit: every block's part of it is.
                const double mirror = SAME ? product[((fold * M + n) * NF + fold * N + m) * PARTS + part] : x;
                sum[part] += SAME ? 0.5 * (x + (CONJ && part == 1 ? -mirror : mirror)) : x;
            }
        if (gridDim.x == 1) {
            finish(element, sum);
        } else {
#pragma unroll
            for (int part = 0; part < PARTS; ++part) grid_put<M * N * PARTS>(workspace, element * PARTS + part, sum[part], launch);
        }
    }
    if (gridDim.x > 1) grid_sum<M * N * PARTS, PARTS, CONSUMERS>(workspace, product, launch, finish);
}
