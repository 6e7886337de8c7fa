// The backward pass of GELU in bfloat16, from a table of its slopes: one for each of the 65,536 numbers.

#include "native.h"

namespace {

constexpr long FOUR = 4, BLOCK = 64;

// Four indices are read at once; the lowest byte comes first.
inline void look_up(const uint16_t* x, const float* slopes, float* found) {
    uint64_t four;
    std::memcpy(&four, x, sizeof four);
    for (int i = 0; i < FOUR; ++i) found[i] = slopes[four >> 16 * i & 0xffff];
}

}  // namespace

extern "C" {

// Elements `first` to `last`.
void gelu_backward(const Half* grad, const uint16_t* x, const float* slopes, Half* to_x, long first, long last) {
    long i = first;
    for (; i + BLOCK <= last; i += BLOCK) {
        float found[BLOCK];
        for (long k = 0; k < BLOCK; k += FOUR) look_up(x + i + k, slopes, found + k);
        for (long k = 0; k < BLOCK; ++k) put(widened(grad[i + k]) * found[k], &to_x[i + k]);
    }
    for (; i < last; ++i) put(widened(grad[i]) * slopes[x[i]], &to_x[i]);
}

}
