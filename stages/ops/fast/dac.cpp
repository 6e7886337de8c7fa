// The sums of dac_recompute.py in single precision, one image after the other, for one thread; at the end, those of a
// dense layer of several networks.
//
//     f_i(h)  = Σ_j Σ_t w_tij φ(b_ij + z_j(h + t - before))
//     ∂E/∂w   = Σ_q φ(b_ij + z_j(q)) g_i(q - t + before)
//     a_ij(q) = φ'(b_ij + z_j(q)) Σ_t w_tij g_i(q - t + before),   ∂E/∂b = Σ_q a_ij(q),   ∂E/∂z_j = Σ_i a_ij
//
// An image's maps are copied once into rows of whole vectors: z with EMPTY around it, which φ takes to 0, and g with 0.
// One activated map lives at a time and stays in the first-level cache.  A NaN stays a NaN.

#include "cpp.h"

#include <algorithm>
#include <cstring>
#include <vector>
#ifdef __AVX__
#include <immintrin.h>
#endif

namespace {

constexpr float EMPTY = -1e30f;
constexpr long POINT_PIXELS = 256;   // all maps of so many, and their gradients, fit a core's caches
constexpr long GROUP_PIXELS = 1024;  // of several images at a time, so that sums over lanes are rare

#ifdef __AVX__
typedef float Narrow __attribute__((vector_size(32)));  // for maps up to eight pixels wide
#else
typedef float Narrow __attribute__((vector_size(16)));
#endif
#ifdef __AVX512F__
typedef float Wide __attribute__((vector_size(64)));
#else
typedef Narrow Wide;
#endif

template <typename Vector>
constexpr long LANES = sizeof(Vector) / 4;

template <typename Vector>
inline Vector load(const float* from) {
    Vector value;
    std::memcpy(&value, from, sizeof value);
    return value;
}
// For what is used more than once: the compiler may else read it again for each use.
template <typename Vector>
inline Vector in_register(Vector value) {
#ifdef __AVX__
    asm("" : "+v"(value));
#endif
    return value;
}
template <typename Vector>
inline void store(float* to, Vector value) {
    std::memcpy(to, &value, sizeof value);
}
// `value` in every lane.
template <typename Vector>
inline Vector all(float value) {
    return value - Vector{};
}
template <typename Vector>
inline Vector relu(Vector t) {
    return t < 0.0f ? Vector{} : t;
}
template <typename Vector>
inline Vector where_positive(Vector t, Vector value) {
    return t > 0.0f ? value : Vector{};
}
template <typename Vector>
inline long whole_vectors(long width) {
    return (width + LANES<Vector> - 1) / LANES<Vector> * LANES<Vector>;
}
template <typename Vector>
inline float sum(Vector value) {
    float total = 0;
    for (long lane = 0; lane < LANES<Vector>; ++lane) total += value[lane];
    return total;
}

// Adds to `to` the sum of each of eight vectors.
template <typename Vector>
inline void add_sums(const Vector* values, float* to) {
    for (long k = 0; k < 8; ++k) to[k] += sum(values[k]);
}

// Adds what one point gives: the gradient of its output, where t is positive, to that of z, and sums of it.
template <typename Vector>
inline void differentiate_point(Vector t, Vector grad, Vector tap, Vector& to_tap, Vector& to_bias, Vector& back) {
    const Vector passed = where_positive(t, grad);
    to_tap += passed * t;
    to_bias += passed;
    back += tap * passed;
}

#ifdef __AVX__
inline Narrow relu(Narrow t) { return _mm256_max_ps(Narrow{}, t); }  // of 0 and NaN it takes the second

inline void add_sums(const Narrow* values, float* to) {
    Narrow fours[2];
    for (long k = 0; k < 2; ++k, values += 4)
        fours[k] = _mm256_hadd_ps(_mm256_hadd_ps(values[0], values[1]), _mm256_hadd_ps(values[2], values[3]));
    const Narrow sums = _mm256_permute2f128_ps(fours[0], fours[1], 0x20) + _mm256_permute2f128_ps(fours[0], fours[1], 0x31);
    store(to, load<Narrow>(to) + sums);
}
#endif

#ifdef __AVX512F__
inline Wide relu(Wide t) { return _mm512_max_ps(Wide{}, t); }
inline Wide where_positive(Wide t, Wide value) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(t, Wide{}, _CMP_GT_OQ), value);
}

