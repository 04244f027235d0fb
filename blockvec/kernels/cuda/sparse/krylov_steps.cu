// Several steps of block Lanczos in one cooperative launch: W = A X, two projections, Cholesky QR, and again with X = W.
//
//   per step, with `end` columns of the basis V so far and the block X = the last B of them:
//     W = A X, if `multiplies`     A in CSR form, `group` lanes per row, a whole block for rows of more than LONG entries per lane
//     S1 = V^H W, W -= V S1        of the columns from `first` on, to which W can couple; of all, while m < full_until
//     S2 = V^H W, W -= V S2        of all columns
//     G = W^H W = R^H R, T = R^-1  as in elementwise/inverse_factor.cu
//     W = W T, V[:, end:end+B] = W
//
// Where G has no accurate factor, T is the identity, and the growth is infinite: the host, which reads the small matrices of all steps
// afterwards, discards what follows. Rows of V and W belong to one warp throughout, so that between products only sums cross blocks. Every
// block adds up the partial sums of all blocks itself, in the same order, and five barriers of the grid separate the phases of a step. Loads
// of what other blocks have stored bypass the first-level cache.
//
// Config: COMPLEX; B: columns of a block; TILES: V has up to 32 TILES columns; ROWS: that a warp loads at a time;
// THREADS: of a block. All blocks must run at the same time.
// Types:  Index: of row pointers and columns.
// report: per step 2 * 32 TILES + 3 B + 1 rows of B numbers: S1, S2, G, R, T, and the growth.
// work: one counter in its first 128 bytes, zero; then partial sums.
#include "common/element.cuh"

using Element = ElementOf<COMPLEX, double>;

constexpr u32 ALL = 0xffffffffu;
constexpr int LONG = 32, WAITING = 32;  // entries per lane from which on a row waits for all warps of a block, and such rows per warp
constexpr int COLUMNS = 32 * TILES, PARTIALS = COLUMNS * B, WARPS = THREADS / 32, PAIRS = (B * B + 31) / 32;

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

template <class T>
__device__ __forceinline__ T from_lane(T x, int lane) {
    if constexpr (IS_COMPLEX<T>)
        return {__shfl_sync(ALL, x.re, lane), __shfl_sync(ALL, x.im, lane)};
    else
        return __shfl_sync(ALL, x, lane);
}

// The sum over groups of so many lanes, in all of them.
__device__ __forceinline__ Element summed(Element x, int lanes = 32) {
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2)
        if (mask < lanes) x = add(x, exchanged(x, mask));
    return x;
}

// Number `lane` of B, without an index into registers, which would put them into memory.
__device__ __forceinline__ Element of_lane(const Element (&x)[B], int lane) {
    Element mine = x[0];
#pragma unroll
    for (int q = 1; q < B; ++q) mine = lane == q ? x[q] : mine;
    return mine;
}

// Adds numbers HALF, HALF + 1 ... of other lanes to the first HALF ones, in half of the lanes the other way round, until one is left.
template <int HALF>
__device__ __forceinline__ void halve(Element (&x)[B]) {
    if constexpr (HALF > 0) {
        constexpr int MASK = 32 / B * HALF;
        const bool upper = threadIdx.x & MASK;
#pragma unroll
        for (int q = 0; q < HALF; ++q) {
            const Element sent = upper ? x[q] : x[q + HALF], kept = upper ? x[q + HALF] : x[q];
            x[q] = add(kept, exchanged(sent, MASK));
        }
        halve<HALF / 2>(x);
    }
}

// The sums of B numbers over all lanes, in all of them: halves of the numbers are exchanged for halves of the lanes, as far as there are any,
// and what is one number per lane then goes to all lanes.
__device__ __forceinline__ void sum_all(Element (&x)[B]) {
    if constexpr ((B & (B - 1)) != 0 || B == 1) {
#pragma unroll
        for (int q = 0; q < B; ++q) x[q] = summed(x[q]);
    } else {
        halve<B / 2>(x);
        const Element mine = summed(x[0], 32 / B);
#pragma unroll
        for (int q = 0; q < B; ++q) x[q] = from_lane(mine, q * (32 / B));
    }
}

