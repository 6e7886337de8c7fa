// What C++ beside several modules shares: numbers in bfloat16, the upper half of a float, and memory for vectors.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

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

// Memory that begins where a vector may, so that no vector lies on two cache lines.
template <typename T>
struct OnLines {
    typedef T value_type;
    static constexpr std::align_val_t LINE{64};
    OnLines() = default;
    template <typename Other>
    OnLines(const OnLines<Other>&) {}
    T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), LINE)); }
    void deallocate(T* from, size_t) { ::operator delete(from, LINE); }
    bool operator==(const OnLines&) const { return true; }
    bool operator!=(const OnLines&) const { return false; }
};
typedef std::vector<float, OnLines<float>> Floats;