inline void add_sums(const Wide* values, float* to) {
    Wide v[4];
    for (long k = 0; k < 4; ++k)  // halves: of the k-th, and of the k + 4-th
        v[k] = _mm512_shuffle_f32x4(values[k], values[k + 4], 0x44) + _mm512_shuffle_f32x4(values[k], values[k + 4], 0xee);
    for (long count = 4; count > 1; count /= 2)  // neighbours
        for (long k = 0; k < count / 2; ++k)
            v[k] = _mm512_shuffle_ps(v[2 * k], v[2 * k + 1], 0x88) + _mm512_shuffle_ps(v[2 * k], v[2 * k + 1], 0xdd);
    const Wide sums = v[0] + _mm512_shuffle_f32x4(v[0], v[0], 0xb1);
    store(to, load<Narrow>(to) + _mm512_castps512_ps256(_mm512_shuffle_f32x4(sums, sums, 0x08)));
}

inline void differentiate_point(Wide t, Wide grad, Wide tap, Wide& to_tap, Wide& to_bias, Wide& back) {
    grad = in_register(grad);
    const __mmask16 passes = _mm512_cmp_ps_mask(t, Wide{}, _CMP_NLE_UQ);
    to_tap = _mm512_mask3_fmadd_ps(grad, t, to_tap, passes);
    to_bias = _mm512_mask_add_ps(to_bias, passes, to_bias, grad);
    back = _mm512_mask3_fmadd_ps(grad, tap, back, passes);
}
#endif

// 0 times a number is 0, and NaN of what is none.
inline bool are_finite(const float* from, long count) {
    constexpr long LANES = ::LANES<Wide>, STEP = 4 * LANES;
    Wide totals[4] = {};
    long p = 0;
    for (; p + STEP <= count; p += STEP)
        for (long k = 0; k < 4; ++k) totals[k] += 0.0f * load<Wide>(from + p + k * LANES);
    float rest = sum(totals[0] + totals[1] + totals[2] + totals[3]);
    for (; p < count; ++p) rest += 0.0f * from[p];
    return rest == 0.0f;
}

// relu of what is no NaN: as an integer a negative number is negative, too, and its maximum takes any of the pipes.
template <bool IS_FINITE, typename Vector>
inline Vector rectified(Vector t) {
    typedef int Integers __attribute__((vector_size(sizeof(Vector))));
    const Integers bits = (Integers)t;
    return IS_FINITE ? (Vector)(bits > 0 ? bits : Integers{}) : relu(t);
}

struct Sizes {
    long images, inputs, outputs, height, width, top, left, out_height, out_width, is_rows;
};

// Copies `map` [height, width] so that its first pixel comes to (down, right); what lies outside `to` is cut off.
void place(const float* map, long height, long width, float* to, long rows, long stride, long down, long right) {
    const long first = std::max(0L, -right), last = std::min(width, stride - right);
    for (long row = std::max(0L, -down); row < std::min(height, rows - down); ++row)
        if (first < last)
            std::memcpy(to + (row + down) * stride + first + right, map + row * width + first, 4 * (last - first));
}

// Adds to f [rows, columns] what one input map adds to an output map: f's row r + A - 1 is the output's r, the A - 1 rows
// at either end are scratch.  Each activated row is made once and added to the A rows of f that meet it, kept meanwhile.
template <typename Vector, long A, long B>
inline void add_map(const float* z, Vector bias, const Vector* taps, float* f, long rows, long columns, long stride) {
    for (long column = 0; column < columns; column += LANES<Vector>) {
        Vector open[A];  // rows of f: that of this row of z and the A - 1 before
        for (long a = 1; a < A; ++a) open[a - 1] = load<Vector>(&f[(A - 1 - a) * columns + column]);
        for (long row = 0; row < rows; ++row) {
            for (long a = A - 1; a > 0; --a) open[a] = open[a - 1];
            open[0] = load<Vector>(&f[(row + A - 1) * columns + column]);
            Vector active[B], added[A];
            for (long b = 0; b < B; ++b) active[b] = relu(load<Vector>(&z[row * stride + column + b]) + bias);
            for (long a = 0; a < A; ++a) {
                added[a] = taps[a * B] * active[0];
                for (long b = 1; b < B; ++b) added[a] += taps[a * B + b] * active[b];
                open[a] += added[a];
            }
            store(&f[row * columns + column], open[A - 1]);
        }
    }
}

