// What Yat and HyperBF make of inner products, elementwise in one pass forwards and one backwards, single precision.
//
//     Yat       y = s a² / (d + ε),  a = dot + bias,  d = max(row + column − 2 dot, 0)
//     Gaussian  y = exp(−β d),                        d = row + column − 2 dot
//
// A map has `rows` of `length`; each row has a term of its own, and `per` rows in a row share the terms of the columns.
// Attention takes the softmax of the scores s dot² / (d + ε) (Yat) or s (2 dot − column) (Gaussian) over a row, whose
// first `first + 1`, `first + 2`, … numbers count where it is causal.  A NaN stays a NaN.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace {

constexpr long LANES = 8;
typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef float Unaligned __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int Integers __attribute__((vector_size(4 * LANES)));

inline Vector load(const float* from, long count) {
    if (count >= LANES) return *reinterpret_cast<const Unaligned*>(from);
    Vector value = {};
    std::memcpy(&value, from, 4 * count);
    return value;
}

inline void store(float* to, Vector value, long count) {
    if (count >= LANES) *reinterpret_cast<Unaligned*>(to) = value;
    else std::memcpy(to, &value, 4 * count);
}

inline Vector kept(Vector value, long count) {  // zeros behind the last
    for (long lane = std::max(count, 0L); lane < LANES; ++lane) value[lane] = 0;
    return value;
}

inline float sum(Vector value) {
    float total = 0;
    for (long lane = 0; lane < LANES; ++lane) total += value[lane];
    return total;
}

// exp to two units in the last place: 2^n e^r with |r| at most ln 2 / 2.  Below the normal numbers it is 0.
inline Vector exponential(Vector x) {
    const Vector low = Vector{} - 87.33f, high = Vector{} + 88.72f;
    const Vector inside = x > high ? high : (x < low ? low : x);
    const Vector scaled = inside * 1.44269504f;
    const Vector half = scaled < 0.0f ? Vector{} - 0.5f : Vector{} + 0.5f;
    const Integers whole = __builtin_convertvector(scaled + half, Integers);
    const Vector n = __builtin_convertvector(whole, Vector);
    const Vector r = (inside - n * 0.693359375f) + n * 2.12194440e-4f;
    Vector p = Vector{} + 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    // 2^n in two factors: n may be 128.
    const Integers first = whole / 2, second = whole - first;
    const Vector result = p * (Vector)((first + 127) << 23) * (Vector)((second + 127) << 23);
    const Vector large = x > high ? Vector{} + std::numeric_limits<float>::infinity() : result;
    return x < low ? Vector{} : large;
}

struct YatGradient {
    Vector dot, aligned, distance, scale, epsilon;
};

// Gradients of s a² / (d + ε), where `back` is that of the result; `aligned` is already part of `dot`.
inline YatGradient yat_gradient(Vector dot, Vector a, Vector norms, Vector back, float scale, float epsilon) {
    const Vector raw = norms - 2.0f * dot, d = raw < 0.0f ? Vector{} : raw;
    const Vector ratio = a / (d + epsilon), part = back * ratio;
    YatGradient g;
    g.scale = part * a;
    g.aligned = 2.0f * scale * part;
    g.epsilon = -scale * part * ratio;
    g.distance = raw > 0.0f ? g.epsilon : Vector{};
    g.dot = g.aligned - 2.0f * g.distance;
    return g;
}

}  // namespace

