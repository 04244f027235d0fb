// The products of one warp in a sweep: over rows, of rows with coefficients, and the small result. Uses the constants, operands and places
// of sweep_mma.cu.
#pragma once
#include "common/mma.cuh"

// Sums over rows of left^H right: LEFT tiles of BLOCK columns by RIGHT groups of 8.
// Real: value[i][j][h][q] belongs to columns (BLOCK i + 8 h + g, 8 j + 2 t + q); complex: value[i][j][part][q] to (BLOCK i + 2 t + q, 8 j + g).
template <int LEFT, int RIGHT>
struct Products {
    double value[LEFT][RIGHT][2][2];

    // `left` and `right` are the lane's first columns in the first of the four rows.
    __device__ __forceinline__ void add(const char* left, const char* right) {
        if constexpr (COMPLEX) {
            double v_re[RIGHT][1], v_im[RIGHT][1], first[RIGHT][1], second[RIGHT][1];
#pragma unroll
            for (int j = 0; j < RIGHT; ++j) {
                const Number v = load(right + 8 * j * SIZE);
                v_re[j][0] = v.re;
                v_im[j][0] = v.im;
                first[j][0] = v.im;
                second[j][0] = flip_sign(v.re);
            }
#pragma unroll
            for (int i = 0; i < LEFT; ++i) {
                const Number w = load(left + i * BLOCK * SIZE);
                const double w_re[1] = {w.re}, w_im[1] = {w.im};
#pragma unroll
                for (int j = 0; j < RIGHT; ++j) mma_m16n8(value[i][j][0], value[i][j][1], v_re[j], v_im[j], w_re);
#pragma unroll
                for (int j = 0; j < RIGHT; ++j) mma_m16n8(value[i][j][0], value[i][j][1], first[j], second[j], w_im);
            }
        } else {
            double v[RIGHT][1];
#pragma unroll
            for (int j = 0; j < RIGHT; ++j) v[j][0] = *reinterpret_cast<const double*>(right + 8 * j * SIZE);
#pragma unroll
            for (int i = 0; i < LEFT; ++i) {
                const double top[1] = {*reinterpret_cast<const double*>(left + i * BLOCK * SIZE)};
                const double bottom[1] = {*reinterpret_cast<const double*>(left + (i * BLOCK + 8) * SIZE)};
#pragma unroll
                for (int j = 0; j < RIGHT; ++j) mma_m16n8(value[i][j][0], value[i][j][1], top, bottom, v[j]);
            }
        }
    }

    // Rows of a tile in sets of four, `first`, `first + STEP`, ... No fragment is loaded ahead of its turn of the loop: see tsmttsm_mma.cu.
    template <int STEP, int LEFT_PITCH>
    __device__ __forceinline__ void add_tile(const char* left, const char* right, int first, const Place& at) {
        const char* from_left = left + (4 * first + at.t) * LEFT_PITCH + at.g * SIZE;
        const char* from_right = right + (4 * first + at.t) * V_PITCH + at.g * SIZE;
        constexpr int SETS = (ROWS / 4 + STEP - 1) / STEP;
#pragma unroll(LEFT * RIGHT > 4 ? 2 : 4)
        for (int set = 0; set < SETS; ++set)
            if (ROWS / 4 % STEP == 0 || first + set * STEP < ROWS / 4)
                add(from_left + set * 4 * STEP * LEFT_PITCH, from_right + set * 4 * STEP * V_PITCH);
    }

    // Writes the sums from columns (column, right) on into `product`, which has `width` columns on the left, or adds them to its values.
    __device__ __forceinline__ void store(double* product, int column, int width, int right, bool adds, const Place& at) const {
#pragma unroll
        for (int k = 0; k < LEFT * RIGHT * 4; ++k) {
            const int q = k % 2, h = k / 2 % 2, j = k / 4 % RIGHT, i = k / 4 / RIGHT;
            const int m = column + i * BLOCK + (COMPLEX ? 2 * at.t + q : 8 * h + at.g);
            const int n = right + 8 * j + (COMPLEX ? at.g : 2 * at.t + q);
            if (m >= width || n >= N) continue;
            double& sum = product[(m * N + n) * P + (COMPLEX ? h : 0)];
            sum = adds ? sum + value[i][j][h][q] : value[i][j][h][q];
        }
    }
};