template <typename Vector, long A, long B>
void forward(const float* x, const float* w, const float* bias, float* out, const Sizes& s) {
    const long columns = whole_vectors<Vector>(s.out_width), rows = s.out_height + A - 1;
    const long stride = whole_vectors<Vector>(columns + B - 1), size = rows * stride;
    Floats z(s.inputs * size), f((rows + A - 1) * columns);
    for (long image = 0; image < s.images; ++image) {
        std::fill(z.begin(), z.end(), EMPTY);
        for (long j = 0; j < s.inputs; ++j)
            place(x + (image * s.inputs + j) * s.height * s.width, s.height, s.width, &z[j * size], rows, stride, s.top,
                  s.left);
        for (long i = 0; i < s.outputs; ++i) {
            std::fill(f.begin(), f.end(), 0.0f);
            for (long j = 0; j < s.inputs; ++j) {
                Vector taps[A * B];
                for (long t = 0; t < A * B; ++t) taps[t] = all<Vector>(w[(i * s.inputs + j) * A * B + t]);
                add_map<Vector, A, B>(&z[j * size], all<Vector>(bias[i * s.inputs + j]), taps, f.data(), rows, columns,
                                      stride);
            }
            for (long row = 0; row < s.out_height; ++row)
                std::memcpy(out + ((image * s.outputs + i) * s.out_height + row) * s.out_width,
                            &f[(row + A - 1) * columns], 4 * s.out_width);
        }
    }
}

constexpr long SIDE = 8;

// to[k * to_stride + p] = from[p * from_stride + k] for SIDE x SIDE numbers.
inline void transpose(const float* from, long from_stride, float* to, long to_stride) {
#ifdef __AVX__
    __m256 a[SIDE], b[SIDE];
    for (long p = 0; p < SIDE; ++p) a[p] = _mm256_loadu_ps(from + p * from_stride);
    for (long p = 0; p < SIDE; p += 2) {
        b[p] = _mm256_unpacklo_ps(a[p], a[p + 1]);
        b[p + 1] = _mm256_unpackhi_ps(a[p], a[p + 1]);
    }
    for (long p = 0; p < SIDE; p += 4)
        for (long half = 0; half < 2; ++half) {
            a[p + 2 * half] = _mm256_shuffle_ps(b[p + half], b[p + 2 + half], 0x44);
            a[p + 2 * half + 1] = _mm256_shuffle_ps(b[p + half], b[p + 2 + half], 0xee);
        }
    for (long k = 0; k < SIDE / 2; ++k) {
        _mm256_storeu_ps(to + k * to_stride, _mm256_permute2f128_ps(a[k], a[k + 4], 0x20));
        _mm256_storeu_ps(to + (k + 4) * to_stride, _mm256_permute2f128_ps(a[k], a[k + 4], 0x31));
    }
#else
    for (long k = 0; k < SIDE; ++k)
        for (long p = 0; p < SIDE; ++p) to[k * to_stride + p] = from[p * from_stride + k];
#endif
}

// to[k * to_stride + p] = from[p * from_stride + k] for `rows` p and `columns` k.
void transpose(const float* from, long rows, long columns, long from_stride, float* to, long to_stride) {
    const long whole_rows = rows / SIDE * SIDE, whole_columns = columns / SIDE * SIDE;
    for (long p = 0; p < whole_rows; p += SIDE)
        for (long k = 0; k < whole_columns; k += SIDE)
            transpose(from + p * from_stride + k, from_stride, to + k * to_stride + p, to_stride);
    for (long p = 0; p < rows; ++p)
        for (long k = p < whole_rows ? whole_columns : 0; k < columns; ++k) to[k * to_stride + p] = from[p * from_stride + k];
}

