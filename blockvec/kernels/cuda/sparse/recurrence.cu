// Steps of a recurrence of two blocks that take turns, in one cooperative launch.
//
//   LANCZOS = 0:  Y = alpha (A - shift) X + beta Y, and X and Y change places
//   LANCZOS = 1:  of each column the three-term recurrence of Lanczos, on vectors v_j = w_j / beta_j that are stored as w_j:
//                 w_(j+1) = A v_j - alpha_j v_j - beta_j v_(j-1),  alpha_j = v_j^H A v_j,  beta_(j+1) = ||w_(j+1)||
//                 with w_j in X and w_(j-1) in Y, which w_(j+1) overwrites
//
// `group` lanes multiply a row of A, 32 / group rows to a warp. A grid barrier separates steps, which read rows of X that other blocks have
// stored; with LANCZOS there are two per step, each for a sum per column: of each thread, each warp, each block, and of all blocks by every
// block, in this order. A thread updates every so many numbers of one column, whatever rows it multiplied.
//
// Config: COMPLEX, Real, B: as in steps.cuh; THREADS: of a block, a multiple of 32 B. All blocks must run at the same time.
// scales: with LANCZOS two rows of B numbers, beta_(j-1) and beta_j, of the first step; those of the next one afterwards.
// log: with LANCZOS two rows per step, alpha_j and beta_(j+1).
// work: the workspace of the stream; behind its counters two numbers per block and column with LANCZOS.
#include "sparse/steps.cuh"

constexpr int WARPS = THREADS / 32;
static_assert(THREADS % (32 * B) == 0, "a thread belongs to one column");

__device__ __forceinline__ void store_row(Element* p, const Element (&row)[B]) {
    using Row = Pack<Element, B, true>;
    Row packed;
#pragma unroll
    for (int q = 0; q < B; ++q) packed.at[q] = row[q];
    *reinterpret_cast<Row*>(p) = packed;
}

