// Several steps of block Lanczos in one cooperative launch: W = A X, two projections, Cholesky QR, and again with X = W.
//
//   per step, with `end` columns of the basis V so far and a block X of B of them, from number m on:
//     W = A X, if `multiplies`     A in CSR form, `group` lanes per row
//     S1 = V^H W                   of the columns that W can couple to: `locked` ones and from m - back on, or all while m < full_until
//     W -= V S1, S2 = V^H W        of all columns, and G = W^H W
//     G - S2^H S2 = R^H R          of what S2 will leave; T = R^-1  as in elementwise/inverse_factor.cu
//     W = (W - V S2) T             where the growth of the factorisation is above `enough`, times the inverse factor of this W^H W, too
//     V[:, end:end+B] = W
//
// The second factorisation leaves rounding errors only, and the growth is that of the first; R and T are the products of both. Where
// the matrix has no accurate factor, T is the identity, and the growth is infinite: the host, which reads the small matrices of all
// steps afterwards, discards what follows, as it does where S2 is not small. V is read from memory twice per step, and the columns of S1
// once more.
//
// A warp owns tiles of 16 rows throughout, so that between products only sums cross blocks, in a fixed order: a warp's in registers, a
// block's over its warps, and the grid's over its blocks, of which each adds up some of the numbers. Rows are staged in shared memory by
// asynchronous copies of the warp, of as many tiles at once as there is room for, and multiplied on tensor cores, where a complex number
// is two real columns:
//
//     V^H W    real products Z of the columns of V and W, combined by `element_of`        k = rows
//     V S      the real form of -S in shared memory, `fragments`                          k = columns of V
//
// A staged row of V has 4 mod 16 doubles, so that the 16 lanes that are served together, of four rows and four columns in either
// product, touch distinct banks. Loads of what other blocks have stored bypass the first-level cache.
//
// Config: COMPLEX; B: columns of a block, up to 8 real ones; TILES: V has up to 32 TILES columns; PIECE: bytes of a copy, 16 where rows of V
// are aligned so, else 8; THREADS: of a block; STAGE: doubles of shared memory of a warp. All blocks must run at the same time.
// report: per step 2 * 32 TILES + 3 B + 1 rows of B numbers: S1, S2, G, R, T, and the growth.
// work: one counter in its first 128 bytes, zero; then the second Gram matrix, and partial sums of the blocks.
#include "common/element.cuh"
#include "common/mma.cuh"

using Element = ElementOf<COMPLEX, double>;

constexpr u32 ALL = 0xffffffffu;
constexpr int P = COMPLEX ? 2 : 1, COLUMNS = 32 * TILES, WARPS = THREADS / 32, PAIRS = (B * B + 31) / 32;
constexpr int WIDE = P * COLUMNS, NARROW = P * B;                       // real columns of V and W
constexpr int ROWS = 16, MOST_STAGED = ROWS * (WIDE + 4 + NARROW);      // of a tile, and doubles of its V and W
static_assert(NARROW <= 8, "a block is one tile of a tensor product");
static_assert(STAGE >= MOST_STAGED && STAGE % 16 == 0, "a warp has room for a tile");

template <class T>
__device__ __forceinline__ T load_stored(const T* p) {
    if constexpr (IS_COMPLEX<T>)
        return {__ldcg(&p->re), __ldcg(&p->im)};
    else
        return __ldcg(p);
}

// A row of X or W, in loads of 16 bytes where it has an even number of doubles.
template <class T>
__device__ __forceinline__ void load_row(const T* p, T (&row)[B]) {
    if constexpr (IS_COMPLEX<T> || B % 2 == 0) {
#pragma unroll
        for (int i = 0; i < (COMPLEX ? B : B / 2); ++i) {
            const double2 pair = __ldcg(reinterpret_cast<const double2*>(p) + i);
            if constexpr (IS_COMPLEX<T>) {
                row[i] = {pair.x, pair.y};
            } else {
                row[2 * i] = pair.x;
                row[2 * i + 1] = pair.y;
            }
        }
    } else {
#pragma unroll
        for (int q = 0; q < B; ++q) row[q] = load_stored(p + q);
    }
}

template <class T>
__device__ __forceinline__ T exchanged(T x, int mask) {
    if constexpr (IS_COMPLEX<T>)
        return {__shfl_xor_sync(ALL, x.re, mask), __shfl_xor_sync(ALL, x.im, mask)};
    else
        return __shfl_xor_sync(ALL, x, mask);
}