// The pixels of an image from `start` on, `count` of them, as `maps` rows of `stride`; `is_rows`: they lie [pixels, maps].
void gather(const float* image, long maps, long pixels, bool is_rows, long start, long count, float* to, long stride) {
    if (is_rows)
        transpose(image + start * maps, count, maps, maps, to, stride);
    else
        for (long j = 0; j < maps; ++j) std::memcpy(to + j * stride, image + j * pixels + start, 4 * count);
}

void scatter(const float* from, long stride, float* image, long maps, long pixels, bool is_rows, long start, long count) {
    if (is_rows)
        transpose(from, maps, count, stride, image + start * maps, maps);
    else
        for (long j = 0; j < maps; ++j) std::memcpy(image + j * pixels + start, from + j * stride, 4 * count);
}

// One kernel position, PART pixels: two outputs at a time share what is read of z, and no sum leaves the registers.
constexpr long POINTS = 4, PART = POINTS * LANES<Wide>;

template <bool IS_FINITE>
void sum_points(const float* z, const float* w, const float* bias, float* f, long inputs, long outputs) {
    constexpr long PAIR = 2;
    for (long i = 0; i < outputs; i += PAIR) {
        const float *b[PAIR], *tap[PAIR];
        for (long o = 0; o < PAIR; ++o) {
            const long row = std::min(i + o, outputs - 1) * inputs;
            b[o] = bias + row, tap[o] = w + row;
        }
        Wide total[PAIR][POINTS] = {};
        for (long j = 0; j < inputs; ++j)
            for (long k = 0; k < POINTS; ++k) {
                const Wide here = load<Wide>(&z[j * PART + k * LANES<Wide>]);
                for (long o = 0; o < PAIR; ++o)
                    total[o][k] += all<Wide>(tap[o][j]) * rectified<IS_FINITE>(here + all<Wide>(b[o][j]));
            }
        for (long o = 0; o < PAIR; ++o)
            for (long k = 0; k < POINTS; ++k) store(&f[(i + o) * PART + k * LANES<Wide>], total[o][k]);
    }
}

void forward_point(const float* x, const float* w, const float* bias, float* out, const Sizes& s) {
    const long pixels = s.out_height * s.out_width;
    const bool is_finite = are_finite(bias, s.inputs * s.outputs);
    Floats z(s.inputs * PART), f((s.outputs + 1) * PART);
    for (long image = 0; image < s.images; ++image)
        for (long start = 0; start < pixels; start += PART) {
            const long count = std::min(PART, pixels - start);
            gather(x + image * s.inputs * pixels, s.inputs, pixels, s.is_rows, start, count, z.data(), PART);
            const bool is_number = is_finite && are_finite(z.data(), s.inputs * PART);
            (is_number ? sum_points<true> : sum_points<false>)(z.data(), w, bias, f.data(), s.inputs, s.outputs);
            scatter(f.data(), PART, out + image * s.outputs * pixels, s.outputs, pixels, s.is_rows, start, count);
        }
}

// What one map of outputs' gradient g [height + A - 1, stride] gives one input map z [height, columns] and its weights:
// adds to to_x, to_taps and to_bias.  Each row of g is read once, for the A rows of z that meet it; that takes 32 registers.
template <typename Vector, long A, long B>
inline void differentiate_map(const float* g, const float* z, float* to_x, Vector bias, const Vector* taps,
                              Vector* to_taps, Vector* to_bias, long height, long columns, long stride) {
    Vector weights[A * B], sums[A * B], bias_sum = *to_bias;
    for (long t = 0; t < A * B; ++t) weights[t] = taps[t], sums[t] = to_taps[t];
    for (long column = 0; column < columns; column += LANES<Vector>) {
        Vector active[A] = {}, back[A] = {};  // of this row of z and the A - 1 before
        for (long row = 0; row < height + A - 1; ++row) {
            for (long a = A - 1; a > 0; --a) active[a] = active[a - 1], back[a] = back[a - 1];
            active[0] = row < height ? relu(load<Vector>(&z[row * columns + column]) + bias) : Vector{};
            back[0] = Vector{};
            Vector shifted[B];
            for (long b = 0; b < B; ++b) shifted[b] = load<Vector>(&g[row * stride + column + B - 1 - b]);
            for (long a = 0; a < A; ++a) {
                const long first = (A - 1 - a) * B;
                Vector added = weights[first] * shifted[0];
                for (long b = 1; b < B; ++b) added += weights[first + b] * shifted[b];
                back[a] += added;
                for (long b = 0; b < B; ++b) sums[first + b] += active[a] * shifted[b];
            }
            if (row < A - 1) continue;
            const Vector passed = where_positive(active[A - 1], back[A - 1]);
            float* to = &to_x[(row - A + 1) * columns + column];
            bias_sum += passed;
            store(to, load<Vector>(to) + passed);
        }
    }
    for (long t = 0; t < A * B; ++t) to_taps[t] = sums[t];
    *to_bias = bias_sum;
}

