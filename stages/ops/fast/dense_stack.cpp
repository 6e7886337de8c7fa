// One training step of networks of dense layers, BatchNorm and ReLU, and their predictions, in single precision, one
// network after the other, for one thread.  Of a layer with weights W, over a batch of B samples:
//
//     z = W a,   μ = mean z,   σ² = mean (z - μ)²,   n = (z - μ) / sqrt(σ² + ε),   a' = max(0, γ n + β)
//     g = ∂E/∂a' where a' > 0,   ∂E/∂γ = Σ g n,   ∂E/∂β = Σ g
//     ∂E/∂z = γ / sqrt(σ² + ε) (g - mean g - n mean (g n)),   ∂E/∂W = Σ ∂E/∂z aᵀ,   ∂E/∂a = Wᵀ ∂E/∂z
//
// Maps lie as [strips, units, STRIP]: what a strip of samples needs of a layer stays in the first-level cache.  Of each
// layer n is kept, and a' made again from it, one strip at a time.  Behind the last sample a is 0.  A NaN stays a NaN.

#include "cpp.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>
#ifdef __AVX__
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr long LANES = 16, COLUMNS = 4, DOT_ROWS = 5, DOT_COLUMNS = 5;
#elif defined(__AVX__)
constexpr long LANES = 8, COLUMNS = 2, DOT_ROWS = 4, DOT_COLUMNS = 3;
#else
constexpr long LANES = 4, COLUMNS = 2, DOT_ROWS = 4, DOT_COLUMNS = 3;
#endif
typedef float Vector __attribute__((vector_size(4 * LANES)));
typedef int Integers __attribute__((vector_size(4 * LANES)));

constexpr long STRIP = 64, ROWS = 6;
constexpr long PART = 8;  // strips whose products are added before sums over lanes

inline Vector load(const float* from) {
    Vector value;
    std::memcpy(&value, from, sizeof value);
    return value;
}
inline void store(float* to, Vector value) { std::memcpy(to, &value, sizeof value); }
inline Vector all(float value) { return value - Vector{}; }
inline Vector relu(Vector t) { return t < 0.0f ? Vector{} : t; }
inline Vector where_active(Vector active, Vector value) { return active <= 0.0f ? Vector{} : value; }

inline float sum(Vector value) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps(value);
#elif defined(__AVX__)
    const __m128 half = _mm256_castps256_ps128(value) + _mm256_extractf128_ps(value, 1);
    return half[0] + half[1] + (half[2] + half[3]);
#else
    return value[0] + value[1] + (value[2] + value[3]);
#endif
}

// to [R, STRIP] = w [R, inputs] · x [inputs, STRIP]
template <long R>
void multiply_rows(const float* w, long inputs, const float* x, float* to) {
    for (long column = 0; column < STRIP; column += COLUMNS * LANES) {
        Vector total[R][COLUMNS] = {};
        for (long k = 0; k < inputs; ++k) {
            Vector here[COLUMNS];
            for (long c = 0; c < COLUMNS; ++c) here[c] = load(x + k * STRIP + column + c * LANES);
            for (long r = 0; r < R; ++r) {
                const Vector tap = all(w[r * inputs + k]);
                for (long c = 0; c < COLUMNS; ++c) total[r][c] += tap * here[c];
            }
        }
        for (long r = 0; r < R; ++r)
            for (long c = 0; c < COLUMNS; ++c) store(to + r * STRIP + column + c * LANES, total[r][c]);
    }
}

// `work(size, first)` with `size`, 1 to MOST, as a constant of the compiler.
template <long MOST, typename Work>
void with_size(long size, long first, const Work& work) {
    if (size == MOST)
        work(std::integral_constant<long, MOST>{}, first);
    else if constexpr (MOST > 1)
        with_size<MOST - 1>(size, first, work);
}

