// Batch normalisation, a sum and ReLU over images whose channels lie side by side, in single precision and in bfloat16.
//
// Numbers are taken in rows of LANES: several pixels where there are fewer channels, else a part of one pixel.  Either
// way a lane has one channel.  Sums are single precision over a few rows and double beyond.  `start` and `stop` are
// rows, or pixels where there are as many channels as lanes or more.

#include "native.h"

#include <algorithm>

namespace {

constexpr long LANES = 128, ROWS = 64;

inline void spread(const float* __restrict__ by_channel, float* __restrict__ lanes, long column, long channels) {
    for (long i = 0; i < LANES; ++i) lanes[i] = by_channel[(column + i) % channels];
}

// The gradient where ReLU let something through.  Of NaN it did.
template <typename T>
inline float passed(T grad, T out) {
    return widened(out) <= 0 ? 0.0f : widened(grad);
}

// Work on a row.  Apart from each other, so that the compiler can tell what is no alias of what.

// Distances from an origin, so that little is lost where a channel is far from zero, and their squares.
template <typename T>
inline void add_moments(const T* __restrict__ x, const float* __restrict__ origin, float* __restrict__ d,
                        float* __restrict__ dd) {
    for (long i = 0; i < LANES; ++i) {
        const float distance = widened(x[i]) - origin[i];
        d[i] += distance, dd[i] += distance * distance;
    }
}

template <typename T>
inline void add_gradients(const T* __restrict__ grad, const T* __restrict__ x, const T* __restrict__ out,
                          const float* __restrict__ mean, float* __restrict__ g, float* __restrict__ gx) {
    for (long i = 0; i < LANES; ++i) {
        const float one = passed(grad[i], out[i]);
        g[i] += one, gx[i] += one * (widened(x[i]) - mean[i]);
    }
}

template <typename T, bool ADDS>
inline void put_outputs(const T* __restrict__ x, const T* __restrict__ added, const float* __restrict__ scale,
                        const float* __restrict__ shift, T* __restrict__ out) {
    for (long i = 0; i < LANES; ++i) {
        float y = widened(x[i]) * scale[i] + shift[i];
        if (ADDS) y += widened(added[i]);
        put(y < 0 ? 0.0f : y, &out[i]);
    }
}

template <typename T, bool ADDS>
inline void put_gradients(const T* __restrict__ grad, const T* __restrict__ x, const T* __restrict__ out,
                          const float* __restrict__ mean, const float* __restrict__ of_grad,
                          const float* __restrict__ of_x, const float* __restrict__ constant, T* __restrict__ to_x,
                          T* __restrict__ to_added) {
    for (long i = 0; i < LANES; ++i) {
        const float one = passed(grad[i], out[i]);
        if (ADDS) put(one, &to_added[i]);
        put(of_grad[i] * one + of_x[i] * (widened(x[i]) - mean[i]) + constant[i], &to_x[i]);
    }
}

// Two sums for each channel of what `add` adds for a row; out [2, channels].
template <typename Add>
void sum(double* out, long channels, long start, long stop, long column, Add add) {
    double sums[2][LANES] = {};
    for (long first = start; first < stop; first += ROWS) {
        float part[2][LANES] = {};
        const long last = std::min(stop, first + ROWS), stride = std::max(channels, LANES);
        for (long row = first; row < last; ++row) add(row * stride + column, part[0], part[1]);
        for (long k = 0; k < 2; ++k)
            for (long i = 0; i < LANES; ++i) sums[k][i] += part[k][i];
    }
    for (long k = 0; k < 2; ++k)
        for (long i = 0; i < LANES; ++i) out[k * channels + (column + i) % channels] += sums[k][i];
}

// A number near those of each channel: the mean of some pixels, since a single one may be far from all others.
template <typename T>
void origins(const T* x, float* out, long pixels, long channels) {
    const long some = std::min(pixels, ROWS);
    std::fill(out, out + channels, 0.0f);
    for (long pixel = 0; pixel < some; ++pixel)
        for (long c = 0; c < channels; ++c) out[c] += widened(x[pixel * channels + c]) / some;
    for (long c = 0; c < channels; ++c)
        if (!std::isfinite(out[c])) out[c] = 0;
}

template <typename T>
void moments(const T* x, const float* by_channel, double* sums, long channels, long start, long stop) {
    std::fill(sums, sums + 2 * channels, 0.0);
    for (long column = 0; column < std::max(channels, LANES); column += LANES) {
        float origin[LANES];
        spread(by_channel, origin, column, channels);
        sum(sums, channels, start, stop, column,
            [&](long at, float* d, float* dd) { add_moments(x + at, origin, d, dd); });
    }
}

template <typename T>
void gradient_sums(const T* grad, const T* x, const T* out, const float* by_channel, double* sums, long channels,
                   long start, long stop) {
    std::fill(sums, sums + 2 * channels, 0.0);
    for (long column = 0; column < std::max(channels, LANES); column += LANES) {
        float mean[LANES];
        spread(by_channel, mean, column, channels);
        sum(sums, channels, start, stop, column,
            [&](long at, float* g, float* gx) { add_gradients(grad + at, x + at, out + at, mean, g, gx); });
    }
}

template <typename T, bool ADDS>
void forward(const T* x, const T* added, const float* factors, T* out, long channels, long start, long stop) {
    const long stride = std::max(channels, LANES);
    for (long column = 0; column < stride; column += LANES) {
        float scale[LANES], shift[LANES];
        spread(factors, scale, column, channels);
        spread(factors + channels, shift, column, channels);
        for (long at = start * stride + column; at < stop * stride; at += stride)
            put_outputs<T, ADDS>(x + at, ADDS ? added + at : nullptr, scale, shift, out + at);
    }
}

template <typename T, bool ADDS>
void backward(const T* grad, const T* x, const T* out, const float* by_channel, const float* factors, T* to_x,
              T* to_added, long channels, long start, long stop) {
    const long stride = std::max(channels, LANES);
    for (long column = 0; column < stride; column += LANES) {
        float mean[LANES], of_grad[LANES], of_x[LANES], constant[LANES];
        spread(by_channel, mean, column, channels);
        spread(factors, of_grad, column, channels);
        spread(factors + channels, of_x, column, channels);
        spread(factors + 2 * channels, constant, column, channels);
        for (long at = start * stride + column; at < stop * stride; at += stride)
            put_gradients<T, ADDS>(grad + at, x + at, out + at, mean, of_grad, of_x, constant, to_x + at,
                                   ADDS ? to_added + at : nullptr);
    }
}

// Of all parts; sums [parts, 2, channels].
inline double total(const double* sums, long parts, long channels, long which, long channel) {
    double found = 0;
    for (long part = 0; part < parts; ++part) found += sums[(2 * part + which) * channels + channel];
    return found;
}

}  // namespace

