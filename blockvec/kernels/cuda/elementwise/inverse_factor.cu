// T = R^-1 for the Cholesky factor of a small Hermitian matrix, G (b x b) = R^H R, by one block in double precision.
//
//   for k = 0 .. b-1, with G = L D L^H on the way, L of unit diagonal, and Y = L^-1 = I before:
//     rows i > k:  m = conj(a_ki) / a_kk
//                  a_ij -= m a_kj   for j >= i      (row k of A, from its diagonal on, ends up as that of D L^H)
//                  y_ij -= m y_kj   for j <= k
//   R = D^-1/2 (D L^H),  T = Y^H D^-1/2,  growth = sum_ij g_ii |t_ij|^2
//
// A and the part of Y below its diagonal share one array in shared memory. Elimination without square roots needs one barrier per
// step: row k is read unscaled, and scaled at the end. If a pivot is not positive (or NaN), or the growth not below `limit`,
// R and T are the identity, and the growth is infinite.
//
// Types:  Real: of the parts of G's elements, which are complex under COMPLEX; T is of G's type.
// Config: THREADS: a multiple of 32; shared memory for b^2 numbers and 2 b reals.
// report: rows of b double-precision numbers: G made Hermitian, R, T, and one with the growth.
#include "common/element.cuh"

using Element = ElementOf<COMPLEX, Real>;
using Wide = ElementOf<COMPLEX, double>;

__device__ __forceinline__ double square(Wide x) { return real_part(multiply(conjugate(x), x)); }

extern "C" __global__ void __launch_bounds__(THREADS) KERNEL(const Element* G, Element* T, Wide* report, int b, double limit) {
    DYNAMIC_SHARED(shared, 16);
    Wide* A = reinterpret_cast<Wide*>(shared);
    double* scale = reinterpret_cast<double*>(A + b * b);
    double* growths = scale + b;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = THREADS / 32;

    const auto hermitian = [&](int i, int j) {
        return multiply(add(convert<Wide>(G[i * b + j]), conjugate(convert<Wide>(G[j * b + i]))), 0.5);
    };
    for (int i = warp; i < b; i += warps)
#pragma unroll 1
        for (int j = lane; j < b; j += 32) {
            const Wide g = hermitian(i, j);
            report[i * b + j] = g;
            A[i * b + j] = j < i ? Wide{} : g;
        }
    __syncthreads();

    bool refused = false;
    for (int k = 0; k < b && !refused; ++k) {
        const double pivot = real_part(A[k * b + k]);
        refused = !(pivot > 0);
        for (int i = k + 1 + warp; i < b; i += warps) {
            const Wide m = multiply(conjugate(A[k * b + i]), -1 / pivot);
#pragma unroll 1
            for (int j = lane; j < b; j += 32)
                if (j >= i || j < k)
                    A[i * b + j] = add(A[i * b + j], multiply(m, A[k * b + j]));
                else if (j == k)
                    A[i * b + j] = m;
        }
        __syncthreads();
    }

    const auto inverse = [&](int i, int j) {  // t_ij for i <= j
        return i == j ? convert<Wide>(scale[j]) : multiply(conjugate(A[j * b + i]), scale[j]);
    };
#pragma unroll 1
    for (int i = threadIdx.x; i < b; i += THREADS) scale[i] = 1 / sqrt(real_part(A[i * b + i]));
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < b; i += THREADS) {
        double sum = 0;
        for (int j = i; j < b; ++j) sum += square(inverse(i, j));
        growths[i] = sum * real_part(report[i * b + i]);
    }
    __syncthreads();
    double growth = 0;
    for (int i = 0; i < b; ++i) growth += growths[i];
    refused = refused || !(growth < limit);

    Wide* R = report + b * b;
    for (int i = warp; i < b; i += warps)
#pragma unroll 1
        for (int j = lane; j < b; j += 32) {
            const Wide unit = convert<Wide>(i == j ? 1.0 : 0.0);
            const bool upper = j >= i && !refused;
            const Wide r = upper ? multiply(A[i * b + j], scale[i]) : unit, t = upper ? inverse(i, j) : unit;
            R[i * b + j] = r;
            R[(b + i) * b + j] = t;
            T[i * b + j] = convert<Element>(t);
        }
    if (threadIdx.x == 0) report[3 * b * b] = convert<Wide>(refused ? 1 / 0.0 : growth);
}