// The same for each of the fewest groups, of even sizes, that `count` things make.
template <long MOST, typename Work>
void in_groups(long count, const Work& work) {
    const long groups = (count + MOST - 1) / MOST;
    for (long group = 0; group < groups; ++group) {
        const long first = count * group / groups;
        with_size<MOST>(count * (group + 1) / groups - first, first, work);
    }
}

// to [rows, STRIP] = w [rows, inputs] · x [inputs, STRIP]
void multiply(const float* w, long rows, long inputs, const float* x, float* to) {
    in_groups<ROWS>(rows, [&](auto size, long first) {
        multiply_rows<decltype(size)::value>(w + first * inputs, inputs, x, to + first * STRIP);
    });
}

// to[r, c] += Σ a[r] b[c] over strips; the strips of a and b have a_units and b_units rows.
template <long R, long C>
void add_dots(const float* a, long a_units, const float* b, long b_units, long strips, float* to, long stride) {
    Vector total[R][C] = {};
    for (long strip = 0; strip < strips; ++strip, a += a_units * STRIP, b += b_units * STRIP)
        for (long p = 0; p < STRIP; p += LANES) {
            Vector there[C];
            for (long c = 0; c < C; ++c) there[c] = load(b + c * STRIP + p);
            for (long r = 0; r < R; ++r) {
                const Vector here = load(a + r * STRIP + p);
                for (long c = 0; c < C; ++c) total[r][c] += here * there[c];
            }
        }
    for (long r = 0; r < R; ++r)
        for (long c = 0; c < C; ++c) to[r * stride + c] += sum(total[r][c]);
}

// to [units, inputs] += a bᵀ
void add_outer(const float* a, long units, const float* b, long inputs, long strips, float* to) {
    in_groups<DOT_ROWS>(units, [&](auto rows, long first) {
        const float* here = a + first * STRIP;
        float* there = to + first * inputs;
        in_groups<DOT_COLUMNS>(inputs, [&](auto columns, long column) {
            constexpr long R = decltype(rows)::value, C = decltype(columns)::value;
            add_dots<R, C>(here, units, b + column * STRIP, inputs, strips, there + column, inputs);
        });
    });
}

struct Batch {
    long samples, strips;
    int kept[2][STRIP];  // -1 for samples, 0 behind the last: of whole strips, and of the last one

    explicit Batch(long count) : samples(count), strips((count + STRIP - 1) / STRIP) {
        for (long p = 0; p < STRIP; ++p) {
            kept[0][p] = -1;
            kept[1][p] = (strips - 1) * STRIP + p < samples ? -1 : 0;
        }
    }
    // 0 behind the last sample, whatever stands there
    Vector only_samples(long strip, long p, Vector value) const {
        Integers mask;
        std::memcpy(&mask, &kept[strip + 1 == strips][p], sizeof mask);
        return (Vector)((Integers)value & mask);
    }
    long in_strip(long strip) const { return std::min(STRIP, samples - strip * STRIP); }
};

// Sums over samples, one of each unit; lanes are added in the end.
struct Sums {
    Floats of;

    explicit Sums(long units) : of(units * LANES) {}
    void clear() { std::fill(of.begin(), of.end(), 0.0f); }
    void add(long unit, Vector value) { store(&of[unit * LANES], load(&of[unit * LANES]) + value); }
    float total(long unit) const { return sum(load(&of[unit * LANES])); }
};

struct Layer {
    long inputs, units;
    const float *weight, *scale, *shift;        // W [units, inputs], γ and β [units]
    float *mean, *variance;                     // [units]
    float *to_weight, *to_scale, *to_shift;     // gradients
    std::vector<float> inverse;                 // 1 / sqrt(σ² + ε)
    Floats maps;                                // [strips, units, STRIP]: z, then n

    float* map(long strip, long unit = 0) { return &maps[(strip * units + unit) * STRIP]; }
    void invert(float epsilon) {
        for (long u = 0; u < units; ++u) inverse[u] = 1 / std::sqrt(variance[u] + epsilon);
    }
};