// The sum over groups of so many lanes, in all of them.
__device__ __forceinline__ Element summed(Element x, int lanes = 32) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
        if (mask < lanes) x = add(x, exchanged(x, mask));
    return x;
}

__device__ __forceinline__ double square(Element x) { return real_part(multiply(conjugate(x), x)); }

// Adds the product of every `stride`-th entry to y.
__device__ __forceinline__ void add_entries(const int* columns, const Element* entries, const Element* X, int at, int until, int stride,
                                            Element (&y)[B]) {
#pragma unroll(COMPLEX && B > 2 ? 2 : 4)  // more would not fit into registers
    for (; at < until; at += stride) {
        const Element a = entries[at];
        Element x[B];
        load_row(X + static_cast<i64>(columns[at]) * B, x);
#pragma unroll
        for (int q = 0; q < B; ++q) y[q] = add(y[q], multiply(a, x[q]));
    }
}

// Columns from one number up to another.
struct Hole {
    int from, until;
};

struct Grid {
    u32* arrived;
    u32 target = 0;

    __device__ __forceinline__ void meet() {
        __syncthreads();
        target += gridDim.x;
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(arrived, 1u);
            while (load_acquire(arrived) < target) {}
            __threadfence();
        }
        __syncthreads();
    }
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

// A number of a real form, from the first row and column that stand for it.
template <class T>
__device__ __forceinline__ T first_of(const double* x) {
    if constexpr (IS_COMPLEX<T>)
        return {x[0], x[1]};
    else
        return x[0];
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
           char* work, int n, i64 ld, int m, int end, int back, int full_until, int locked, int steps, int multiplies, int group,
           double enough, double limit) {
    DYNAMIC_SHARED(memory, 128);  // fragments of S, and of each warp its tiles
    SHARED_ARRAY(Element, small, [2 * B * B]);  // A and T of the factorisation
    SHARED_ARRAY(double, factor, [64]);         // the real form of T
    SHARED_ARRAY(double, grown, [1]);
    const double infinite = 1 / 0.0;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = gridDim.x, g = lane / 4, t = lane % 4;
    const int team = blockIdx.x * WARPS + warp, teams = blocks * WARPS;
    Grid grid{reinterpret_cast<u32*>(work)};
    Element* const second = reinterpret_cast<Element*>(work + 128);
    Element* const partials = second + B * B;
    double* const fragments = reinterpret_cast<double*>(memory);
    double* const stages = fragments + WIDE * 8;
    double* const stage = stages + warp * STAGE;
    double *v = stage, *w = stage;  // the tile that is used: rows of V, `pitch` doubles apart, and of W
    int pitch = 0;

    // Asynchronous copies of real columns of V in rows of a tile, of which some are inside of the matrix.
    const auto stage_columns = [&](int base, int rows, int from, int until) {
        const double* const source = reinterpret_cast<const double*>(V + base * ld);
        for (int c = from + lane % 8 * (PIECE / 8); c < until; c += PIECE) {
            const int bytes = min(PIECE, 8 * (until - c));
            const double* from_row = source + lane / 8 * (P * ld) + c;
#pragma unroll 1  // more would not fit into registers
            for (int r = lane / 8; r < ROWS; r += 4, from_row += 4 * P * ld)
                async_copy<PIECE>(v + r * pitch + c, r < rows ? from_row : source, r < rows ? bytes : 0);
        }
    };
    const auto rows_from = [&](int base) { return min(n - base, ROWS); };
    // Calls use(first row) for each tile of this warp, of which W and the real columns of V are staged, up to `until` and without those of
    // the hole, whose bounds are multiples of 16. What lies outside of the matrix is zero.
    const auto each_tile = [&](int until, Hole hole, auto use) {
        pitch = until > 0 ? (until + 15) / 16 * 16 + 4 : 0;
        const int staged = ROWS * (pitch + NARROW);
        const int apart = teams * ROWS, at_once = STAGE / staged * apart;
        for (int first = team * ROWS; first < n; first += at_once) {
            const int last = min(n, first + at_once);
            v = stage;
            for (int base = first; base < last; base += apart, v += staged) {
                const int rows = rows_from(base);
                stage_columns(base, rows, 0, hole.from);
                stage_columns(base, rows, hole.until, until);
                w = v + ROWS * pitch;
                const double* const block = reinterpret_cast<const double*>(W + base * B);
                for (int c = 2 * lane; c < ROWS * NARROW; c += 64) {
                    const int bytes = max(0, min(16, 8 * (rows * NARROW - c)));
                    async_copy<16>(w + c, bytes ? block + c : block, bytes);
                }
            }
            async_commit();
            async_wait<0>();
            __syncwarp();
            v = stage;
            for (int base = first; base < last; base += apart, v += staged) {
                w = v + ROWS * pitch;
                use(base);
            }
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
    const auto store_sums = [&](const double(&c)[2][2]) {
        __syncwarp();
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (2 * t + e < NARROW) w[(g + 8 * h) * NARROW + 2 * t + e] = c[h][e];
        __syncwarp();
    };
    // W -= V S of a tile, by real columns of V.
    const auto subtract = [&](int until, Hole hole) {
        double c[2][2];
        load_sums(c);
        const auto add_columns = [&](int from, int to) {
#pragma unroll 1  // more would not fit into registers
            for (int x = from + t; x < to + t; x += 4) {
                const bool inside = x < to;
                const double top[1] = {inside ? v[g * pitch + x] : 0.0}, bottom[1] = {inside ? v[(g + 8) * pitch + x] : 0.0};
                const double b[1] = {fragments[x * 8 + g]};
                mma_m16n8(c[0], c[1], top, bottom, b);
            }
        };
        add_columns(0, hole.from);
        add_columns(hole.until, until);
        store_sums(c);
    };
    // W = W T of a tile.
    const auto multiply_tile = [&] {
        double c[2][2] = {};
#pragma unroll
        for (int x = 0; x < NARROW; x += 4) {
            const bool inside = x + t < NARROW;
            const double top[1] = {inside ? w[g * NARROW + x + t] : 0.0}, bottom[1] = {inside ? w[(g + 8) * NARROW + x + t] : 0.0};
            const double b[1] = {factor[(x + t) * 8 + g]};
            mma_m16n8(c[0], c[1], top, bottom, b);
        }
        store_sums(c);
    };
    const auto store_tile = [&](int base) {
        double* const block = reinterpret_cast<double*>(W + base * B);
        const int numbers = rows_from(base) * NARROW;
        for (int c = 2 * lane; c < numbers; c += 64)
            if (c + 1 < numbers)
                *reinterpret_cast<double2*>(block + c) = *reinterpret_cast<const double2*>(w + c);
            else
                block[c] = w[c];
    };
    const auto append_tile = [&](int base) {
        double* const row = reinterpret_cast<double*>(V + base * ld + end);
        const int numbers = rows_from(base) * NARROW;
        for (int c = lane; c < numbers; c += 32) row[c / NARROW * (P * ld) + c % NARROW] = w[c];
    };
    // Four rows of W as a factor.
    const auto row_of = [&](int u) { return g < NARROW ? w[(t + 4 * u) * NARROW + g] : 0.0; };
    const auto add_gram = [&](double(&of_pair)[2]) {
#pragma unroll
        for (int u = 0; u < ROWS / 4; ++u) mma_m8n8k4(of_pair, row_of(u), row_of(u));
    };

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
            const double* const row = v + (t + 4 * u) * pitch + g;
#pragma unroll
            for (int tile = 0; tile < WIDE / 16; ++tile) {
                if (16 * tile >= until || (16 * tile >= hole.from && 16 * tile < hole.until)) continue;
                const double top[1] = {row[16 * tile]}, bottom[1] = {row[16 * tile + 8]};
                mma_m16n8(of_tile[tile][0], of_tile[tile][1], top, bottom, b);
            }
        }
    };
    const auto put = [&](int row, const double(&pair)[2]) {
        stage[row * 8 + 2 * t] = pair[0];
        stage[row * 8 + 2 * t + 1] = pair[1];
    };
    // Adds up `rows` rows of B numbers of all warps, from the places of `put`, into `into`, which all blocks can read afterwards; those of
    // the hole are left out.
    const auto add_up = [&](int rows, Hole hole, Element* into) {
        const auto is_out = [&](int e) { return e >= hole.from * B && e < hole.until * B; };
        __syncthreads();
        for (int e = threadIdx.x; e < rows * B; e += THREADS) {
            if (is_out(e)) continue;
            Element sum = element_of<Element>(stages, e / B, e % B);
            for (int k = 1; k < WARPS; ++k) sum = add(sum, element_of<Element>(stages + k * STAGE, e / B, e % B));
            partials[e * blocks + blockIdx.x] = sum;
        }
        grid.meet();
        for (int e = warp * blocks + blockIdx.x; e < rows * B; e += WARPS * blocks) {
            if (is_out(e)) continue;
            const Element* const of_blocks = partials + e * blocks;
            Element sum{};
            for (int k = lane; k < blocks; k += 32) sum = add(sum, load_stored(of_blocks + k));
            sum = summed(sum);
            if (lane == 0) into[e] = sum;
        }
        grid.meet();
    };
    const auto put_columns = [&] {
#pragma unroll
        for (int tile = 0; tile < WIDE / 16; ++tile)
#pragma unroll
            for (int h = 0; h < 2; ++h) put(16 * tile + 8 * h + g, of_tile[tile][h]);
    };
    // -S as a factor: real rows up to a multiple of four, of which those from `locked` to `first` and behind `end` are zero.
    const auto take = [&](int first, const Element* S) {
        for (int e = threadIdx.x; e < (P * end + 3) / 4 * 32; e += THREADS) {
            const int i = e / 8 / P, q = e % 8 / P;
            const bool inside = (i >= first || i < locked) && i < end && q < B;
            fragments[e] = inside ? -real_form(load_stored(S + i * B + q), e / 8 % P, e % P) : 0.0;
        }
        __syncthreads();
    };

    // R in A, T and the growth for a Gram matrix, or that less S^H S, by one warp; T also as a factor. Where the growth is not below a
    // limit, it is infinite, and T is the identity.
    Element* const A = small;
    Element* const T = small + B * B;
    const auto factorise = [&](const Element* G, bool subtracts) {
        if (warp == 0) {
            double squares[2] = {};  // of the real form of S
            for (int x = t; subtracts && x < (P * end + 3) / 4 * 4; x += 4) mma_m8n8k4(squares, fragments[x * 8 + g], fragments[x * 8 + g]);
            put(g, squares);
            __syncwarp();
            for (int e = lane; e < B * B; e += 32) {
                const int i = e / B, j = e % B;
                const Element h = multiply(add(load_stored(G + e), conjugate(load_stored(G + j * B + i))), 0.5);
                const Element rest = add(h, multiply(first_of<Element>(stage + P * i * 8 + P * j), -1));
                A[e] = j < i ? Element{} : rest;
                T[e] = rest;  // for its diagonal
            }
            __syncwarp();
            double of_g = 0;
            if (lane < B) of_g = real_part(T[lane * B + lane]);
            bool refused = false;
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
            factor[e] = p < B && q < B ? real_form(T[p * B + q], e / 8 % P, e % P) : 0.0;
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
    for (int step = 0; step < steps; ++step, m += B, end += B, report += (2 * COLUMNS + 3 * B + 1) * B) {
        if (multiplies) {  // W = A X, rows of this warp's tiles, 32 / group at a time
            const int together = 32 / group;
            const auto start_of = [&](int row) { return starts[min(row, n)]; };
            int row = team * ROWS + lane / group, begin = start_of(row), stop = start_of(row + 1);
            for (int in_tile = together; row - lane / group < n; in_tile = in_tile % ROWS + together) {
                const int next = row + together + (in_tile < ROWS ? 0 : (teams - 1) * ROWS);
                const int next_begin = start_of(next), next_stop = start_of(next + 1);  // before the loads that depend on this row's
                Element y[B] = {};
                add_entries(columns, entries, X, begin + lane % group, stop, group, y);
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
        const Hole none{0, 0}, inner{(P * locked + 15) / 16 * 16, P * first / 16 * 16};
        const Hole hole = inner.from < inner.until ? inner : none;
        clear();
        each_tile(P * end, hole, [&](int) { project(P * end, hole); });
        put_columns();
        add_up(end, {locked, first}, report);
        take(first, report);

        Element *const S2 = report + COLUMNS * B, *const found = S2 + COLUMNS * B;
        double of_pair[2] = {};
        clear();
        each_tile(P * end, none, [&](int base) {
            subtract(P * end, hole);
            store_tile(base);
            project(P * end, none);
            add_gram(of_pair);
        });
        put_columns();
        put(WIDE + g, of_pair);
        add_up(COLUMNS + B, {end, COLUMNS}, S2);
        take(0, S2);

        for (bool is_first = true, again = true; again; is_first = false) {
            factorise(is_first ? found : second, is_first);
            if (blockIdx.x == 0 && warp == 0) report_factor(found, !is_first);
            again = is_first && grown[0] > enough && grown[0] < infinite;
            of_pair[0] = of_pair[1] = 0;
            each_tile(is_first ? P * end : 0, none, [&](int base) {
                if (is_first) subtract(P * end, none);
                multiply_tile();
                store_tile(base);
                if (again)
                    add_gram(of_pair);
                else
                    append_tile(base);
            });
            if (again) {
                put(g, of_pair);
                add_up(B, none, second);
            }
        }
        grid.meet();
        Element* const former = X;
        X = W;
        W = former;
    }
}
