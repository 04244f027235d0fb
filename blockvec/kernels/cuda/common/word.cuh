// The integer types that one load or store of 4, 8 or 16 bytes moves.
#pragma once
#include "common/ptx.cuh"

template <int BYTES>
struct MakeWord {
    using Type = u32;
};
template <>
struct MakeWord<8> {
    using Type = uint2;
};
template <>
struct MakeWord<16> {
    using Type = uint4;
};
template <int BYTES>
using WordOf = typename MakeWord<BYTES>::Type;
