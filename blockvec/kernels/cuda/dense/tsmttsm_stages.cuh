// The copies that fill the stages of tsmttsm_mma.cu: bulk copies if an operand is contiguous, else pieces row by row. Uses the constants of
// that file, which includes this one.
#pragma once
#include "common/pipeline.cuh"

// The stages of this block, and the addresses of their rows.
struct Source {
    const char *A, *B;
    i64 K, lda, ldb;
    const TensorMap* maps;  // of boxes: four of A, four of B

    __device__ __forceinline__ i64 stages() const { return (K + ROWS * FOLD - 1) / (ROWS * FOLD); }
    __device__ __forceinline__ bool is_whole(i64 stage) const { return (stage + 1) * (ROWS * FOLD) <= K; }
};

// A contiguous operand: its rows are linear memory, a stage one bulk copy, or two with a gap between them.
template <int WIDTH, int GAP>
struct Bulk {
    static constexpr int CHUNK_BYTES = CHUNK * FOLD * WIDTH * SIZE;

    static __device__ __forceinline__ int offset(int chunk) { return chunk * CHUNK_BYTES + chunk / 2 * GAP; }

    static __device__ __forceinline__ void copy_whole(char* shared, const char* global, i64 stage, u64* full) {
        const char* from = global + stage * (4 * CHUNK_BYTES);
        if constexpr (GAP == 0) {
            bulk_load(shared, from, 4 * CHUNK_BYTES, full);
        } else {
            bulk_load(shared, from, 2 * CHUNK_BYTES, full);
            bulk_load(shared + offset(2), from + 2 * CHUNK_BYTES, 2 * CHUNK_BYTES, full);
        }
    }

    // Bytes of a chunk that exist; bulk copies take the multiple of 16 below.
    static __device__ __forceinline__ int valid_bytes(i64 stage, int chunk, i64 K) {
        const i64 left = K * (WIDTH * SIZE) - (4 * stage + chunk) * CHUNK_BYTES;
        return static_cast<int>(max(0LL, min(left, static_cast<i64>(CHUNK_BYTES))));
    }

    // Called by a warp: stores the bytes of the last stage that bulk copies leave, fewer than 16, and zeros. Returns the bytes of the bulk copies.
    static __device__ __forceinline__ u32 clear_tail(char* shared, const char* global, i64 stage, i64 K, int lane) {
        u32 copied = 0;
        for (int chunk = 0; chunk < 4; ++chunk) {
            const int valid = valid_bytes(stage, chunk, K), bulk = valid & ~15;
            copied += bulk;
            const char* from = global + (4 * stage + chunk) * CHUNK_BYTES;
            for (int byte = bulk + REAL * lane; byte < CHUNK_BYTES; byte += REAL * 32)
                *reinterpret_cast<Real*>(shared + offset(chunk) + byte) = byte < valid ? *reinterpret_cast<const Real*>(from + byte) : Real(0);
        }
        return copied;
    }

    static __device__ __forceinline__ void copy_tail(char* shared, const char* global, i64 stage, i64 K, u64* full) {
        for (int chunk = 0; chunk < 4; ++chunk) {
            const int bulk = valid_bytes(stage, chunk, K) & ~15;
            if (bulk) bulk_load(shared + offset(chunk), global + (4 * stage + chunk) * CHUNK_BYTES, bulk, full);
        }
    }
};

using BulkA = Bulk<M, A_GAP>;
using BulkB = Bulk<N, B_GAP>;

// Called by a warp: announces and starts the copies of the boxes of one stage; rows past K are outside of the maps.
__device__ __forceinline__ void fill_boxes(char* to, u64* full, const Source& source, i64 stage) {
    if (!elect_one()) return;
    expect(full, 4 * CHUNK * (A_ROW + (SAME ? 0 : B_ROW)));
    for (int t = 0; t < 4; ++t) {
        const int row = t < source.K ? static_cast<int>(stage * CHUNK) : 1 << 30;  // a map has at least one row
        box_load(to + t * A_PITCH, source.maps + t, row, full);
        if constexpr (!SAME) box_load(to + B_OFFSET + t * B_PITCH, source.maps + 4 + t, row, full);
    }
}