extern "C" {

// row_bias [rows] or column_bias [length], or neither.
void yat_forward(const float* dot, const float* row, const float* column, const float* row_bias, const float* column_bias,
                 float* out, float scale, float epsilon, long rows, long length, long per) {
    for (long i = 0; i < rows; ++i)
        for (long p = 0; p < length; p += LANES) {
            const long count = length - p;
            const Vector t = load(dot + i * length + p, count);
            const Vector raw = load(column + i / per * length + p, count) + row[i] - 2.0f * t;
            const Vector d = raw < 0.0f ? Vector{} : raw;
            Vector a = t;
            if (row_bias) a += row_bias[i];
            if (column_bias) a += load(column_bias + p, count);
            store(out + i * length + p, scale * a * a / (d + epsilon), count);
        }
}

// Sums of columns are added to, those of rows written; `totals`: of scale and epsilon, added to.
void yat_backward(const float* dot, const float* row, const float* column, const float* row_bias,
                  const float* column_bias, const float* grad, float* to_dot, float* to_row, float* to_column,
                  float* to_row_bias, float* to_column_bias, double* totals, float scale, float epsilon, long rows,
                  long length, long per) {
    for (long i = 0; i < rows; ++i) {
        Vector of_row = {}, of_bias = {}, of_scale = {}, of_epsilon = {};
        float* back_column = to_column + i / per * length;
        for (long p = 0; p < length; p += LANES) {
            const long count = length - p;
            const Vector t = load(dot + i * length + p, count);
            Vector a = t;
            if (row_bias) a += row_bias[i];
            if (column_bias) a += load(column_bias + p, count);
            const Vector norms = load(column + i / per * length + p, count) + row[i];
            YatGradient g = yat_gradient(t, a, norms, load(grad + i * length + p, count), scale, epsilon);
            store(to_dot + i * length + p, g.dot, count);
            store(back_column + p, load(back_column + p, count) + g.distance, count);
            if (column_bias) store(to_column_bias + p, load(to_column_bias + p, count) + g.aligned, count);
            if (count < LANES) {  // what stands behind the last may be a NaN
                g.distance = kept(g.distance, count), g.aligned = kept(g.aligned, count);
                g.scale = kept(g.scale, count), g.epsilon = kept(g.epsilon, count);
            }
            of_row += g.distance, of_bias += g.aligned, of_scale += g.scale, of_epsilon += g.epsilon;
        }
        to_row[i] = sum(of_row);
        if (row_bias) to_row_bias[i] = sum(of_bias);
        totals[0] += sum(of_scale);
        totals[1] += sum(of_epsilon);
    }
}

// out [images, pixels] = the sum of x² over channels; x [images, channels, pixels].
void energy_forward(const float* x, float* out, long images, long channels, long pixels) {
    for (long image = 0; image < images; ++image, out += pixels) {
        std::fill(out, out + pixels, 0.0f);
        for (long channel = 0; channel < channels; ++channel, x += pixels)
            for (long p = 0; p < pixels; ++p) out[p] += x[p] * x[p];
    }
}

void energy_backward(const float* x, const float* grad, float* to_x, long images, long channels, long pixels) {
    for (long image = 0; image < images; ++image, grad += pixels)
        for (long channel = 0; channel < channels; ++channel, x += pixels, to_x += pixels)
            for (long p = 0; p < pixels; ++p) to_x[p] = 2.0f * x[p] * grad[p];
}

// beta [length].
void gaussian_forward(const float* dot, const float* row, const float* column, const float* beta, float* out, long rows,
                      long length) {
    for (long i = 0; i < rows; ++i)
        for (long p = 0; p < length; p += LANES) {
            const long count = length - p;
            const Vector d = load(column + p, count) + row[i] - 2.0f * load(dot + i * length + p, count);
            store(out + i * length + p, exponential(-load(beta + p, count) * d), count);
        }
}

void gaussian_backward(const float* dot, const float* row, const float* column, const float* beta, const float* out,
                       const float* grad, float* to_dot, float* to_row, float* to_column, float* to_beta, long rows,
                       long length) {
    for (long i = 0; i < rows; ++i) {
        Vector of_row = {};
        for (long p = 0; p < length; p += LANES) {
            const long count = length - p, place = i * length + p;
            const Vector d = load(column + p, count) + row[i] - 2.0f * load(dot + place, count);
            const Vector back = -load(grad + place, count) * load(out + place, count);  // zeros behind the last
            const Vector to_distance = load(beta + p, count) * back;
            store(to_dot + place, -2.0f * to_distance, count);
            store(to_column + p, load(to_column + p, count) + to_distance, count);
            store(to_beta + p, load(to_beta + p, count) + back * d, count);
            of_row += to_distance;
        }
        to_row[i] = sum(of_row);
    }
}

// weights = softmax of the scores of `dot` [maps, rows, length]; row [maps, rows], unused for the Gaussian's; column
// [maps, length].
void softmax_forward(const float* dot, const float* row, const float* column, float* weights, float scale, float epsilon,
                     long maps, long rows, long length, long first, long is_causal, long is_yat) {
    for (long map = 0; map < maps; ++map)
        for (long i = 0; i < rows; ++i) {
            const long place = (map * rows + i) * length, seen = is_causal ? std::min(length, first + i + 1) : length;
            const float* terms = column + map * length;
            Vector greatest = Vector{} - std::numeric_limits<float>::infinity();
            for (long p = 0; p < seen; p += LANES) {
                const long count = seen - p;
                const Vector t = load(dot + place + p, count), c = load(terms + p, count);
                Vector score = scale * (2.0f * t - c);
                if (is_yat) {
                    const Vector raw = c + row[map * rows + i] - 2.0f * t, d = raw < 0.0f ? Vector{} : raw;
                    score = scale * t * t / (d + epsilon);
                }
                store(weights + place + p, score, count);
                if (count < LANES)
                    for (long lane = count; lane < LANES; ++lane) score[lane] = greatest[lane];
                greatest = score > greatest ? score : greatest;
            }
            float most = greatest[0];
            for (long lane = 1; lane < LANES; ++lane) most = std::max(most, greatest[lane]);
            Vector total = {};
            for (long p = 0; p < seen; p += LANES) {
                const Vector power = exponential(load(weights + place + p, seen - p) - most);
                store(weights + place + p, power, seen - p);
                total += seen - p < LANES ? kept(power, seen - p) : power;
            }
            const float share = 1.0f / sum(total);
            for (long p = 0; p < seen; p += LANES)
                store(weights + place + p, share * load(weights + place + p, seen - p), seen - p);
            std::fill(weights + place + seen, weights + place + length, 0.0f);
        }
}

// `grad`, of the weights, becomes that of `dot`.
void softmax_backward(const float* dot, const float* row, const float* column, const float* weights, float* grad,
                      float* to_row, float* to_column, double* totals, float scale, float epsilon, long maps, long rows,
                      long length, long first, long is_causal, long is_yat) {
    for (long map = 0; map < maps; ++map)
        for (long i = 0; i < rows; ++i) {
            const long place = (map * rows + i) * length, seen = is_causal ? std::min(length, first + i + 1) : length;
            const float* terms = column + map * length;
            float* back_column = to_column + map * length;
            Vector mean = {};
            for (long p = 0; p < seen; p += LANES)
                mean += load(weights + place + p, seen - p) * load(grad + place + p, seen - p);
            const float middle = sum(mean);
            Vector of_row = {}, of_scale = {}, of_epsilon = {};
            for (long p = 0; p < seen; p += LANES) {
                const long count = seen - p;
                const Vector t = load(dot + place + p, count), c = load(terms + p, count);
                const Vector back = load(weights + place + p, count) * (load(grad + place + p, count) - middle);
                Vector to_dot = 2.0f * scale * back, to_term = -scale * back;
                if (is_yat) {
                    YatGradient g = yat_gradient(t, t, c + row[map * rows + i], back, scale, epsilon);
                    to_dot = g.dot, to_term = g.distance;
                    of_scale += count < LANES ? kept(g.scale, count) : g.scale;
                    of_epsilon += count < LANES ? kept(g.epsilon, count) : g.epsilon;
                    of_row += count < LANES ? kept(to_term, count) : to_term;
                } else {
                    of_scale += back * (2.0f * t - c);
                }
                store(grad + place + p, to_dot, count);
                store(back_column + p, load(back_column + p, count) + to_term, count);
            }
            std::fill(grad + place + seen, grad + place + length, 0.0f);
            to_row[map * rows + i] = sum(of_row);
            totals[0] += sum(of_scale);
            totals[1] += sum(of_epsilon);
        }
}

}
