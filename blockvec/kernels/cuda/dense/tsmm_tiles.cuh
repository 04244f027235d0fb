// Tiles of tall operands in shared memory, and elements: shared by the kernels of A C on tensor cores.
//
// A staged tile is SUBS sub-chunks of contiguous rows whose bases differ by 128 / SUBS bytes mod 128, and row g of 8 is one of
// sub-chunk g % SUBS. The lanes that are served together (32 of 4 bytes, 16 of 8, 8 of 16) then access SUBS segments of 128 / SUBS
// bytes in distinct banks, at any width.
//
// Real: parts of elements. Float ones become double on their way to a fragment and round once on their way back.
// Constants: M, N, COMPLEX, ROWS of a tile.
#pragma once
#include "common/mma.cuh"
#include "common/pipeline.cuh"

constexpr int P = COMPLEX ? 2 : 1;
constexpr int REAL = sizeof(Real), SIZE = REAL * P;  // bytes of a real number, of an element
constexpr int SUBS = 32 / SIZE;                  // sub-chunks of a tile
constexpr int BLOCK = 16 / P;                    // rows of an MMA
constexpr int STEP = BLOCK / SUBS, HALF = 8 / SUBS;  // of each sub-chunk in an MMA, and in its rows 0..7
constexpr int KT = (M + 3) / 4;                  // MMA tiles over the columns of A

struct alignas(SIZE) Stored {
    Real part[P];
};

struct Element {
    double part[P];
};

// ROWS x WIDTH elements in shared memory.
template <int WIDTH>
struct Tile {
    static constexpr int PITCH = WIDTH * SIZE;
    static constexpr int SUB_ROWS = ROWS / SUBS;
    static constexpr int SUB = (SUB_ROWS * PITCH + 127) / 128 * 128 + 128 / SUBS;
    static constexpr int SKEW = SUB - SUB_ROWS * PITCH;
    static constexpr int BYTES = (SUBS * SUB + 127) / 128 * 128;
};

__device__ __forceinline__ Element element(double re, double im) {
    Element value;
    value.part[P - 1] = im;
    value.part[0] = re;
    return value;
}

__device__ __forceinline__ Element times(Element a, Element b) {
    if constexpr (!COMPLEX) return {a.part[0] * b.part[0]};
    const double re = a.part[0], im = a.part[P - 1];
    return element(re * b.part[0] - im * b.part[P - 1], re * b.part[P - 1] + im * b.part[0]);
}

__device__ __forceinline__ Element load(const char* from) {
    const Stored value = *reinterpret_cast<const Stored*>(from);
    return element(value.part[0], value.part[P - 1]);
}

__device__ __forceinline__ void store(char* to, Element value) {
    Stored rounded;
    rounded.part[P - 1] = static_cast<Real>(value.part[P - 1]);
    rounded.part[0] = static_cast<Real>(value.part[0]);
    *reinterpret_cast<Stored*>(to) = rounded;
}

// Copies the bytes of a sub-chunk that bulk copies leave, fewer than 16, by plain loads and stores.
__device__ __forceinline__ void move_rest(char* to, const char* from, int whole, int bytes) {
    for (int byte = whole; byte < bytes; byte += REAL) *reinterpret_cast<Real*>(to + byte) = *reinterpret_cast<const Real*>(from + byte);
}

// A tile of contiguous rows as bulk copies, one a sub-chunk. Only the last rows of a matrix can leave bytes that are no multiple of
// 16.
template <int WIDTH>
struct Bulk {
    using T = Tile<WIDTH>;
    static constexpr int SUB_BYTES = T::SUB_ROWS * T::PITCH;

    static __device__ __forceinline__ int bytes(int sub, int rows) { return min(max(rows - sub * T::SUB_ROWS, 0), T::SUB_ROWS) * T::PITCH; }

    static __device__ __forceinline__ void load(char* tile, const char* from, int rows, u64* full) {
        if (rows == ROWS) {
            expect(full, SUBS * SUB_BYTES);
#pragma unroll
            for (int sub = 0; sub < SUBS; ++sub) bulk_load(tile + sub * T::SUB, from + sub * SUB_BYTES, SUB_BYTES, full);
            return;
        }
        u32 sum = 0;
        for (int sub = 0; sub < SUBS; ++sub) {
            const int valid = bytes(sub, rows), whole = valid & ~15;
            sum += whole;
            move_rest(tile + sub * T::SUB, from + sub * SUB_BYTES, whole, valid);
        }
        expect(full, sum);
        for (int sub = 0; sub < SUBS; ++sub)
            if (const int whole = bytes(sub, rows) & ~15) bulk_load(tile + sub * T::SUB, from + sub * SUB_BYTES, whole, full);
    }

    static __device__ __forceinline__ void store(char* to, const char* tile, int rows) {
        if (rows == ROWS) {
#pragma unroll
            for (int sub = 0; sub < SUBS; ++sub) bulk_store(to + sub * SUB_BYTES, tile + sub * T::SUB, SUB_BYTES);
        } else {
            for (int sub = 0; sub < SUBS; ++sub) {
                const int valid = bytes(sub, rows), whole = valid & ~15;
                if (whole) bulk_store(to + sub * SUB_BYTES, tile + sub * T::SUB, whole);
                move_rest(to + sub * SUB_BYTES, tile + sub * T::SUB, whole, valid);
            }
        }
        bulk_store_commit();
    }
};