// Called by a warp: announces and starts the bulk copies of one stage.
__device__ __forceinline__ void fill_bulk(char* to_a, u64* full, const Source& source, i64 stage, int lane) {
    if constexpr (BOXES) {
        fill_boxes(to_a, full, source, stage);
        return;
    }
    char* to_b = to_a + B_OFFSET;
    if (source.is_whole(stage)) {
        if (elect_one()) {
            expect(full, (A_BULK ? 4 * BulkA::CHUNK_BYTES : 0) + (B_BULK ? 4 * BulkB::CHUNK_BYTES : 0));
            if constexpr (A_BULK) BulkA::copy_whole(to_a, source.A, stage, full);
            if constexpr (B_BULK) BulkB::copy_whole(to_b, source.B, stage, full);
        }
    } else {
        u32 bytes = 0;
        if constexpr (A_BULK) bytes += BulkA::clear_tail(to_a, source.A, stage, source.K, lane);
        if constexpr (B_BULK) bytes += BulkB::clear_tail(to_b, source.B, stage, source.K, lane);
        __syncwarp();
        if (elect_one()) {
            expect(full, bytes);
            if constexpr (A_BULK) BulkA::copy_tail(to_a, source.A, stage, source.K, full);
            if constexpr (B_BULK) BulkB::copy_tail(to_b, source.B, stage, source.K, full);
        }
    }
}

// Called by all producer threads: cp.async copies of one operand's stage, row by row, for views and unaligned bases.
template <int WIDTH, int ROW, int PITCH, int PIECE>
__device__ __forceinline__ void copy_pieces(char* shared, const char* global, i64 stage, i64 K, i64 ld, int thread) {
    constexpr int PIECES = (WIDTH * SIZE + PIECE - 1) / PIECE;
    constexpr int PASSES = (PIECES + 31) / 32, LANES = (PIECES + PASSES - 1) / PASSES;  // LANES threads per row
    constexpr int AT_ONCE = 32 * PRODUCERS / LANES;
    const int rows = static_cast<int>(min(K - stage * ROWS, static_cast<i64>(ROWS)));
    const int first = thread / LANES, lane = thread % LANES;
    const char* from = global + (stage * ROWS + first) * ld * SIZE;
    if (first >= AT_ONCE) return;
#pragma unroll 4
    for (int row = first; row < ROWS; row += AT_ONCE, from += AT_ONCE * ld * SIZE)
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass) {
            const int byte = (pass * LANES + lane) * PIECE;
            if (PIECES % PASSES && byte >= PIECES * PIECE) continue;
            const int bytes = row < rows ? min(PIECE, WIDTH * SIZE - byte) : 0;  // zeros fill the rest
            async_copy<PIECE>(shared + row / CHUNK * PITCH + row % CHUNK * ROW + byte, row < rows ? from + byte : global, bytes);
        }
}

// Producer warps: fill the stages that the consumers have released.
__device__ __forceinline__ void produce(char* shared, Ring<STAGES>& ring, const Source& source) {
    const int thread = threadIdx.x - CONSUMERS;
    const i64 stages = source.stages();
    Cursor<STAGES> at;
    for (i64 stage = blockIdx.x; stage < stages; stage += gridDim.x, at.advance()) {
        char* to = shared + at.stage * STAGE_BYTES;
        u64* full = ring.full + at.stage;
        wait(ring.empty + at.stage, at.parity ^ 1);
        if (ANY_BULK && thread < 32) fill_bulk(to, full, source, stage, thread);
        if constexpr (!A_BULK) copy_pieces<M, A_ROW, A_PITCH, A_PIECE>(to, source.A, stage, source.K, source.lda, thread);
        if constexpr (B_PIECE != 0 && !SAME)
            copy_pieces<N, B_ROW, B_PITCH, B_PIECE>(to + B_OFFSET, source.B, stage, source.K, source.ldb, thread);
        if constexpr (ANY_PIECES) async_arrive(full);
    }
}