struct Head {
    const float *weight, *bias;  // [units], [1]
    float *to_weight, *to_bias;
};

class Network {
public:
    // sizes: samples, features, layers, units of each
    Network(const long* sizes, float epsilon)
        : batch(sizes[0]), features(sizes[1]),
          widest(std::max(features, *std::max_element(sizes + 3, sizes + 3 + sizes[2]))), epsilon(epsilon),
          layers(sizes[2]), active(widest * PART * STRIP), turned(widest * widest), sums(widest), products(widest),
          to_head(widest) {
        for (size_t l = 0; l < layers.size(); ++l) {
            layers[l].inputs = l ? sizes[2 + l] : features;
            layers[l].units = sizes[3 + l];
            layers[l].inverse.resize(layers[l].units);
        }
    }

    // The m-th network's tensors.  addresses: weight, scale, shift of each layer, weight and bias of the head; mean and
    // variance of each layer; if it learns, gradients in the order of the parameters.
    void bind(const long* addresses, long m, bool learns) {
        auto next = [&](long count) { return reinterpret_cast<float*>(*addresses++) + m * count; };
        const long outer = layers.back().units;
        for (Layer& of : layers)
            of.weight = next(of.units * of.inputs), of.scale = next(of.units), of.shift = next(of.units);
        head.weight = next(outer), head.bias = next(1);
        for (Layer& of : layers) of.mean = next(of.units), of.variance = next(of.units);
        if (!learns) return;
        for (Layer& of : layers)
            of.to_weight = next(of.units * of.inputs), of.to_scale = next(of.units), of.to_shift = next(of.units);
        head.to_weight = next(outer), head.to_bias = next(1);
    }

    // The loss; writes statistics and gradients.  x [samples, features], targets [samples].
    float step(const float* x, const float* targets) {
        first.resize(batch.strips * features * STRIP);
        for (long strip = 0; strip < batch.strips; ++strip) gather(x, strip, &first[strip * features * STRIP]);
        for (Layer& layer : layers) layer.maps.resize(batch.strips * layer.units * STRIP);
        grads.resize(batch.strips * widest * STRIP), others.resize(grads.size());
        for (size_t l = 0; l < layers.size(); ++l) forward(l);
        const float loss = differentiate_head(targets);
        for (size_t l = layers.size(); l-- > 0;) backward(l);
        return loss;
    }

    // out [samples] of x [samples, features], by the statistics that are given.
    void predict(const float* x, float* out) {
        Floats z(widest * STRIP);
        float predicted[STRIP];
        for (Layer& layer : layers) layer.invert(epsilon);
        for (long strip = 0; strip < batch.strips; ++strip) {
            gather(x, strip, active.data());
            for (const Layer& layer : layers) {
                multiply(layer.weight, layer.units, layer.inputs, active.data(), z.data());
                normalise(layer, z.data());
                activate(layer, strip, z.data(), active.data());
            }
            multiply(head.weight, 1, layers.back().units, active.data(), predicted);
            for (long p = 0; p < batch.in_strip(strip); ++p) out[strip * STRIP + p] = predicted[p] + head.bias[0];
        }
    }

private:
    Batch batch;
    long features, widest;
    float epsilon;
    std::vector<Layer> layers;
    Head head;
    Floats first;          // features, [strips, features, STRIP]
    Floats active;         // a, of up to PART strips
    Floats grads, others;  // g of this layer and of the one before
    Floats turned;         // Wᵀ
    Sums sums, products, to_head;

    void gather(const float* x, long strip, float* to) const {
        const float* from = x + strip * STRIP * features;
        std::fill(to, to + features * STRIP, 0.0f);
        for (long j = 0; j < features; ++j)
            for (long p = 0; p < batch.in_strip(strip); ++p) to[j * STRIP + p] = from[p * features + j];
    }

