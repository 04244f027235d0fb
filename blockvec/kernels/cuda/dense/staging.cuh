// Copies of the rows of tall operands to and from shared memory by single threads: any alignment and any row pitch.
//
// A team is WARPS warps that work on the same rows and have a ring of stages to themselves, so that it waits at its own barriers only:
//
//   for s in 0 .. STAGES-1: start the copies of the team's stage s; async_commit()
//   for each stage:  async_wait<STAGES - 1>(); sync_team; read the stage; sync_team; start the copies of the stage STAGES on; async_commit()
//
// Slab: ROWS rows of WIDTH bytes in shared memory, PITCH bytes apart and PAD more bytes after every PAD_ROWS rows, so that threads at
// different rows access different banks. In global memory the rows are
//   LINEAR       contiguous: the slab is one range, copied in pieces of PIECE bytes whatever the width; PITCH is WIDTH
//   otherwise    `ld` bytes apart: every row is copied in pieces of PIECE bytes, the last one possibly cut.
// PIECE (4, 8 or 16) divides global addresses, PITCH, PAD, and for LINEAR rows the bytes of a slab and of PAD_ROWS rows.
#pragma once
#include "common/word.cuh"

// A barrier of the warps of one team. Number 0 is __syncthreads(), number 1 that of grid_sum.
template <int WARPS>
__device__ __forceinline__ void sync_team(int team) {
    if constexpr (WARPS == 1)
        __syncwarp();
    else
        named_barrier<32 * WARPS>(team + 2);
}

template <int ROWS, int WIDTH, bool LINEAR, int PIECE, int PITCH, int PAD_ROWS, int PAD, int THREADS>
struct Slab {
    static constexpr int PIECES = LINEAR ? ROWS * WIDTH / PIECE : (WIDTH + PIECE - 1) / PIECE;  // of the slab, or of a row
    static constexpr int SIDE = PIECES < THREADS ? THREADS / PIECES : 1;                        // rows moved at a time
    static constexpr int ALONG = PIECES < THREADS ? PIECES : THREADS;                           // pieces of a row moved at a time
    static constexpr int GAP = PAD_ROWS * WIDTH;                                                // bytes between pads of a LINEAR slab
    static constexpr int STEP = THREADS * PIECE;                                                // bytes moved at a time of a LINEAR slab

    static __device__ __forceinline__ int offset(int row) { return row * PITCH + row / PAD_ROWS * PAD; }

    static __device__ __forceinline__ int padded(int byte) { return PAD == 0 ? byte : byte + byte / GAP * PAD; }

    // Calls move(byte in the slab, byte in memory from the first row, bytes) for each of the thread's pieces. PIECE bytes or more: the
    // piece exists as a whole; none or fewer: it does not, being in rows at and past `rows`. Not clamped to 0..PIECE: the assembler of
    // CUDA 13.0 takes max(0, min(PIECE, x)) == PIECE to hold wherever x < PIECE.
    template <bool WHOLE, class Move>
    static __device__ __forceinline__ void for_pieces(i64 ld, int rows, int thread, Move move) {
        if constexpr (LINEAR) {
            const int first = padded(thread * PIECE);
#pragma unroll(WHOLE ? (PIECES < 16 * THREADS ? 16 : 8) : 1)
            for (int step = 0; step < (PIECES + THREADS - 1) / THREADS; ++step) {
                const int byte = (step * THREADS + thread) * PIECE;
                // If the pads recur with the steps, addresses differ by constants.
                const int at = STEP % GAP == 0 ? first + step * (STEP + STEP / GAP * PAD) : padded(byte);
                if (PIECES % THREADS == 0 || byte < PIECES * PIECE)
                    move(at, static_cast<i64>(thread) * PIECE + step * STEP, WHOLE ? PIECE : rows * WIDTH - byte);
            }
        } else {
            const int side = PIECES < THREADS ? thread / PIECES : 0, along = PIECES < THREADS ? thread % PIECES : thread;
            const int to = offset(side) + along * PIECE;
            const i64 from = side * ld + along * PIECE;
#pragma unroll(WHOLE ? 8 : 1)
            for (int row = 0; row < ROWS; row += SIDE)
#pragma unroll
                for (int piece = 0; piece < PIECES; piece += ALONG) {
                    const int left = WIDTH % PIECE == 0 ? PIECE : WIDTH - (along + piece) * PIECE;
                    if (row + side < ROWS && side < SIDE && (PIECES % ALONG == 0 || along + piece < PIECES))
                        move(to + offset(row) + piece * PIECE, from + row * ld + piece * PIECE, WHOLE || row + side < rows ? left : 0);
                }
        }
    }

    // Starts the copies of a slab's rows; those at and past `rows` become zeros.
    static __device__ __forceinline__ void load(char* shared, const char* global, i64 ld, i64 rows, int thread) {
        if (rows >= ROWS)
            for_pieces<true>(ld, ROWS, thread, [&](int to, i64 from, int bytes) {
                async_copy<PIECE>(shared + to, global + from, LINEAR || WIDTH % PIECE == 0 ? PIECE : min(PIECE, bytes));
            });
        else
            for_pieces<false>(ld, static_cast<int>(rows), thread, [&](int to, i64 from, int bytes) {
                async_copy<PIECE>(shared + to, bytes > 0 ? global + from : global, max(0, min(PIECE, bytes)));
            });
    }

    // Stores the first `rows` rows of a slab.
    static __device__ __forceinline__ void store(const char* shared, char* global, i64 ld, i64 rows, int thread) {
        using Piece = WordOf<PIECE>;
        if (rows >= ROWS && (LINEAR || WIDTH % PIECE == 0))
            for_pieces<true>(ld, ROWS, thread, [&](int from, i64 to, int) {
                *reinterpret_cast<Piece*>(global + to) = *reinterpret_cast<const Piece*>(shared + from);
            });
        else
            for_pieces<false>(ld, static_cast<int>(min(rows, static_cast<i64>(ROWS))), thread, [&](int from, i64 to, int bytes) {
                if (bytes >= PIECE)
                    *reinterpret_cast<Piece*>(global + to) = *reinterpret_cast<const Piece*>(shared + from);
                else
#pragma unroll 1
                    for (int byte = 0; byte < bytes; byte += 4)
                        *reinterpret_cast<u32*>(global + to + byte) = *reinterpret_cast<const u32*>(shared + from + byte);
            });
    }
};
