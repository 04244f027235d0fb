// Several steps of block Lanczos in one cooperative launch: W = A X, two projections, Cholesky QR, and again with X = W.
//
//   per step, with `end` columns of the basis V so far and a block X of B of them, from number m on:
//     W = A X, if `multiplies`     A in CSR form, `group` lanes per row
//     S1 = V^H W                   of the columns that W can couple to: `locked` ones and from m - back on, or all while m < full_until
//     W -= V S1, S2 = V^H W        of all columns
//     W -= V S2, G = W^H W         = R^H R, T = R^-1  as in elementwise/inverse_factor.cu
//     where the growth of the factorisation is above `enough`: W = W T, and R and T are multiplied by those of the new W^H W
//     W = W T, V[:, end:end+B] = W
//
// The second factorisation leaves rounding errors only, and the growth is that of the first. Where G has no accurate factor, T is the
// identity, and the growth is infinite: the host, which reads the small matrices of all steps afterwards, discards what follows. V is
// read from memory twice per step, and the columns of S1 once more.
//
// A warp owns tiles of 16 rows throughout, so that between products only sums cross blocks, in a fixed order: a warp's in registers, a
// block's over its warps, and the grid's over its blocks, of which each adds up some of the numbers. Rows are staged in shared memory by
// asynchronous copies of the warp, and multiplied on tensor cores, where a complex number is two real columns:
//
//     V^H W    real products Z of the columns of V and W, combined by `element_of`        k = rows
//     V S      the real form of -S in shared memory, `fragments`                          k = columns of V
//
// A staged row has PITCH = 4 mod 16 doubles, so that the 16 lanes that are served together, of four rows and four columns in either
// product, touch distinct banks. Loads of what other blocks have stored bypass the first-level cache.
//
// Config: COMPLEX; B: columns of a block, up to 8 real ones; TILES: V has up to 32 TILES columns; PIECE: bytes of a copy, 16 where rows of V
// are aligned so, else 8; THREADS: of a block. All blocks must run at the same time.
// The three passes over V are one loop, and loops off the rows' path are unrolled little: the time to compile is .58 of that of unrolled ones.
// report: per step 2 * 32 TILES + 3 B + 1 rows of B numbers: S1, S2, G, R, T, and the growth.
// work: the workspace of the stream; behind its counters the second Gram matrix, and partial sums of the blocks.
#include "common/mma.cuh"

using Real = double;
#include "sparse/steps.cuh"

constexpr int P = COMPLEX ? 2 : 1, COLUMNS = 32 * TILES, WARPS = THREADS / 32, PAIRS = (B * B + 31) / 32;
constexpr int WIDE = P * COLUMNS, NARROW = P * B;                       // real columns of V and W
constexpr int ROWS = 16, PITCH = WIDE + 4, STAGE = ROWS * (PITCH + 8);  // of a tile: doubles of a row of V, and of all of V and W
static_assert(NARROW <= 8, "a block is one tile of a tensor product");

__device__ __forceinline__ double square(Element x) { return real_part(multiply(conjugate(x), x)); }

// Columns from one number up to another.
struct Hole {
    int from, until;
};

// Element (i, q) of V^H W, from the real products Z of their columns, 8 per row.
template <class T>
__device__ __forceinline__ T element_of(const double* Z, int i, int q) {
    const double* const z = Z + P * i * 8 + P * q;
    if constexpr (IS_COMPLEX<T>)
        return {z[0] + z[9], z[1] - z[8]};
    else
        return z[0];
}

