// FP64 tensor-core products of one warp: C (m x n) += A (m x k) B (k x n).
//
// The elements of each lane l, with g = l / 4 and t = l % 4 (PTX ISA, "Matrix fragments for mma.sync" with .f64):
//
//                       a (lane's part of A)                      b              c
//   m8n8k4    sm_80     A[g][t]                                   B[t][g]        C[g][2t], C[g][2t+1]
//   m16n8k4   sm_90     A[g][t], A[g+8][t]                        B[t][g]        C[g][2t], C[g][2t+1], C[g+8][2t], C[g+8][2t+1]
//
// So eight columns of a row-major tall matrix, with column g of row t in lane (g, t), are half an A fragment (transposed) and also a B
// fragment. The rows may be in any order that is the same for both factors.
// On Hopper m16n8k4 runs at 512 multiply-adds in 16 cycles of a quadrant; m8n8k4 takes as long for half the work. It is
// the only shape of sm_80, at full rate there, and two of them replace m16n8k4.
#pragma once
#include "common/ptx.cuh"

// C is given as two halves, rows 0..7 and rows 8..15, and so is A: top = A[g][t], bottom = A[g+8][t].
__device__ __forceinline__ void mma_m16n8(double (&c_top)[2], double (&c_bottom)[2], const double (&top)[1], const double (&bottom)[1],
                                          const double (&b)[1]) {
#if __CUDA_ARCH__ >= 900
    mma_m16n8k4(c_top, c_bottom, top, bottom, b);
#else
    mma_m8n8k4(c_top, top[0], b[0]);
    mma_m8n8k4(c_bottom, bottom[0], b[0]);
#endif
}

// -x through its sign bit: an FP64 negation would occupy the pipe that the tensor products run on.
__device__ __forceinline__ double flip_sign(double x) {
    return __longlong_as_double(__double_as_longlong(x) ^ (1LL << 63));
}
