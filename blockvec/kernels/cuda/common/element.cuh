// Arithmetic on elements of the four types, and loads of several elements by one thread.
//
// Complex numbers are (re, im) pairs with the alignment of their parts: a view may start at any element of a real array.
// A real factor multiplies both parts. It is not converted to a complex number: the zero imaginary part would turn infinities into NaN and
// take two more operations.
#pragma once
#include "common/ptx.cuh"

template <class R>
struct Complex {
    R re, im;
};

template <class T>
struct Kind {
    using Real = T;
    static constexpr bool IS_COMPLEX = false;
};
template <class R>
struct Kind<Complex<R>> {
    using Real = R;
    static constexpr bool IS_COMPLEX = true;
};

template <class T>
constexpr bool IS_COMPLEX = Kind<T>::IS_COMPLEX;

// Real type R, or complex with parts of type R.
template <bool COMPLEX, class R>
struct MakeElement {
    using Type = R;
};
template <class R>
struct MakeElement<true, R> {
    using Type = Complex<R>;
};
template <bool COMPLEX, class R>
using ElementOf = typename MakeElement<COMPLEX, R>::Type;

// Real to real, real to complex, complex to complex.
template <class To, class From>
__device__ __forceinline__ To convert(From x) {
    using R = typename Kind<To>::Real;
    static_assert(IS_COMPLEX<To> || !IS_COMPLEX<From>, "an imaginary part would be dropped");
    if constexpr (IS_COMPLEX<From>)
        return {static_cast<R>(x.re), static_cast<R>(x.im)};
    else if constexpr (IS_COMPLEX<To>)
        return {static_cast<R>(x), R(0)};
    else
        return static_cast<R>(x);
}

// Operands of one precision, each real or complex.
template <class A, class B>
__device__ __forceinline__ auto multiply(A a, B b) -> ElementOf<IS_COMPLEX<A> || IS_COMPLEX<B>, typename Kind<A>::Real> {
    if constexpr (IS_COMPLEX<A> && IS_COMPLEX<B>)
        return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    else if constexpr (IS_COMPLEX<A>)
        return {a.re * b, a.im * b};
    else if constexpr (IS_COMPLEX<B>)
        return {a * b.re, a * b.im};
    else
        return a * b;
}

template <class A, class B>
__device__ __forceinline__ auto add(A a, B b) -> ElementOf<IS_COMPLEX<A> || IS_COMPLEX<B>, typename Kind<A>::Real> {
    if constexpr (IS_COMPLEX<A> && IS_COMPLEX<B>)
        return {a.re + b.re, a.im + b.im};
    else if constexpr (IS_COMPLEX<A>)
        return {a.re + b, a.im};
    else if constexpr (IS_COMPLEX<B>)
        return {a + b.re, b.im};
    else
        return a + b;
}

template <class A>
__device__ __forceinline__ A conjugate(A a) {
    if constexpr (IS_COMPLEX<A>)
        return {a.re, -a.im};
    else
        return a;
}

template <class A>
__device__ __forceinline__ auto real_part(A a) -> typename Kind<A>::Real {
    if constexpr (IS_COMPLEX<A>)
        return a.re;
    else
        return a;
}

// From memory that is constant during the kernel, so that the compiler may move the load ahead of stores.
template <class T>
__device__ __forceinline__ T load_constant(const T* p) {
    if constexpr (IS_COMPLEX<T>)
        return {__ldg(&p->re), __ldg(&p->im)};
    else
        return __ldg(p);
}

// A number as a type: the argument of a generic lambda that is compiled for several numbers.
template <int N>
struct Count {
    static constexpr int VALUE = N;
};

// N neighbouring elements. ALIGNED: their address is a multiple of their size, up to the 16 bytes of the widest load.
template <class T, int N, bool ALIGNED>
struct alignas(ALIGNED ? (N * sizeof(T) < 16 ? N * sizeof(T) : 16) : alignof(T)) Pack {
    T at[N];
};