__device__ __forceinline__ Element less(Element a, Element b) { return add(a, multiply(b, -1.0)); }
__device__ __forceinline__ double square(Element x) { return real_part(multiply(conjugate(x), x)); }

// Adds the product of every `stride`-th entry to y.
__device__ __forceinline__ void add_entries(const Index* columns, const Element* entries, const Element* X, i64 at, i64 until, int stride,
                                            Element (&y)[B]) {
#pragma unroll 4
    for (; at < until; at += stride) {
        const Element a = entries[at];
        Element x[B];
        load_row(X + static_cast<i64>(columns[at]) * B, x);
#pragma unroll
        for (int q = 0; q < B; ++q) y[q] = add(y[q], multiply(a, x[q]));
    }
}

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

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    KERNEL(const Index* starts, const Index* columns, const Element* entries, Element* V, Element* X, Element* W, Element* report,
           char* work, i64 n, i64 ld, int m, int end, int full_until, int steps, int multiplies, int group, double limit) {
    SHARED_ARRAY(Element, sums, [PARTIALS]);
    SHARED_ARRAY(Element, small, [2 * B * B]);  // A and T of the factorisation
    SHARED_ARRAY(i64, long_rows, [WARPS][WAITING]);
    SHARED_ARRAY(int, many, [WARPS]);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = gridDim.x;
    const i64 team = static_cast<i64>(blockIdx.x) * WARPS + warp, teams = static_cast<i64>(blocks) * WARPS;
    Grid grid{reinterpret_cast<u32*>(work)};
    Element* const partials = reinterpret_cast<Element*>(work + 128);

    // Stores the block's sums for the others.
    const auto store = [&](int part, int count) {
        Element* const mine = partials + static_cast<i64>(part) * PARTIALS * blocks + blockIdx.x;
        for (int e = threadIdx.x; e < count; e += THREADS) mine[static_cast<i64>(e) * blocks] = sums[e];
    };
    // Adds up what all blocks have stored, after they have met; also into rows of the report.
    const auto take = [&](int part, int first, int count, Element* into) {
        for (int e = first + warp; e < count; e += WARPS) {
            const Element* const from = partials + (static_cast<i64>(part) * PARTIALS + e) * blocks;
            Element sum{};
            for (int k = lane; k < blocks; k += 32) sum = add(sum, load_stored(from + k));
            sum = summed(sum);
            if (lane == 0) {
                sums[e] = sum;
                if (blockIdx.x == 0) into[e] = sum;
            }
        }
        __syncthreads();
    };

    for (int step = 0; step < steps; ++step, m += B, end += B, report += (2 * COLUMNS + 3 * B + 1) * B) {
        if (multiplies) {  // W = A X
            int waiting = 0;  // rows of this warp
            for (i64 base = team * (32 / group); base < n; base += teams * (32 / group)) {
                const i64 row = base + lane / group;
                const i64 begin = row < n ? static_cast<i64>(starts[row]) : 0, stop = row < n ? static_cast<i64>(starts[row + 1]) : 0;
                const bool leads = lane % group == 0, is_long = stop - begin > LONG * group;
                const u32 longs = __ballot_sync(ALL, leads && is_long), before = (u32{1} << (lane - lane % group)) - 1;
                const int at = waiting + __popc(longs & before);
                const bool waits = is_long && at < WAITING;
                waiting += __popc(longs);
                if (waits && leads) long_rows[warp][at] = row;
                Element y[B] = {};
                if (!waits) add_entries(columns, entries, X, begin + lane % group, stop, group, y);
#pragma unroll
                for (int q = 0; q < B; ++q) y[q] = summed(y[q], group);
                if (row < n && leads && !waits)
#pragma unroll
                    for (int q = 0; q < B; ++q) W[row * B + q] = y[q];
            }
            if (lane == 0) many[warp] = min(waiting, WAITING);
            __syncthreads();
            // Rows of this block that would keep a few lanes busy for long: all of its warps share one.
            for (int next = 0; next < WARPS * WAITING; ++next) {
                const int of = next / WAITING, at = next % WAITING;
                if (at >= many[of]) continue;
                const i64 row = long_rows[of][at];
                Element y[B] = {};
                add_entries(columns, entries, X, static_cast<i64>(starts[row]) + threadIdx.x, static_cast<i64>(starts[row + 1]), THREADS, y);
                sum_all(y);
                const Element mine = of_lane(y, lane);
                if (lane < B) sums[warp * B + lane] = mine;
                __syncthreads();
                if (threadIdx.x < B) {
                    Element sum{};
                    for (int w = 0; w < WARPS; ++w) sum = add(sum, sums[w * B + threadIdx.x]);
                    W[row * B + threadIdx.x] = sum;
                }
                __syncthreads();
                }
            grid.meet();
        }

        Element of_column[TILES][B];  // of the columns lane, lane + 32 ...
        // Stores in `work` would keep the loads of later rows behind them: some rows are loaded at a time.
        const auto each_row = [&](int first, auto work) {
            for (i64 begin = team; begin < n; begin += ROWS * teams) {
                Element v[ROWS][TILES], w[ROWS][B];
#pragma unroll
                for (int s = 0; s < ROWS; ++s) {
                    const i64 row = begin + s * teams;
#pragma unroll
                    for (int q = 0; q < B; ++q) w[s][q] = Element{};
                    if (row < n) load_row(W + row * B, w[s]);
#pragma unroll
                    for (int t = 0; t < TILES; ++t) {
                        const int i = lane + 32 * t;
                        v[s][t] = row < n && i >= first && i < end ? V[row * ld + i] : Element{};
                    }
                }
#pragma unroll
                for (int s = 0; s < ROWS; ++s) work(begin + s * teams, v[s], w[s]);
            }
        };
        const auto project = [&](const Element(&v)[TILES], const Element(&w)[B]) {
#pragma unroll
            for (int t = 0; t < TILES; ++t)
#pragma unroll
                for (int q = 0; q < B; ++q) of_column[t][q] = add(of_column[t][q], multiply(conjugate(v[t]), w[q]));
        };
        const auto clear = [&] {
#pragma unroll
            for (int t = 0; t < TILES; ++t)
#pragma unroll
                for (int q = 0; q < B; ++q) of_column[t][q] = Element{};
        };
        // Element e = (i, q) of S is at i B + q; a lane has q of its columns, in another order: it stores them to the block's sums.
        const auto put_columns = [&](int part) {
            for (int w = 0; w < WARPS; ++w) {
                if (w == warp)
#pragma unroll
                    for (int t = 0; t < TILES; ++t)
#pragma unroll
                        for (int q = 0; q < B; ++q) {
                            Element& sum = sums[(lane + 32 * t) * B + q];
                            sum = w == 0 ? of_column[t][q] : add(sum, of_column[t][q]);
                        }
                __syncthreads();
            }
            store(part, end * B);
        };
        const auto keep_columns = [&](int first) {  // what `take` has added up
#pragma unroll
            for (int t = 0; t < TILES; ++t)
#pragma unroll
                for (int q = 0; q < B; ++q) {
                    const int i = lane + 32 * t;
                    of_column[t][q] = i >= first && i < end ? sums[i * B + q] : Element{};
                }
        };

        // S1
        const int first = m < full_until ? 0 : m - B;
        clear();
        each_row(first, [&](i64, const Element(&v)[TILES], const Element(&w)[B]) { project(v, w); });
        put_columns(0);
        grid.meet();
        take(0, first * B, end * B, report);
        Element S[TILES][B];
        keep_columns(first);
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int q = 0; q < B; ++q) S[t][q] = of_column[t][q];
        const auto subtract = [&](i64 row, const Element(&v)[TILES], Element(&w)[B]) {
            Element taken[B] = {};
#pragma unroll
            for (int t = 0; t < TILES; ++t)
#pragma unroll
                for (int q = 0; q < B; ++q) taken[q] = add(taken[q], multiply(v[t], S[t][q]));
            sum_all(taken);
#pragma unroll
            for (int q = 0; q < B; ++q) w[q] = less(w[q], taken[q]);
            const Element mine = of_lane(w, lane);
            if (lane < B && row < n) W[row * B + lane] = mine;
        };
        __syncthreads();

        // S2, in the pass that subtracts V S1
        clear();
        each_row(0, [&](i64 row, const Element(&v)[TILES], Element(&w)[B]) {
            subtract(row, v, w);
            project(v, w);
        });
        put_columns(1);
        grid.meet();
        take(1, 0, end * B, report + COLUMNS * B);
        keep_columns(0);
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int q = 0; q < B; ++q) S[t][q] = of_column[t][q];
        __syncthreads();

        // G, in the pass that subtracts V S2: a lane adds up the elements lane, lane + 32 ...
        Element of_pair[PAIRS] = {};
        each_row(0, [&](i64 row, const Element(&v)[TILES], Element(&w)[B]) {
            subtract(row, v, w);
            // All lanes have w: one that chose its elements by index would read them from memory.
#pragma unroll
            for (int e = 0; e < B * B; ++e) {
                const Element pair = multiply(conjugate(w[e / B]), w[e % B]);
                if (lane == e % 32) of_pair[e / 32] = add(of_pair[e / 32], pair);
            }
        });
        for (int w = 0; w < WARPS; ++w) {
            if (w == warp)
#pragma unroll
                for (int u = 0; u < PAIRS; ++u)
                    if (lane + 32 * u < B * B) sums[lane + 32 * u] = w == 0 ? of_pair[u] : add(sums[lane + 32 * u], of_pair[u]);
            __syncthreads();
        }
        store(2, B * B);
        grid.meet();
        Element* const found = report + 2 * COLUMNS * B;
        take(2, 0, B * B, found);

        // R, T and the growth, by one warp of each block
        Element* const A = small;
        Element* const T = small + B * B;
        if (warp == 0) {
            for (int e = lane; e < B * B; e += 32) {
                const int i = e / B, j = e % B;
                const Element g = multiply(add(sums[e], conjugate(sums[j * B + i])), 0.5);
                A[e] = j < i ? Element{} : g;
                T[e] = g;  // for its diagonal
            }
            __syncwarp();
            if (blockIdx.x == 0)
                for (int e = lane; e < B * B; e += 32) found[e] = T[e];
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
            for (int e = lane; e < B * B; e += 32) {
                const int i = e / B, j = e % B;
                const Element unit = convert<Element>(i == j ? 1.0 : 0.0);
                const bool upper = j >= i && !refused;
                const Element r = upper ? multiply(A[e], 1 / sqrt(real_part(A[i * B + i]))) : unit, t = upper ? inverse(i, j) : unit;
                T[e] = t;
                if (blockIdx.x == 0) {
                    found[B * B + e] = r;
                    found[2 * B * B + e] = t;
                }
            }
            if (blockIdx.x == 0 && lane < B) found[3 * B * B + lane] = convert<Element>(refused ? 1 / 0.0 : growth);
        }
        __syncthreads();

        // W = W T, also behind V
        for (i64 row = team; row < n; row += teams) {
            Element w[B], y[B] = {};
            load_row(W + row * B, w);
            __syncwarp();
#pragma unroll
            for (int p = 0; p < B; ++p)
#pragma unroll
                for (int q = p; q < B; ++q) y[q] = add(y[q], multiply(w[p], T[p * B + q]));
            const Element mine = of_lane(y, lane);
            if (lane < B) W[row * B + lane] = V[row * ld + end + lane] = mine;
        }
        grid.meet();
        Element* const former = X;
        X = W;
        W = former;
    }
}
