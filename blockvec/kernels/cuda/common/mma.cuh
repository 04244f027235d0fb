// FP64 tensor-core products of one warp: C (m x n) += A (m x k) B (k x n).
//
// Who holds what, for lane l with g = l / 4 and t = l % 4 (PTX ISA, "Matrix fragments for mma.sync" with .f64):
//
//                       a (lane's part of A)                      b              c
//   m8n8k4    sm_80     A[g][t]                                   B[t][g]        C[g][2t], C[g][2t+1]
//   m16n8k4   sm_90     A[g][t], A[g+8][t]                        B[t][g]        C[g][2t], C[g][2t+1], C[g+8][2t], C[g+8][2t+1]
//   m16n8k8   sm_90     A[g][t+4u], A[g+8][t+4u] for u = 0, 1     B[t+4u][g]     as m16n8k4
//   m16n8k16  sm_90     the same for u = 0..3                     B[t+4u][g]     as m16n8k4
//
// So an 8-column group of a row-major tall matrix, lane (g, t) holding column g of row t, serves alike as half an A fragment
// (transposed), as a B fragment, and in any order of the rows, as long as both factors use the same one.
// On Hopper all m16 shapes run at 512 multiply-adds in 16 cycles of a quadrant; m8n8k4 takes as long for half the work. It is
// the only shape of sm_80, at full rate there, and stands in for m16n8k4.
// The statements are pure, so not volatile: the compiler may interleave them with loads.
#pragma once

__device__ __forceinline__ void mma_m8n8k4(double (&c)[2], double a, double b) {
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
        : "+d"(c[0]), "+d"(c[1])
        : "d"(a), "d"(b));
}

// The m16 shapes take C as two halves, rows 0..7 and rows 8..15, and A likewise: top[u] = A[g][t+4u], bottom[u] = A[g+8][t+4u].
__device__ __forceinline__ void mma_m16n8(double (&c_top)[2], double (&c_bottom)[2], const double (&top)[1],
                                          const double (&bottom)[1], const double (&b)[1]) {
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+d"(c_top[0]), "+d"(c_top[1]), "+d"(c_bottom[0]), "+d"(c_bottom[1])
        : "d"(top[0]), "d"(bottom[0]), "d"(b[0]));
#else
    mma_m8n8k4(c_top, top[0], b[0]);
    mma_m8n8k4(c_bottom, bottom[0], b[0]);
#endif
}

__device__ __forceinline__ void mma_m16n8(double (&c_top)[2], double (&c_bottom)[2], const double (&top)[2],
                                          const double (&bottom)[2], const double (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+d"(c_top[0]), "+d"(c_top[1]), "+d"(c_bottom[0]), "+d"(c_bottom[1])
        : "d"(top[0]), "d"(bottom[0]), "d"(top[1]), "d"(bottom[1]), "d"(b[0]), "d"(b[1]));
}

__device__ __forceinline__ void mma_m16n8(double (&c_top)[2], double (&c_bottom)[2], const double (&top)[4],
                                          const double (&bottom)[4], const double (&b)[4]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7,%8,%9,%10,%11}, {%12,%13,%14,%15}, {%0,%1,%2,%3};"
        : "+d"(c_top[0]), "+d"(c_top[1]), "+d"(c_bottom[0]), "+d"(c_bottom[1])
        : "d"(top[0]), "d"(bottom[0]), "d"(top[1]), "d"(bottom[1]), "d"(top[2]), "d"(bottom[2]), "d"(top[3]),
          "d"(bottom[3]), "d"(b[0]), "d"(b[1]), "d"(b[2]), "d"(b[3]));
}

// -x through its sign bit: an FP64 negation would take a slot of the pipe that the tensor products run on.
__device__ __forceinline__ double flip_sign(double x) {
    return __longlong_as_double(__double_as_longlong(x) ^ (1LL << 63));
}
