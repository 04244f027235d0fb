// Rows of tall operands on their way through shared memory, moved by single threads: any alignment and any row pitch.
//
// A team is WARPS warps that work on the same rows and have a ring of stages to themselves, so that its only barriers are its own:
//
//   for s in 0 .. STAGES-1: start the copies of the team's stage s; copies_commit()
//   for each stage:  copies_wait<STAGES - 1>(); sync_team; read the stage; sync_team; start the copies of the stage STAGES on; copies_commit()
//
// Slab: ROWS rows of WIDTH bytes in shared memory, PITCH bytes apart and PAD more bytes after every PAD_ROWS rows, so that threads at
// different rows meet different banks. In global memory the rows are
//   LINEAR       contiguous: the slab is one range, copied in pieces of PIECE bytes whatever the width; PITCH is WIDTH
//   otherwise    `ld` bytes apart: every row is copied in pieces of PIECE bytes, the last one possibly cut.
// PIECE (4, 8 or 16) divides global addresses, PITCH, PAD, and for LINEAR rows the bytes of a slab and of PAD_ROWS rows.
#pragma once
#include "pipeline.cuh"

// Copies `bytes` <= SIZE bytes and fills the rest of the SIZE with zeros; does not wait where the hardware need not (sm_80).
template <int SIZE>
__device__ __forceinline__ void copy_piece(char* shared, const char* global, int bytes) {
#if __CUDA_ARCH__ >= 800
    if constexpr (SIZE == 4)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes) : "memory");
    else
        async_copy<SIZE>(shared, global, bytes);
#else
    for (int byte = 0; byte < SIZE; byte += 4)
        *reinterpret_cast<u32*>(shared + byte) = byte < bytes ? *reinterpret_cast<const u32*>(global + byte) : 0u;
#endif
}

__device__ __forceinline__ void copies_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most PENDING of this thread's committed groups are on their way.
template <int PENDING>
__device__ __forceinline__ void copies_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// A barrier of the warps of one team. Number 0 is __syncthreads(), 1 belongs to sync_warps.
template <int WARPS>
__device__ __forceinline__ void sync_team(int team) {
    if constexpr (WARPS == 1)
        __syncwarp();
    else
        asm volatile("bar.sync %0, %1;" ::"r"(team + 2), "n"(32 * WARPS) : "memory");
}

template <int BYTES>
struct Word {
    using Type = u32;
};
template <>
struct Word<8> {
    using Type = uint2;
};
template <>
struct Word<16> {
    using Type = uint4;
};

template <int ROWS, int WIDTH, bool LINEAR, int PIECE, int PITCH, int PAD_ROWS, int PAD, int THREADS>
struct Slab {
    static constexpr int PIECES = LINEAR ? ROWS * WIDTH / PIECE : (WIDTH + PIECE - 1) / PIECE;  // of the slab, or of a row
    static constexpr int SIDE = PIECES < THREADS ? THREADS / PIECES : 1;                        // rows moved at a time
    static constexpr int GAP = PAD_ROWS * WIDTH;                                                // bytes between pads of a LINEAR slab

    static __device__ __forceinline__ int offset(int row) { return row * PITCH + row / PAD_ROWS * PAD; }

    // Calls move(byte in the slab, byte in global memory, bytes that exist) for the thread's pieces of the first `rows` rows; with
    // !WHOLE also for pieces that do not exist (bytes <= 0).
    template <bool WHOLE, class Move>
    static __device__ __forceinline__ void for_pieces(i64 ld, int rows, int thread, Move move) {
        if constexpr (LINEAR) {
            const int valid = rows * WIDTH;
#pragma unroll 8
            for (int piece = thread; piece < PIECES; piece += THREADS) {
                const int byte = piece * PIECE;
                move(PAD == 0 ? byte : byte + byte / GAP * PAD, static_cast<i64>(byte), WHOLE ? PIECE : min(PIECE, valid - byte));
            }
        } else {
            const int side = PIECES < THREADS ? thread / PIECES : 0, first = PIECES < THREADS ? thread % PIECES : thread;
            if (side >= SIDE) return;
#pragma unroll 4
            for (int row = side; row < ROWS; row += SIDE)
#pragma unroll
                for (int piece = first; piece < PIECES; piece += PIECES < THREADS ? PIECES : THREADS) {
                    const int byte = piece * PIECE, left = WIDTH % PIECE == 0 ? PIECE : min(PIECE, WIDTH - byte);
                    move(offset(row) + byte, row * ld + byte, WHOLE || row < rows ? left : 0);
                }
        }
    }

    // Starts the copies of a slab's rows; those at and past `rows` become zeros.
    static __device__ __forceinline__ void load(char* shared, const char* global, i64 ld, i64 rows, int thread) {
        if (rows >= ROWS)
            for_pieces<true>(ld, ROWS, thread, [&](int to, i64 from, int bytes) { copy_piece<PIECE>(shared + to, global + from, bytes); });
        else
            for_pieces<false>(ld, static_cast<int>(rows), thread, [&](int to, i64 from, int bytes) {
                copy_piece<PIECE>(shared + to, bytes > 0 ? global + from : global, max(bytes, 0));
            });
    }

    // Stores the first `rows` rows of a slab.
    static __device__ __forceinline__ void store(const char* shared, char* global, i64 ld, i64 rows, int thread) {
        using Piece = typename Word<PIECE>::Type;
        if (rows >= ROWS && (LINEAR || WIDTH % PIECE == 0))
            for_pieces<true>(ld, ROWS, thread, [&](int from, i64 to, int) {
                *reinterpret_cast<Piece*>(global + to) = *reinterpret_cast<const Piece*>(shared + from);
            });
        else
            for_pieces<false>(ld, static_cast<int>(min(rows, static_cast<i64>(ROWS))), thread, [&](int from, i64 to, int bytes) {
                if (bytes == PIECE)
                    *reinterpret_cast<Piece*>(global + to) = *reinterpret_cast<const Piece*>(shared + from);
                else
                    for (int byte = 0; byte < bytes; byte += 4)
                        *reinterpret_cast<u32*>(global + to + byte) = *reinterpret_cast<const u32*>(shared + from + byte);
            });
    }
};
