// The sums of dac_recompute.py in single precision, one image after the other, for one thread.
//
//     f_i(h)  = Σ_j Σ_t w_tij φ(b_ij + z_j(h + t - before))
//     ∂E/∂w   = Σ_q φ(b_ij + z_j(q)) g_i(q - t + before)
//     a_ij(q) = φ'(b_ij + z_j(q)) Σ_t w_tij g_i(q - t + before),   ∂E/∂b = Σ_q a_ij(q),   ∂E/∂z_j = Σ_i a_ij
//
// An image's maps are copied once into rows of whole vectors: z with EMPTY around it, which φ takes to 0, and g with 0.
// One activated map lives at a time and stays in the first-level cache.  A NaN stays a NaN.

#include <algorithm>
#include <cstring>
#include <vector>
#ifdef __AVX__
#include <immintrin.h>
#endif

namespace {

constexpr long LANES = 8;
constexpr float EMPTY = -1e30f;
constexpr long GROUP_PIXELS = 1024;  // of several images at a time, so that sums over lanes are rare

typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef float Unaligned __attribute__((vector_size(4 * LANES), aligned(4)));

inline Vector load(const float* from) { return *reinterpret_cast<const Unaligned*>(from); }
inline void store(float* to, Vector value) { *reinterpret_cast<Unaligned*>(to) = value; }
#ifdef __AVX__
inline Vector relu(Vector t) { return _mm256_max_ps(Vector{}, t); }  // of 0 and NaN it takes the second
#else
inline Vector relu(Vector t) { return t < 0.0f ? Vector{} : t; }
#endif
inline Vector where_positive(Vector t, Vector value) { return t > 0.0f ? value : Vector{}; }
inline long whole_vectors(long width) { return (width + LANES - 1) / LANES * LANES; }

inline float sum(Vector value) {
    float total = 0;
    for (long lane = 0; lane < LANES; ++lane) total += value[lane];
    return total;
}

struct Sizes {
    long images, inputs, outputs, height, width, top, left, out_height, out_width;
};

// Copies `map` [height, width] so that its first pixel comes to (down, right); what lies outside `to` is cut off.
void place(const float* map, long height, long width, float* to, long rows, long stride, long down, long right) {
    const long first = std::max(0L, -right), last = std::min(width, stride - right);
    for (long row = std::max(0L, -down); row < std::min(height, rows - down); ++row)
        if (first < last)
            std::memcpy(to + (row + down) * stride + first + right, map + row * width + first, 4 * (last - first));
}

template <long A, long B>
void forward(const float* x, const float* w, const float* bias, float* out, const Sizes& s) {
    const long columns = whole_vectors(s.out_width), rows = s.out_height + A - 1;
    const long stride = columns + B - 1, size = whole_vectors(rows * stride);
    std::vector<float> z(s.inputs * size), active(size), f(s.out_height * columns);
    for (long image = 0; image < s.images; ++image) {
        std::fill(z.begin(), z.end(), EMPTY);
        for (long j = 0; j < s.inputs; ++j)
            place(x + (image * s.inputs + j) * s.height * s.width, s.height, s.width, &z[j * size], rows, stride, s.top,
                  s.left);
        for (long i = 0; i < s.outputs; ++i) {
            std::fill(f.begin(), f.end(), 0.0f);
            for (long j = 0; j < s.inputs; ++j) {
                const Vector b = Vector{} + bias[i * s.inputs + j];
                for (long p = 0; p < size; p += LANES) store(&active[p], relu(load(&z[j * size + p]) + b));
                Vector taps[A * B];
                for (long t = 0; t < A * B; ++t) taps[t] = Vector{} + w[(i * s.inputs + j) * A * B + t];
                for (long row = 0; row < s.out_height; ++row)
                    for (long column = 0; column < columns; column += LANES) {
                        Vector total = load(&f[row * columns + column]);
                        for (long a = 0; a < A; ++a)
                            for (long b_ = 0; b_ < B; ++b_)
                                total += taps[a * B + b_] * load(&active[(row + a) * stride + column + b_]);
                        store(&f[row * columns + column], total);
                    }
            }
            for (long row = 0; row < s.out_height; ++row)
                std::memcpy(out + ((image * s.outputs + i) * s.out_height + row) * s.out_width, &f[row * columns],
                            4 * s.out_width);
        }
    }
}

// One kernel position: nothing to keep but the sums of four vectors of pixels.
void forward_point(const float* x, const float* w, const float* bias, float* out, const Sizes& s) {
    constexpr long BLOCK = 4;
    const long pixels = s.out_height * s.out_width, size = (pixels + BLOCK * LANES - 1) / (BLOCK * LANES) * BLOCK * LANES;
    std::vector<float> z(s.inputs * BLOCK * LANES), f(BLOCK * LANES);
    for (long image = 0; image < s.images; ++image)
        for (long start = 0; start < size; start += BLOCK * LANES) {
            const long count = std::min(BLOCK * LANES, pixels - start);
            for (long j = 0; j < s.inputs; ++j)
                std::memcpy(&z[j * BLOCK * LANES], x + (image * s.inputs + j) * pixels + start, 4 * count);
            for (long i = 0; i < s.outputs; ++i) {
                Vector total[BLOCK] = {};
                for (long j = 0; j < s.inputs; ++j) {
                    const Vector b = Vector{} + bias[i * s.inputs + j], tap = Vector{} + w[i * s.inputs + j];
                    for (long k = 0; k < BLOCK; ++k)
                        total[k] += tap * relu(load(&z[(j * BLOCK + k) * LANES]) + b);
                }
                for (long k = 0; k < BLOCK; ++k) store(&f[k * LANES], total[k]);
                std::memcpy(out + (image * s.outputs + i) * pixels + start, f.data(), 4 * count);
            }
        }
}

// Gradients; those of w and bias are added to what stands there, that of x is written.
template <long A, long B>
void backward(const float* x, const float* w, const float* bias, const float* grad, float* grad_x, float* grad_w,
              float* grad_bias, const Sizes& s) {
    const long columns = whole_vectors(s.width), map = s.height * columns;
    const long rows = s.height + A - 1, stride = columns + B - 1, size = rows * stride;
    const long group = std::max(1L, GROUP_PIXELS / map);
    std::vector<float> z(group * map), to_x(group * map), g(group * s.outputs * size);
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
                const Vector b = Vector{} + bias[i * s.inputs + j];
                Vector taps[A * B], to_taps[A * B] = {}, to_bias{};
                for (long t = 0; t < A * B; ++t) taps[t] = Vector{} + w[(i * s.inputs + j) * A * B + t];
                for (long image = 0; image < images; ++image) {
                    const float* around = &g[(i * group + image) * size];
                    for (long row = 0; row < s.height; ++row)
                        for (long column = 0; column < columns; column += LANES) {
                            const long p = image * map + row * columns + column;
                            const Vector t = load(&z[p]) + b, active = relu(t);
                            Vector back{};
                            for (long a = 0; a < A; ++a)
                                for (long b_ = 0; b_ < B; ++b_) {
                                    const Vector shifted =
                                        load(around + (row + A - 1 - a) * stride + column + B - 1 - b_);
                                    back += taps[a * B + b_] * shifted;
                                    to_taps[a * B + b_] += active * shifted;
                                }
                            back = where_positive(t, back);
                            to_bias += back;
                            store(&to_x[p], load(&to_x[p]) + back);
                        }
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

// One kernel position: four outputs at a time share what is read of z and written of its gradient.
void backward_point(const float* x, const float* w, const float* bias, const float* grad, float* grad_x, float* grad_w,
                    float* grad_bias, const Sizes& s) {
    constexpr long BLOCK = 4;
    const long pixels = s.height * s.width, part = std::min(GROUP_PIXELS, whole_vectors(pixels));
    const long outputs = (s.outputs + BLOCK - 1) / BLOCK * BLOCK;
    std::vector<float> g(outputs * part), z(part), to_x(part);
    for (long image = 0; image < s.images; ++image)
        for (long start = 0; start < pixels; start += part) {
            const long count = std::min(part, pixels - start), filled = whole_vectors(count);
            std::fill(g.begin(), g.end(), 0.0f);
            for (long i = 0; i < s.outputs; ++i)
                std::memcpy(&g[i * part], grad + (image * s.outputs + i) * pixels + start, 4 * count);
            for (long j = 0; j < s.inputs; ++j) {
                std::fill(z.begin(), z.end(), EMPTY);
                std::fill(to_x.begin(), to_x.end(), 0.0f);
                std::memcpy(z.data(), x + (image * s.inputs + j) * pixels + start, 4 * count);
                for (long first = 0; first < s.outputs; first += BLOCK) {
                    Vector b[BLOCK] = {}, tap[BLOCK] = {}, to_tap[BLOCK] = {}, to_bias[BLOCK] = {};
                    const long block = std::min(BLOCK, s.outputs - first);
                    for (long k = 0; k < block; ++k) {
                        b[k] += bias[(first + k) * s.inputs + j];
                        tap[k] += w[(first + k) * s.inputs + j];
                    }
                    for (long p = 0; p < filled; p += LANES) {
                        const Vector here = load(&z[p]);
                        Vector back = load(&to_x[p]);
                        for (long k = 0; k < BLOCK; ++k) {
                            const Vector t = here + b[k], passed = where_positive(t, load(&g[(first + k) * part + p]));
                            to_tap[k] += passed * t;
                            to_bias[k] += passed;
                            back += tap[k] * passed;
                        }
                        store(&to_x[p], back);
                    }
                    for (long k = 0; k < block; ++k) {
                        grad_w[(first + k) * s.inputs + j] += sum(to_tap[k]);
                        grad_bias[(first + k) * s.inputs + j] += sum(to_bias[k]) * tap[k][0];
                    }
                }
                std::memcpy(grad_x + (image * s.inputs + j) * pixels + start, to_x.data(), 4 * count);
            }
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

// sizes: images, inputs, outputs, height, width, top, left, out_height, out_width.  Returns 1 for an unknown kernel.
extern "C" int dac_forward(const float* x, const float* w, const float* bias, float* out, const long* sizes,
                           long kernel_height, long kernel_width) {
    Sizes s;
    std::memcpy(&s, sizes, sizeof s);
    const bool is_point = kernel_height * kernel_width == 1 && s.top == 0 && s.left == 0 && s.out_height == s.height &&
                          s.out_width == s.width;
    if (is_point) return forward_point(x, w, bias, out, s), 0;
#define CALL(A, B) forward<A, B>(x, w, bias, out, s)
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
#define CALL(A, B) backward<A, B>(x, w, bias, grad, grad_x, grad_w, grad_bias, s)
    if (kernel_height * kernel_width == 1) return CALL(1, 1), 0;
    FOR_KERNEL(CALL)
#undef CALL
}