// The elements of alpha C in lane (g, t), for its columns 4 x + t and the real column 8 y + g of the result; zero outside.
__device__ __forceinline__ double coefficient(const Operands& o, int k, int width, int y, int g) {
    const int column = 8 * y + g, n = column / P;
    if (k >= width || n >= N) return 0;
    Number c = {o.C[(k * N + n) * P], COMPLEX ? o.C[(k * N + n) * P + P - 1] : 0};
    if constexpr (!ALPHA_ONE) c = times(o.alpha, c);
    return COMPLEX && g % 2 ? c.im : c.re;
}

// Products of BLOCK rows: left columns are the k index. Lane (g, t) ends with elements (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1) of each
// group of 8 real columns, or with the four real products whose sums are the complex element (g, t) of each group of 4.
__device__ __forceinline__ void load_rows(const char* from, int pitch, double (&top)[1], double (&bottom)[1]) {
    if constexpr (COMPLEX) {
        const Number a = load(from);
        top[0] = a.re;
        bottom[0] = a.im;
    } else {
        top[0] = *reinterpret_cast<const double*>(from);
        bottom[0] = *reinterpret_cast<const double*>(from + 8 * pitch);
    }
}

// Calls write(row, column, pair of doubles) for the elements of a group in a lane: two real columns or a complex one.
template <class Write>
__device__ __forceinline__ void for_pairs(const double (&sums)[2][2], int y, const Place& at, Write write) {
    if constexpr (COMPLEX) {
        write(at.g, 4 * y + at.t, make_double2(sums[0][0] - sums[1][1], sums[0][1] + sums[1][0]));
    } else {
        write(at.g, 8 * y + 2 * at.t, make_double2(sums[0][0], sums[0][1]));
        write(at.g + 8, 8 * y + 2 * at.t, make_double2(sums[1][0], sums[1][1]));
    }
}

// ---- the small result

// A warp's part of V^H V: warps share its tiles of BLOCK x 8 elements, and the rows if there are more warps than tiles.
struct GramSums {
    static constexpr int LEFT = (N + BLOCK - 1) / BLOCK, ALL = LEFT * NT, OWNERS = ALL < WARPS ? ALL : WARPS;
    static constexpr int SHARES = WARPS / OWNERS, TILES_A_WARP = (ALL + OWNERS - 1) / OWNERS;
    Products<1, 1> tile[TILES_A_WARP];

    // The warp's k-th tile, or one past the last.
    static __device__ __forceinline__ int index(int k, const Place& at) {
        return at.warp < OWNERS * SHARES ? at.warp % OWNERS + k * OWNERS : ALL;
    }
    __device__ __forceinline__ void add_tile(const char* block, const Place& at) {
#pragma unroll
        for (int k = 0; k < TILES_A_WARP; ++k) {
            const int i = index(k, at);
            if (i < ALL)
                tile[k].template add_tile<SHARES, V_PITCH>(block + i / NT * BLOCK * SIZE, block + i % NT * 8 * SIZE, at.warp / OWNERS, at);
        }
    }
    __device__ __forceinline__ int share(const Place& at) const { return at.warp / OWNERS; }
    __device__ __forceinline__ void store(double* product, bool adds, const Place& at) const {
#pragma unroll
        for (int k = 0; k < TILES_A_WARP; ++k) {
            const int i = index(k, at);
            if (i < ALL) tile[k].store(product, i / NT * BLOCK, N, i % NT * 8, adds, at);
        }
    }
};

struct Nothing {};