// Re(conj(a) b) in double precision, in which squares of single precision neither overflow nor vanish.
template <class T>
__device__ __forceinline__ double real_product(T a, T b) {
    if constexpr (IS_COMPLEX<T>)
        return static_cast<double>(a.re) * b.re + static_cast<double>(a.im) * b.im;
    else
        return static_cast<double>(a) * b;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    KERNEL(const int* starts, const int* columns, const Element* entries, Element* X, Element* Y, double* scales, double* log, char* work,
           i64 n, int steps, int group, double alpha, double beta, double shift) {
    SHARED_ARRAY(double, of_warps, [WARPS * B]);
    SHARED_ARRAY(double, totals, [B]);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = gridDim.x, together = 32 / group;
    const i64 thread = static_cast<i64>(blockIdx.x) * THREADS + threadIdx.x, threads = static_cast<i64>(blocks) * THREADS;
    Grid grid{reinterpret_cast<u32*>(work)};

    // Calls use(row, y) with rows y of A X, of which column q is multiplied by factor(q), in one lane of each group.
    const auto each_row = [&](auto factor, auto use) {
        const auto start_of = [&](i64 row) { return static_cast<i64>(starts[min(row, n)]); };
        i64 row = thread / group, begin = start_of(row), stop = start_of(row + 1);
        for (i64 first = thread / 32 * together; first < n; first += threads / group) {
            const i64 next = row + threads / group;
            const i64 next_begin = start_of(next), next_stop = start_of(next + 1);  // before the loads that depend on this row's
            Element y[B] = {};
            add_entries(columns, entries, X, begin + lane % group, stop, group, y, factor);
#pragma unroll
            for (int q = 0; q < B; ++q) y[q] = summed(y[q], group);
            if (row < n && lane % group == 0) use(row, y);
            row = next;
            begin = next_begin;
            stop = next_stop;
        }
    };

    if constexpr (!LANCZOS) {
        for (int step = 0; step < steps; ++step) {
            each_row([](int) { return Real(1); }, [&](i64 row, Element(&y)[B]) {
                Element x[B], former[B] = {};
                load_row(X + row * B, x);
                if (beta != 0) load_row(Y + row * B, former);
#pragma unroll
                for (int q = 0; q < B; ++q) {
                    if (shift != 0) y[q] = add(y[q], multiply(x[q], static_cast<Real>(-shift)));
                    y[q] = add(multiply(y[q], static_cast<Real>(alpha)), multiply(former[q], static_cast<Real>(beta)));
                }
                store_row(Y + row * B, y);
            });
            grid.barrier();
            Element* const former = X;
            X = Y;
            Y = former;
        }
    } else {
        double* const partials = reinterpret_cast<double*>(work + 128);
        // Sums numbers of all threads, `of_columns` of each column; all threads get the sums in `totals`.
        const auto sum = [&](const double(&of_columns)[B], double* place) {
#pragma unroll
            for (int q = 0; q < B; ++q) {
                const double whole = summed(of_columns[q]);
                if (lane == 0) of_warps[q * WARPS + warp] = whole;
            }
            __syncthreads();
            if (threadIdx.x < B) {
                double whole = 0;
                for (int k = 0; k < WARPS; ++k) whole += of_warps[threadIdx.x * WARPS + k];
                place[threadIdx.x * blocks + blockIdx.x] = whole;
            }
            grid.barrier();
            for (int q = warp; q < B; q += WARPS) {
                double whole = 0;
                for (int k = lane; k < blocks; k += 32) whole += __ldcg(place + q * blocks + k);
                whole = summed(whole);
                if (lane == 0) totals[q] = whole;
            }
            __syncthreads();
        };
        const double least = sizeof(Real) == 8 ? 2.2250738585072014e-308 : 1.1754943508222875e-38;  // normal number
        double before[B], now[B];  // beta_(j-1) and beta_j
#pragma unroll
        for (int q = 0; q < B; ++q) {
            before[q] = __ldcg(scales + q);
            now[q] = __ldcg(scales + B + q);
        }
        const int column = threadIdx.x % B;
        for (int step = 0; step < steps; ++step, log += 2 * B) {
            double part[B] = {};
            Real inverse[B], ratio[B];
#pragma unroll
            for (int q = 0; q < B; ++q) {
                inverse[q] = static_cast<Real>(1 / max(now[q], least));
                ratio[q] = static_cast<Real>(now[q] / max(before[q], least));
            }
            each_row([&](int q) { return inverse[q]; }, [&](i64 row, Element(&y)[B]) {
                Element x[B], former[B];
                load_row(X + row * B, x);
                load_row(Y + row * B, former);
#pragma unroll
                for (int q = 0; q < B; ++q) {
                    y[q] = add(y[q], multiply(former[q], -ratio[q]));
                    part[q] += real_product(multiply(x[q], inverse[q]), y[q]);
                }
                store_row(Y + row * B, y);
            });
            sum(part, partials);
            double of_column = 0, factor = 0;
#pragma unroll
            for (int q = 0; q < B; ++q) {
                if (blockIdx.x == 0 && threadIdx.x == 0) log[q] = totals[q];
                if (q == column) factor = -totals[q] / max(now[q], least);
                before[q] = now[q];
            }
            for (i64 i = thread; i < n * B; i += threads) {
                const Element w = add(load_stored(Y + i), multiply(load_stored(X + i), static_cast<Real>(factor)));
                Y[i] = w;
                of_column += real_product(w, w);
            }
#pragma unroll
            for (int q = 0; q < B; ++q) part[q] = q == column ? of_column : 0;
            sum(part, partials + B * blocks);
#pragma unroll
            for (int q = 0; q < B; ++q) {
                now[q] = sqrt(totals[q]);
                if (blockIdx.x == 0 && threadIdx.x == 0) log[B + q] = now[q];
            }
            Element* const former = X;
            X = Y;
            Y = former;
        }
        if (blockIdx.x == 0 && threadIdx.x == 0)
#pragma unroll
            for (int q = 0; q < B; ++q) {
                scales[q] = before[q];
                scales[B + q] = now[q];
            }
    }
    grid.reset();
}