extern "C" {

void finish_moments(const double* sums, long parts, const float* origin, const float* weight, const float* bias,
                    float* statistics, float* factors, float* running_mean, float* running_variance, float epsilon,
                    float momentum, long pixels, long channels) {
    for (long c = 0; c < channels; ++c) {
        const double distance = total(sums, parts, channels, 0, c) / pixels;
        const double squares = total(sums, parts, channels, 1, c) / pixels - distance * distance;
        const double mean = origin[c] + distance, variance = squares < 0 ? 0 : squares;
        const double scale = 1 / std::sqrt(variance + epsilon) * weight[c];
        statistics[c] = static_cast<float>(mean);
        statistics[channels + c] = static_cast<float>(1 / std::sqrt(variance + epsilon));
        factors[c] = static_cast<float>(scale);
        factors[channels + c] = static_cast<float>((bias ? bias[c] : 0) - mean * scale);
        running_mean[c] += momentum * static_cast<float>(mean - running_mean[c]);
        running_variance[c] += momentum * static_cast<float>(variance * pixels / (pixels - 1) - running_variance[c]);
    }
}

void finish_gradients(const double* sums, long parts, const float* weight, const float* statistics, float* factors,
                      float* to_weight, float* to_bias, long pixels, long channels) {
    for (long c = 0; c < channels; ++c) {
        const double of_grad = total(sums, parts, channels, 0, c), of_x = total(sums, parts, channels, 1, c);
        const double inverse = statistics[channels + c], scale = inverse * weight[c];
        to_bias[c] = static_cast<float>(of_grad);
        to_weight[c] = static_cast<float>(of_x * inverse);
        factors[c] = static_cast<float>(scale);
        factors[channels + c] = static_cast<float>(-scale * of_x * inverse * inverse / pixels);
        factors[2 * channels + c] = static_cast<float>(-scale * of_grad / pixels);
    }
}

#define FOR_TYPE(T, SUFFIX)                                                                                           \
    void origins##SUFFIX(const T* x, float* out, long pixels, long channels) { origins(x, out, pixels, channels); }   \
    void moments##SUFFIX(const T* x, const float* origin, double* sums, long channels, long start, long stop) {       \
        moments(x, origin, sums, channels, start, stop);                                                              \
    }                                                                                                                 \
    void forward##SUFFIX(const T* x, const T* added, const float* factors, T* out, long channels, long start,         \
                         long stop) {                                                                                 \
        (added ? forward<T, true> : forward<T, false>)(x, added, factors, out, channels, start, stop);                \
    }                                                                                                                 \
    void gradient_sums##SUFFIX(const T* grad, const T* x, const T* out, const float* mean, double* sums,              \
                               long channels, long start, long stop) {                                                \
        gradient_sums(grad, x, out, mean, sums, channels, start, stop);                                               \
    }                                                                                                                 \
    void backward##SUFFIX(const T* grad, const T* x, const T* out, const float* mean, const float* factors, T* to_x,  \
                          T* to_added, long channels, long start, long stop) {                                        \
        (to_added ? backward<T, true> : backward<T, false>)(grad, x, out, mean, factors, to_x, to_added, channels,    \
                                                            start, stop);                                             \
    }

FOR_TYPE(float, _float)
FOR_TYPE(Half, _half)

}