    // n from z, both [units, STRIP]
    static void normalise(const Layer& layer, float* z) {
        for (long u = 0; u < layer.units; ++u, z += STRIP) {
            const Vector mean = all(layer.mean[u]), inverse = all(layer.inverse[u]);
            for (long p = 0; p < STRIP; p += LANES) store(z + p, (load(z + p) - mean) * inverse);
        }
    }

    // a' from n, both [units, STRIP]
    void activate(const Layer& layer, long strip, const float* n, float* to) const {
        for (long u = 0; u < layer.units; ++u, n += STRIP, to += STRIP) {
            const Vector scale = all(layer.scale[u]), shift = all(layer.shift[u]);
            for (long p = 0; p < STRIP; p += LANES)
                store(to + p, batch.only_samples(strip, p, relu(scale * load(n + p) + shift)));
        }
    }

    // z of a layer, its statistics, and n of the layer before.
    void forward(size_t l) {
        Layer& layer = layers[l];
        sums.clear();
        for (long strip = 0; strip < batch.strips; ++strip) {
            const float* a = &first[strip * layer.inputs * STRIP];
            if (l > 0) a = finish(layers[l - 1], strip);
            float* z = layer.map(strip);
            multiply(layer.weight, layer.units, layer.inputs, a, z);
            for (long u = 0; u < layer.units; ++u) {
                Vector total = {};
                for (long p = 0; p < STRIP; p += LANES) total += load(z + u * STRIP + p);
                sums.add(u, total);
            }
        }
        for (long u = 0; u < layer.units; ++u) layer.mean[u] = sums.total(u) / batch.samples;
        sums.clear();
        for (long strip = 0; strip < batch.strips; ++strip)
            for (long u = 0; u < layer.units; ++u) {
                const Vector mean = all(layer.mean[u]);
                const float* z = layer.map(strip, u);
                Vector total = {};
                for (long p = 0; p < STRIP; p += LANES) {
                    const Vector off = batch.only_samples(strip, p, load(z + p) - mean);
                    total += off * off;
                }
                sums.add(u, total);
            }
        for (long u = 0; u < layer.units; ++u) layer.variance[u] = sums.total(u) / batch.samples;
        layer.invert(epsilon);
    }

    // n of a strip in place of z; returns a'.
    const float* finish(Layer& layer, long strip) {
        normalise(layer, layer.map(strip));
        activate(layer, strip, layer.map(strip), active.data());
        return active.data();
    }

    // What the last layer needs: g and its sums; returns the loss.
    float differentiate_head(const float* targets) {
        Layer& layer = layers.back();
        sums.clear(), products.clear(), to_head.clear();
        Vector loss = {}, to_bias = {};
        for (long strip = 0; strip < batch.strips; ++strip) {
            const float* a = finish(layer, strip);
            float wanted[STRIP] = {}, out[STRIP];
            std::memcpy(wanted, targets + strip * STRIP, 4 * batch.in_strip(strip));
            multiply(head.weight, 1, layer.units, a, out);
            for (long p = 0; p < STRIP; p += LANES) {
                const Vector off = batch.only_samples(strip, p, load(out + p) + head.bias[0] - load(wanted + p));
                loss += off * off;
                to_bias += off * (2.0f / batch.samples);
                store(out + p, off * (2.0f / batch.samples));
            }
            float* g = &grads[strip * layer.units * STRIP];
            for (long u = 0; u < layer.units; ++u) {
                Vector total = {};
                for (long p = 0; p < STRIP; p += LANES) {
                    total += load(out + p) * load(a + u * STRIP + p);
                    store(g + u * STRIP + p, head.weight[u] * load(out + p));
                }
                to_head.add(u, total);
            }
            pass(layer, strip, a, g);
        }
        for (long u = 0; u < layer.units; ++u) head.to_weight[u] = to_head.total(u);
        head.to_bias[0] = sum(to_bias);
        return sum(loss) / batch.samples;
    }

