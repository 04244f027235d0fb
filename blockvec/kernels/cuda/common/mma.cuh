// FP64 tensor-core products of one warp: C (m x n) += A (m x k) B (k x n).
//
// The elements of each lane l, with g = l / 4 and t = l % 4 (PTX ISA, "Matrix fragments for mma.sync" with .f64):
//
//                       a (lane's part of A)                      b              c
//   m8n8k4    sm_80     A[g][t]                                   B[t][g]        C[g][2t], C[g][2t+1]
//   m16n8k4   sm_90     A[g][t], A[g+8][t]                        B[t][g]        C[g][2t], C[g][2t+1], C[g+8][2t], C[g+8][2t+1]
//   m16n8k8   sm_90     A[g][t+4u], A[g+8][t+4u] for u = 0, 1     B[t+4u][g]     as m16n8k4
//   m16n8k16  sm_90     the same for u = 0..3                     B[t+4u][g]     as m16n8k4
//
// So eight columns of a row-major tall matrix, with column g of row t in lane (g, t), are half an A fragment (transposed) and also a B
// fragment. The rows may be in any order that is the same for both factors.
// On Hopper all m16 shapes run at 512 multiply-adds in 16 cycles of a quadrant; m8n8k4 takes as long for half the work. It is
// the only shape of sm_80, at full rate there, and two of them replace m16n8k4.
#pragma once
#include "common/ptx.cuh"

// A step of 4 SETS in k. C is given as two halves, rows 0..7 and rows 8..15, and so is A: top[u] = A[g][t+4u], bottom[u] = A[g+8][t+4u].
template <int SETS>
__device__ __forceinline__ void mma_m16n8(double (&c_top)[2], double (&c_bottom)[2], const double (&top)[SETS], const double (&bottom)[SETS],
                                          const double (&b)[SETS]) {
    static_assert(SETS == 1 || SETS == 2 || SETS == 4, "no such shape");
    if constexpr (SETS == 4)
        mma_m16n8k16(c_top, c_bottom, top, bottom, b);
    else if constexpr (SETS == 2)
        mma_m16n8k8(c_top, c_bottom, top, bottom, b);
#if __CUDA_ARCH__ >= 900
    else
        mma_m16n8k4(c_top, c_bottom, top, bottom, b);
#else
    else {
        mma_m8n8k4(c_top, top[0], b[0]);
        mma_m8n8k4(c_bottom, bottom[0], b[0]);
    }
#endif
}

// -x through its sign bit: an FP64 negation would occupy the pipe that the tensor products run on.
__device__ __forceinline__ double flip_sign(double x) {
    return __longlong_as_double(__double_as_longlong(x) ^ (1LL << 63));
}