// Real row a of P and column b of P that stand for a number in a real form: (x + iy)(re + i im) = (x, y) ((re, im), (-im, re)).
template <class T>
__device__ __forceinline__ double real_form(T x, int a, int b) {
    if constexpr (IS_COMPLEX<T>)
        return a == b ? x.re : a == 0 ? x.im : -x.im;
    else
        return x;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    KERNEL(const int* starts, const int* columns, const Element* entries, Element* V, Element* X, Element* W, Element* report,
           char* work, i64 n, i64 ld, int m, int end, int back, int full_until, int locked, int steps, int multiplies, int group,
           double enough, double limit) {
    DYNAMIC_SHARED(memory, 128);  // fragments of S and T, and of each warp a tile
    SHARED_ARRAY(Element, small, [2 * B * B]);  // A and T of the factorisation
    SHARED_ARRAY(double, grown, [1]);
    const double infinite = 1 / 0.0;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = gridDim.x, g = lane / 4, t = lane % 4;
    const i64 team = static_cast<i64>(blockIdx.x) * WARPS + warp, teams = static_cast<i64>(blocks) * WARPS;
    Grid grid{reinterpret_cast<u32*>(work)};
    Element* const second = reinterpret_cast<Element*>(work + 128);
    Element* const partials = second + B * B;
    double* const fragments = reinterpret_cast<double*>(memory);
    double* const stages = fragments + WIDE * 8;
    double* const v = stages + warp * STAGE;  // rows of V, then of W
    double* const w = v + ROWS * PITCH;

    // Calls use(first row) for each tile of this warp, of which W and the real columns of V are staged, up to `until` and without those of
    // the hole, whose bounds are multiples of 16. What lies outside of the matrix is zero.
    const auto each_tile = [&](int until, Hole hole, auto use) {
        for (i64 base = team * ROWS; base < n; base += teams * ROWS) {
            for (int r = lane / 8; r < ROWS; r += 4) {
                const bool inside = base + r < n;
                const double* const row = reinterpret_cast<const double*>(V + (inside ? (base + r) * ld : 0));
                for (int c = lane % 8 * (PIECE / 8); c < until; c += PIECE) {
                    if (c >= hole.from && c < hole.until) continue;
                    async_copy<PIECE>(v + r * PITCH + c, row + c, inside ? min(PIECE, 8 * (until - c)) : 0);
                }
            }
            const double* const block = reinterpret_cast<const double*>(W + base * B);
            const int rows = min(n - base, static_cast<i64>(ROWS));
            for (int c = 2 * lane; c < ROWS * NARROW; c += 64) {
                const int bytes = max(0, min(16, 8 * (rows * NARROW - c)));
                async_copy<16>(w + c, bytes ? block + c : block, bytes);
            }
            async_commit();
            async_wait<0>();
            __syncwarp();
            use(base);
            __syncwarp();
        }
    };

    // W of a tile as the accumulators of a product: rows g and g + 8, columns 2t and 2t + 1.
    const auto load_sums = [&](double(&c)[2][2]) {
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int e = 0; e < 2; ++e) c[h][e] = 2 * t + e < NARROW ? w[(g + 8 * h) * NARROW + 2 * t + e] : 0.0;
    };
    const auto each_sum = [&](i64 base, auto use) {
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (2 * t + e < NARROW && base + g + 8 * h < n) use(h, e, g + 8 * h, 2 * t + e);
    };
    // W -= V S of a tile, by the real columns of V up to `until`; also in memory.
    const auto subtract = [&](i64 base, int until) {
        double c[2][2];
        load_sums(c);
#pragma unroll 4
        for (int x = 0; x < until; x += 4) {
            const bool inside = x + t < until;
            const double top[1] = {inside ? v[g * PITCH + x + t] : 0.0}, bottom[1] = {inside ? v[(g + 8) * PITCH + x + t] : 0.0};
            const double b[1] = {fragments[(x + t) * 8 + g]};
            mma_m16n8(c[0], c[1], top, bottom, b);
        }
        __syncwarp();
        each_sum(base, [&](int h, int e, int r, int q) {
            w[r * NARROW + q] = c[h][e];
            reinterpret_cast<double*>(W + base * B)[r * NARROW + q] = c[h][e];
        });
        __syncwarp();
    };
    // Four rows of W as a factor.
    const auto row_of = [&](int u) { return g < NARROW ? w[(t + 4 * u) * NARROW + g] : 0.0; };

    double of_tile[WIDE / 16][2][2];  // real products of 16 columns of V and those of W
    const auto clear = [&] {
#pragma unroll
        for (int tile = 0; tile < WIDE / 16; ++tile)
#pragma unroll
            for (int h = 0; h < 2; ++h) of_tile[tile][h][0] = of_tile[tile][h][1] = 0;
    };
    const auto project = [&](int until, Hole hole) {
#pragma unroll 1  // more would not fit into registers
        for (int u = 0; u < ROWS / 4; ++u) {
            const double b[1] = {row_of(u)};
            const double* const row = v + (t + 4 * u) * PITCH + g;
#pragma unroll
            for (int tile = 0; tile < WIDE / 16; ++tile) {
                if (16 * tile >= until || (16 * tile >= hole.from && 16 * tile < hole.until)) continue;
                const double top[1] = {row[16 * tile]}, bottom[1] = {row[16 * tile + 8]};
                mma_m16n8(of_tile[tile][0], of_tile[tile][1], top, bottom, b);
            }
        }
    };
    const auto put = [&](int row, const double(&pair)[2]) {
        v[row * 8 + 2 * t] = pair[0];
        v[row * 8 + 2 * t + 1] = pair[1];
    };
    // Adds up `rows` rows of B numbers of all warps, from the places of `put`, into `into`, which all blocks can read afterwards; rows from
    // `locked` to `first` are left out.
    const auto add_up = [&](int first, int rows, Element* into) {
        const auto is_out = [&](int e) { return e >= locked * B && e < first * B; };
        __syncthreads();
        for (int e = threadIdx.x; e < rows * B; e += THREADS) {
            if (is_out(e)) continue;
            Element sum = element_of<Element>(stages, e / B, e % B);
#pragma unroll 4
            for (int k = 1; k < WARPS; ++k) sum = add(sum, element_of<Element>(stages + k * STAGE, e / B, e % B));
            partials[static_cast<i64>(e) * blocks + blockIdx.x] = sum;
        }
        grid.barrier();
        for (int e = warp * blocks + blockIdx.x; e < rows * B; e += WARPS * blocks) {
            if (is_out(e)) continue;
            const Element* const of_blocks = partials + static_cast<i64>(e) * blocks;
            Element sum{};
#pragma unroll 2
            for (int k = lane; k < blocks; k += 32) sum = add(sum, load_stored(of_blocks + k));
            sum = summed(sum);
            if (lane == 0) into[e] = sum;
        }
        grid.barrier();
    };
    const auto add_up_columns = [&](int first, Element* into) {
#pragma unroll
        for (int tile = 0; tile < WIDE / 16; ++tile)
#pragma unroll
            for (int h = 0; h < 2; ++h) put(16 * tile + 8 * h + g, of_tile[tile][h]);
        add_up(first, end, into);
    };
    // -S as a factor: real rows up to a multiple of four, of which those from `locked` to `first` and behind `end` are zero.
    const auto take = [&](int first, const Element* S) {
#pragma unroll 1
        for (int e = threadIdx.x; e < (P * end + 3) / 4 * 32; e += THREADS) {
            const int i = e / 8 / P, q = e % 8 / P;
            const bool inside = (i >= first || i < locked) && i < end && q < B;
            fragments[e] = inside ? -real_form(load_stored(S + i * B + q), e / 8 % P, e % P) : 0.0;
        }
        __syncthreads();
    };

    // R in A, T and the growth for a Gram matrix, by one warp; T also as a factor. Where the growth is
    // not below a limit, it is infinite, and T is the identity.
    Element* const A = small;
    Element* const T = small + B * B;
    const auto factorise = [&](const Element* G) {
        if (warp == 0) {
            for (int e = lane; e < B * B; e += 32) {
                const int i = e / B, j = e % B;
                const Element g = multiply(add(load_stored(G + e), conjugate(load_stored(G + j * B + i))), 0.5);
                A[e] = j < i ? Element{} : g;
                T[e] = g;  // for its diagonal
            }
            __syncwarp();
            double of_g = 0;
            if (lane < B) of_g = real_part(T[lane * B + lane]);
            bool refused = false;
#pragma unroll 1
            for (int k = 0; k < B; ++k) {
                const double pivot = real_part(A[k * B + k]);
                refused = refused || !(pivot > 0);
                Element changed[PAIRS];
#pragma unroll
                for (int u = 0; u < PAIRS; ++u) {
                    const int e = lane + 32 * u, i = e / B, j = e % B;
                    if (e >= B * B) continue;
                    changed[u] = A[e];
                    if (i > k) {
                        const Element by = multiply(conjugate(A[k * B + i]), -1 / pivot);
                        if (j >= i || j < k)
                            changed[u] = add(A[e], multiply(by, A[k * B + j]));
                        else if (j == k)
                            changed[u] = by;
                    }
                }
                __syncwarp();
#pragma unroll
                for (int u = 0; u < PAIRS; ++u)
                    if (lane + 32 * u < B * B) A[lane + 32 * u] = changed[u];
                __syncwarp();
            }
            // t_ij for i <= j
            const auto inverse = [&](int i, int j) {
                const double scale = 1 / sqrt(real_part(A[j * B + j]));
                return i == j ? convert<Element>(scale) : multiply(conjugate(A[j * B + i]), scale);
            };
            double sum = 0;
            if (lane < B)
#pragma unroll 1
                for (int j = lane; j < B; ++j) sum += square(inverse(lane, j));
            double growth = sum * of_g;
            for (int mask = 16; mask > 0; mask /= 2) growth += __shfl_xor_sync(ALL, growth, mask);
            refused = refused || !(growth < limit);
            __syncwarp();
            Element changed[PAIRS];
#pragma unroll
            for (int u = 0; u < PAIRS; ++u) {
                const int e = lane + 32 * u, i = e / B, j = e % B;
                if (e >= B * B) continue;
                const Element unit = convert<Element>(i == j ? 1.0 : 0.0);
                const bool upper = j >= i && !refused;
                T[e] = upper ? inverse(i, j) : unit;
                changed[u] = upper ? multiply(A[e], 1 / sqrt(real_part(A[i * B + i]))) : unit;
            }
            __syncwarp();
#pragma unroll
            for (int u = 0; u < PAIRS; ++u)
                if (lane + 32 * u < B * B) A[lane + 32 * u] = changed[u];
            if (lane == 0) grown[0] = refused ? infinite : growth;
        }
        __syncthreads();
        for (int e = threadIdx.x; e < 64; e += THREADS) {
            const int p = e / 8 / P, q = e % 8 / P;
            fragments[e] = p < B && q < B ? real_form(T[p * B + q], e / 8 % P, e % P) : 0.0;
        }
        __syncthreads();
    };
    // Writes R, T and the growth behind G, by one warp; or multiplies R and T by those of a second factorisation: W T = (W T T2) R2.
    const auto report_factor = [&](Element* G, bool again) {
        Element *const R = G + B * B, *const inverse = R + B * B;
        Element changed[2][PAIRS];
#pragma unroll
        for (int u = 0; u < PAIRS; ++u) {
            const int e = lane + 32 * u, i = e / B, j = e % B;
            if (e >= B * B) continue;
            changed[0][u] = again ? Element{} : A[e];
            changed[1][u] = again ? Element{} : T[e];
            for (int k = 0; again && k < B; ++k) {
                changed[0][u] = add(changed[0][u], multiply(A[i * B + k], R[k * B + j]));
                changed[1][u] = add(changed[1][u], multiply(inverse[i * B + k], T[k * B + j]));
            }
        }
        __syncwarp();
#pragma unroll
        for (int u = 0; u < PAIRS; ++u) {
            const int e = lane + 32 * u;
            if (e >= B * B) continue;
            R[e] = changed[0][u];
            inverse[e] = changed[1][u];
        }
        if (lane < B && !(again && grown[0] < infinite)) inverse[B * B + lane] = convert<Element>(grown[0]);
        __syncwarp();
    };
    // W T of a staged tile.
    const auto multiply_rows = [&] {
        double c[2][2] = {};
#pragma unroll
        for (int x = 0; x < NARROW; x += 4) {
            const bool inside = x + t < NARROW;
            const double top[1] = {inside ? w[g * NARROW + x + t] : 0.0}, bottom[1] = {inside ? w[(g + 8) * NARROW + x + t] : 0.0};
            const double b[1] = {fragments[(x + t) * 8 + g]};
            mma_m16n8(c[0], c[1], top, bottom, b);
        }
        __syncwarp();
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (2 * t + e < NARROW) w[(g + 8 * h) * NARROW + 2 * t + e] = c[h][e];
        __syncwarp();
    };

    for (int step = 0; step < steps; ++step, m += B, end += B, report += (2 * COLUMNS + 3 * B + 1) * B) {
        if (multiplies) {  // W = A X, rows of this warp's tiles, 32 / group at a time
            const int together = 32 / group;
            const auto start_of = [&](i64 row) { return static_cast<i64>(starts[min(row, n)]); };
            i64 row = team * ROWS + lane / group, begin = start_of(row), stop = start_of(row + 1);
            for (int in_tile = together; row - lane / group < n; in_tile = in_tile % ROWS + together) {
                const i64 next = row + together + (in_tile < ROWS ? 0 : (teams - 1) * ROWS);
                const i64 next_begin = start_of(next), next_stop = start_of(next + 1);  // before the loads that depend on this row's
                Element y[B] = {};
                add_entries(columns, entries, X, begin + lane % group, stop, group, y, [](int) { return 1.0; });
#pragma unroll
                for (int q = 0; q < B; ++q) y[q] = summed(y[q], group);
                if (row < n && lane % group == 0)
#pragma unroll
                    for (int q = 0; q < B; ++q) W[row * B + q] = y[q];
                row = next;
                begin = next_begin;
                stop = next_stop;
            }
            __syncwarp();
        }

        const int first = m < full_until ? 0 : max(0, m - back);
        const Hole hole{(P * locked + 15) / 16 * 16, P * first / 16 * 16}, none{0, 0};
        double of_pair[2] = {};
#pragma unroll 1
        for (int pass = 0; pass < 3; ++pass) {
            const Hole out = pass ? none : hole;
            clear();
            each_tile(P * end, out, [&](i64 base) {
                if (pass) subtract(base, P * end);
                if (pass < 2)
                    project(P * end, out);
                else
#pragma unroll
                    for (int u = 0; u < ROWS / 4; ++u) mma_m8n8k4(of_pair, row_of(u), row_of(u));
            });
            if (pass == 2) break;
            Element* const S = report + pass * COLUMNS * B;
            add_up_columns(pass ? 0 : first, S);
            take(pass ? 0 : first, S);
        }
        put(g, of_pair);
        Element* const found = report + 2 * COLUMNS * B;
        add_up(0, B, found);

        for (bool again = false, more = true; more; again = true) {
            factorise(again ? second : found);
            if (blockIdx.x == 0 && warp == 0) report_factor(found, again);
            more = !again && grown[0] > enough && grown[0] < infinite;
            double of_rows[2] = {};
            each_tile(0, none, [&](i64 base) {
                multiply_rows();
                each_sum(base, [&](int h, int e, int r, int q) {
                    const double x = w[r * NARROW + q];
                    reinterpret_cast<double*>(W + base * B)[r * NARROW + q] = x;
                    if (!more) reinterpret_cast<double*>(V + (base + r) * ld + end)[q] = x;
                });
                if (more)
#pragma unroll
                    for (int u = 0; u < ROWS / 4; ++u) mma_m8n8k4(of_rows, row_of(u), row_of(u));
            });
            if (!more) break;
            put(g, of_rows);
            add_up(0, B, second);
        }
        grid.barrier();
        Element* const former = X;
        X = W;
        W = former;
    }
    grid.reset();
}