    // g from ∂E/∂a' [units, STRIP], in its place, and what it adds to the sums Σ g and Σ g n.
    void pass(Layer& layer, long strip, const float* active, float* g) {
        for (long u = 0; u < layer.units; ++u) {
            const float* n = layer.map(strip, u);
            Vector total = {}, product = {};
            for (long p = 0; p < STRIP; p += LANES) {
                const Vector passed = where_active(load(active + u * STRIP + p), load(g + u * STRIP + p));
                total += passed, product += passed * load(n + p);
                store(g + u * STRIP + p, passed);
            }
            sums.add(u, total), products.add(u, product);
        }
    }

    // From g and its sums: this layer's gradients, and g and its sums of the layer before.
    void backward(size_t l) {
        Layer& layer = layers[l];
        const long units = layer.units, inputs = layer.inputs;
        for (long u = 0; u < units; ++u) layer.to_shift[u] = sums.total(u), layer.to_scale[u] = products.total(u);
        sums.clear(), products.clear();
        std::fill(layer.to_weight, layer.to_weight + units * inputs, 0.0f);
        for (long u = 0; u < units; ++u)
            for (long j = 0; j < inputs; ++j) turned[j * units + u] = layer.weight[u * inputs + j];
        for (long start = 0; start < batch.strips; start += PART) {
            const long end = std::min(batch.strips, start + PART);
            for (long strip = start; strip < end; ++strip) {
                if (l > 0)
                    activate(layers[l - 1], strip, layers[l - 1].map(strip), &active[(strip - start) * inputs * STRIP]);
                differentiate_norm(layer, strip, &grads[strip * units * STRIP]);
            }
            const float* a = l > 0 ? active.data() : &first[start * inputs * STRIP];
            add_outer(&grads[start * units * STRIP], units, a, inputs, end - start, layer.to_weight);
            if (l == 0) continue;
            for (long strip = start; strip < end; ++strip) {
                float* g = &others[strip * inputs * STRIP];
                multiply(turned.data(), inputs, units, &grads[strip * units * STRIP], g);
                pass(layers[l - 1], strip, &active[(strip - start) * inputs * STRIP], g);
            }
        }
        std::swap(grads, others);
    }

    // ∂E/∂z from g, in its place; what comes behind the last sample meets a = 0.
    void differentiate_norm(Layer& layer, long strip, float* g) const {
        for (long u = 0; u < layer.units; ++u, g += STRIP) {
            const Vector mean = all(layer.to_shift[u] / batch.samples), slope = all(layer.to_scale[u] / batch.samples);
            const Vector scale = all(layer.scale[u] * layer.inverse[u]);
            const float* n = layer.map(strip, u);
            for (long p = 0; p < STRIP; p += LANES) store(g + p, scale * (load(g + p) - mean - load(n + p) * slope));
        }
    }
};

}  // namespace

// Networks from `part[0]` to before `part[1]`: features [networks, samples, features], targets [networks, samples],
// losses [networks].  Every other tensor has networks first, too; `Network` says what `sizes` and `addresses` are.
extern "C" void dense_stack_step(const float* features, const float* targets, float* losses, const long* addresses,
                                 const long* part, const long* sizes, float epsilon) {
    Network network(sizes, epsilon);
    for (long m = part[0]; m < part[1]; ++m) {
        network.bind(addresses, m, true);
        losses[m] = network.step(features + m * sizes[0] * sizes[1], targets + m * sizes[0]);
    }
}

extern "C" void dense_stack_predict(const float* features, float* out, const long* addresses, const long* part,
                                    const long* sizes, float epsilon) {
    Network network(sizes, epsilon);
    for (long m = part[0]; m < part[1]; ++m) {
        network.bind(addresses, m, false);
        network.predict(features + m * sizes[0] * sizes[1], out + m * sizes[0]);
    }
}