// The same with 16 registers: each row of z reads what it needs of g, and only the sums for weights stay.
template <long A, long B>
inline void differentiate_narrow_map(const float* g, const float* z, float* to_x, Narrow bias, const Narrow* taps,
                                     Narrow* to_taps, Narrow* to_bias, long height, long columns, long stride) {
    Narrow sums[A * B], bias_sum = *to_bias;
    for (long t = 0; t < A * B; ++t) sums[t] = to_taps[t];
    for (long column = 0; column < columns; column += LANES<Narrow>)
        for (long row = 0; row < height; ++row) {
            const Narrow active = relu(load<Narrow>(&z[row * columns + column]) + bias);
            Narrow back = {};
            for (long a = 0; a < A; ++a) {
                const Narrow *weights = &taps[(A - 1 - a) * B];
                Narrow added = {}, *to = &sums[(A - 1 - a) * B];
                for (long b = 0; b < B; ++b) {
                    const Narrow shifted = in_register(load<Narrow>(&g[(row + a) * stride + column + B - 1 - b]));
                    added = b ? added + weights[b] * shifted : weights[b] * shifted;
                    to[b] += active * shifted;
                }
                back += added;
            }
            const Narrow passed = where_positive(active, back);
            float* to = &to_x[row * columns + column];
            bias_sum += passed;
            store(to, load<Narrow>(to) + passed);
        }
    for (long t = 0; t < A * B; ++t) to_taps[t] = sums[t];
    *to_bias = bias_sum;
}

// Gradients; those of w and bias are added to what stands there, that of x is written.
template <typename Vector, long A, long B>
void backward(const float* x, const float* w, const float* bias, const float* grad, float* grad_x, float* grad_w,
              float* grad_bias, const Sizes& s) {
    const long columns = whole_vectors<Vector>(s.width), map = s.height * columns;
    const long rows = s.height + A - 1, stride = whole_vectors<Vector>(columns + B - 1), size = rows * stride;
    const long group = std::max(1L, GROUP_PIXELS / map);
    Floats z(group * map), to_x(group * map), g(group * s.outputs * size);
    for (long start = 0; start < s.images; start += group) {
        const long images = std::min(group, s.images - start);
        std::fill(g.begin(), g.end(), 0.0f);
        for (long image = 0; image < images; ++image)
            for (long i = 0; i < s.outputs; ++i)
                place(grad + ((start + image) * s.outputs + i) * s.out_height * s.out_width, s.out_height, s.out_width,
                      &g[(i * group + image) * size], rows, stride, A - 1 - s.top, B - 1 - s.left);
        for (long j = 0; j < s.inputs; ++j) {
            std::fill(z.begin(), z.end(), EMPTY);
            std::fill(to_x.begin(), to_x.end(), 0.0f);
            for (long image = 0; image < images; ++image)
                place(x + ((start + image) * s.inputs + j) * s.height * s.width, s.height, s.width, &z[image * map],
                      s.height, columns, 0, 0);
            for (long i = 0; i < s.outputs; ++i) {
                const Vector b = all<Vector>(bias[i * s.inputs + j]);
                Vector taps[A * B], to_taps[A * B] = {}, to_bias{};
                for (long t = 0; t < A * B; ++t) taps[t] = all<Vector>(w[(i * s.inputs + j) * A * B + t]);
                for (long image = 0; image < images; ++image) {
                    const float* of_map = &g[(i * group + image) * size];
                    float *from = &z[image * map], *to = &to_x[image * map];
                    if constexpr (LANES<Vector> == 8)
                        differentiate_narrow_map<A, B>(of_map, from, to, b, taps, to_taps, &to_bias, s.height, columns, stride);
                    else
                        differentiate_map<Vector, A, B>(of_map, from, to, b, taps, to_taps, &to_bias, s.height, columns, stride);
                }
                for (long t = 0; t < A * B; ++t) grad_w[(i * s.inputs + j) * A * B + t] += sum(to_taps[t]);
                grad_bias[i * s.inputs + j] += sum(to_bias);
            }
            for (long image = 0; image < images; ++image)
                for (long row = 0; row < s.height; ++row)
                    std::memcpy(grad_x + (((start + image) * s.inputs + j) * s.height + row) * s.width,
                                &to_x[image * map + row * columns], 4 * s.width);
        }
    }
}

