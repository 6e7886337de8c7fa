// Dropout with the draws of PyTorch's CPU generator, in single precision and in bfloat16.
//
// PyTorch keeps x where u < p, u = the low 53 bits of two numbers of its Mersenne twister over 2^53, in the order of
// memory.  The same numbers are made here block by block: 624 of them are independent but for one shift of 227, which
// lets the processor make eight or sixteen at once.

#include "cpp.h"

#include <algorithm>
#include <cstdint>

namespace {

constexpr long WORDS = 624, SHIFT = 397;

// As `torch.Generator.get_state` lays it out; what follows, of normal numbers, isn't touched.
struct State {
    uint64_t seed;
    int32_t left;  // one more than the numbers that are left of this block
    int32_t seeded;
    uint64_t next;
    uint64_t words[WORDS];
};

inline uint32_t twisted(uint32_t high, uint32_t low) {
    return (((high & 0x80000000u) | (low & 0x7fffffffu)) >> 1) ^ (-(low & 1u) & 0x9908b0dfu);
}

class Twister {
   public:
    explicit Twister(State* state) : state(state), left(state->left), next(state->next) {
        std::copy(state->words, state->words + WORDS, words);
    }

    ~Twister() {
        std::copy(words, words + WORDS, state->words);
        state->left = left, state->next = next;
    }

    void draw(uint32_t* out, long count) {
        while (count > 0) {
            if (left == 1) turn();
            const long part = std::min<long>(count, left - 1);
            for (long i = 0; i < part; ++i) {
                uint32_t y = words[next + i];
                y ^= y >> 11;
                y ^= (y << 7) & 0x9d2c5680u;
                y ^= (y << 15) & 0xefc60000u;
                out[i] = y ^ (y >> 18);
            }
            out += part, count -= part, left -= part, next += part;
        }
    }

   private:
    State* state;
    int32_t left;
    uint64_t next;
    uint32_t words[WORDS];

    // PyTorch turns the block when the first number of the next one is asked for, and counts that number as taken.
    void turn() {
        for (long i = 0; i < WORDS - SHIFT; ++i) words[i] = words[i + SHIFT] ^ twisted(words[i], words[i + 1]);
        for (long i = WORDS - SHIFT; i < WORDS - 1; ++i)
            words[i] = words[i + SHIFT - WORDS] ^ twisted(words[i], words[i + 1]);
        words[WORDS - 1] = words[SHIFT - 1] ^ twisted(words[WORDS - 1], words[0]);
        left = WORDS + 1, next = 0;
    }
};

template <typename T>
void scale_kept(const T* x, const uint8_t* kept, T* out, float scale, long count) {
    for (long i = 0; i < count; ++i) put(widened(x[i]) * (kept[i] ? scale : 0.0f), &out[i]);
}

template <typename T>
void forward(const T* x, T* out, uint8_t* kept, void* state, float scale, long keep, long count) {
    constexpr long CHUNK = 2048;
    uint32_t words[2 * CHUNK];
    const auto keep_high = static_cast<uint32_t>(keep >> 32), keep_low = static_cast<uint32_t>(keep);
    Twister twister(static_cast<State*>(state));
    for (long first = 0; first < count; first += CHUNK) {
        const long size = std::min(CHUNK, count - first);
        twister.draw(words, 2 * size);
        for (long i = 0; i < size; ++i) {
            const uint32_t high = words[2 * i] & 0x1fffffu, low = words[2 * i + 1];
            kept[first + i] = (high < keep_high) | ((high == keep_high) & (low < keep_low));
        }
        scale_kept(x + first, kept + first, out + first, scale, size);
    }
}

}  // namespace

extern "C" {

// out = x / p where kept, else 0 x.  `kept` [count] is written; keep p·2^53, rounded up; scale 1 / p.
void dropout_forward(const float* x, float* out, uint8_t* kept, void* state, float scale, long keep, long count) {
    forward(x, out, kept, state, scale, keep, count);
}

void dropout_forward_half(const Half* x, Half* out, uint8_t* kept, void* state, float scale, long keep, long count) {
    forward(x, out, kept, state, scale, keep, count);
}

void dropout_backward(const float* grad, const uint8_t* kept, float* to_x, float scale, long count) {
    scale_kept(grad, kept, to_x, scale, count);
}

void dropout_backward_half(const Half* grad, const uint8_t* kept, Half* to_x, float scale, long count) {
    scale_kept(grad, kept, to_x, scale, count);
}

}
