// What C++ beside several modules shares: numbers in bfloat16, the upper half of a float.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

struct Half {
    uint16_t bits;
};

inline float widened(float x) { return x; }

inline float widened(Half x) {
    const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
    float out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
}

inline void put(float x, float* out) { *out = x; }

// To the nearest, ties to even, as PyTorch rounds; all that is no number becomes one NaN.
inline void put(float x, Half* out) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    out->bits = std::isnan(x) ? 0x7fc0 : static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