// One kernel position: four outputs at a time share what is read of z and written of its gradient.  Their own gradients
// are read for one input after the other, and stay in the first-level cache.
void backward_point(const float* x, const float* w, const float* bias, const float* grad, float* grad_x, float* grad_w,
                    float* grad_bias, const Sizes& s) {
    using Vector = Wide;
    constexpr long BLOCK = 4, LANES = ::LANES<Vector>;
    const long pixels = s.height * s.width, part = std::min(POINT_PIXELS, whole_vectors<Vector>(pixels));
    const long outputs = (s.outputs + BLOCK - 1) / BLOCK * BLOCK, stride = part + LANES;
    Floats g(outputs * stride), z(s.inputs * stride), to_x(s.inputs * stride);
    Floats taps(s.inputs * outputs), biases(s.inputs * outputs);  // [inputs, outputs]
    Floats sums(2 * s.inputs * outputs);                          // [inputs, blocks, of w and of b, BLOCK]
    transpose(w, s.outputs, s.inputs, s.inputs, taps.data(), outputs);
    transpose(bias, s.outputs, s.inputs, s.inputs, biases.data(), outputs);
    for (long image = 0; image < s.images; ++image)
        for (long start = 0; start < pixels; start += part) {
            const long count = std::min(part, pixels - start), filled = whole_vectors<Vector>(count);
            std::fill(g.begin(), g.end(), 0.0f);
            std::fill(z.begin(), z.end(), EMPTY);
            std::fill(to_x.begin(), to_x.end(), 0.0f);
            gather(grad + image * s.outputs * pixels, s.outputs, pixels, s.is_rows, start, count, g.data(), stride);
            gather(x + image * s.inputs * pixels, s.inputs, pixels, s.is_rows, start, count, z.data(), stride);
            for (long i = 0; i < outputs; i += BLOCK)
                for (long j = 0; j < s.inputs; ++j) {
                    Vector b[BLOCK], tap[BLOCK], to[2 * BLOCK] = {};
                    for (long k = 0; k < BLOCK; ++k) {
                        b[k] = all<Vector>(biases[j * outputs + i + k]);
                        tap[k] = all<Vector>(taps[j * outputs + i + k]);
                    }
                    for (long p = 0; p < filled; p += LANES) {
                        const Vector here = load<Vector>(&z[j * stride + p]);
                        Vector back = load<Vector>(&to_x[j * stride + p]);
                        for (long k = 0; k < BLOCK; ++k)
                            differentiate_point(here + b[k], load<Vector>(&g[(i + k) * stride + p]), tap[k], to[k],
                                                to[BLOCK + k], back);
                        store(&to_x[j * stride + p], back);
                    }
                    add_sums(to, &sums[2 * (j * outputs + i)]);
                }
            scatter(to_x.data(), stride, grad_x + image * s.inputs * pixels, s.inputs, pixels, s.is_rows, start, count);
        }
    for (long i = 0; i < s.outputs; ++i)
        for (long j = 0; j < s.inputs; ++j) {
            const float* of = &sums[2 * (j * outputs + i / BLOCK * BLOCK) + i % BLOCK];
            grad_w[i * s.inputs + j] += of[0];
            grad_bias[i * s.inputs + j] += of[BLOCK] * w[i * s.inputs + j];
        }
}

}  // namespace

#define FOR_KERNEL(call)                             \
    switch (kernel_height * 8 + kernel_width) {      \
        case 8 * 1 + 2: call(1, 2); return 0;        \
        case 8 * 1 + 3: call(1, 3); return 0;        \
        case 8 * 2 + 1: call(2, 1); return 0;        \
        case 8 * 2 + 2: call(2, 2); return 0;        \
        case 8 * 3 + 1: call(3, 1); return 0;        \
        case 8 * 3 + 3: call(3, 3); return 0;        \
        default: return 1;                           \
    }

// sizes: images, inputs, outputs, height, width, top, left, out_height, out_width, is_rows: whether x, out and their
// gradients lie [images, pixels, maps] instead of [images, maps, pixels], for one kernel position only.
// Returns 1 for an unknown kernel.
extern "C" int dac_forward(const float* x, const float* w, const float* bias, float* out, const long* sizes,
                           long kernel_height, long kernel_width) {
    Sizes s;
    std::memcpy(&s, sizes, sizeof s);
    const bool is_point = kernel_height * kernel_width == 1 && s.top == 0 && s.left == 0 && s.out_height == s.height &&
                          s.out_width == s.width;
    if (is_point) return forward_point(x, w, bias, out, s), 0;
#define CALL(A, B) (s.out_width > LANES<Narrow> ? forward<Wide, A, B> : forward<Narrow, A, B>)(x, w, bias, out, s)
    if (kernel_height * kernel_width == 1) return CALL(1, 1), 0;
    FOR_KERNEL(CALL)
#undef CALL
}

extern "C" int dac_backward(const float* x, const float* w, const float* bias, const float* grad, float* grad_x,
                            float* grad_w, float* grad_bias, const long* sizes, long kernel_height, long kernel_width) {
    Sizes s;
    std::memcpy(&s, sizes, sizeof s);
    const bool is_point = kernel_height * kernel_width == 1 && s.top == 0 && s.left == 0 && s.out_height == s.height &&
                          s.out_width == s.width;
    if (is_point) return backward_point(x, w, bias, grad, grad_x, grad_w, grad_bias, s), 0;
#define CALL(A, B)                                                             \
    (s.width > LANES<Narrow> ? backward<Wide, A, B> : backward<Narrow, A, B>)( \
        x, w, bias, grad, grad_x, grad_w, grad_bias, s)
    if (kernel_height * kernel_width == 1) return CALL(1, 1), 0;
    FOR_KERNEL(CALL)
#undef CALL
}

// Dense layers of networks with weights of their own, those from `part[0]` to before `part[1]`: x [networks, inputs,
// samples], w and bias [networks, outputs, inputs], out [networks, outputs, samples].  sizes: samples, inputs, outputs.
extern "C" void dac_stack_forward(const float* x, const float* w, const float* bias, float* out, const long* part,
                                  const long* sizes) {
    const long samples = sizes[0], inputs = sizes[1], outputs = sizes[2], weights = inputs * outputs;
    const Sizes s = {1, inputs, outputs, 1, samples, 0, 0, 1, samples, false};
    for (long m = part[0]; m < part[1]; ++m)
        forward_point(x + m * samples * inputs, w + m * weights, bias + m * weights, out + m * samples * outputs, s);
}

extern "C" void dac_stack_backward(const float* x, const float* w, const float* bias, const float* grad, float* grad_x,
                                   float* grad_w, float* grad_bias, const long* part, const long* sizes) {
    const long samples = sizes[0], inputs = sizes[1], outputs = sizes[2], weights = inputs * outputs;
    const Sizes s = {1, inputs, outputs, 1, samples, 0, 0, 1, samples, false};
    for (long m = part[0]; m < part[1]; ++m)
        backward_point(x + m * samples * inputs, w + m * weights, bias + m * weights, grad + m * samples * outputs,
                       grad_x + m * samples * inputs, grad_w + m * weights, grad_bias + m * weights, s);
}
