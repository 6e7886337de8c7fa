// Attention of Yat and HyperBF, in single precision or of bfloat16 with all inside in single: the softmax of the scores
//
//     Yat       s dot² / (d + ε),  d = max(row + column − 2 dot, 0)
//     HyperBF   s (2 dot − column)
//
// over the keys, of which query i sees the first i + 1 where it is causal, times values; `row` and `column` are the
// squared norms of queries and keys.  All products are made here, too.  A NaN stays a NaN.

#include "cpp.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <type_traits>

namespace {

#if defined(__AVX512F__)
constexpr long LANES = 16;
#elif defined(__AVX__)
constexpr long LANES = 8;
#else
constexpr long LANES = 4;
#endif
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
    const float rounding = 12582912.0f;  // 1.5 * 2^23: what is added to it is rounded to a whole number
    const Vector shifted = inside * 1.44269504f + rounding;
    const Vector n = shifted - rounding;
    const Vector r = (inside - n * 0.693359375f) + n * 2.12194440e-4f;
    Vector p = Vector{} + 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    // n is the lower part of `shifted`; the result is a normal number, so it goes into the exponent as it is.
    const Vector result = (Vector)((Integers)p + ((Integers)shifted << 23));
    const Vector large = x <= high ? result : x + std::numeric_limits<float>::infinity();  // a NaN stays one
    return x < low ? Vector{} : large;
}

struct YatGradient {
    Vector dot, distance, scale, epsilon;
};

// Gradients of s dot² / (d + ε), where `back` is that of the result.
inline YatGradient yat_gradient(Vector dot, Vector norms, Vector back, float scale, float epsilon) {
    const Vector raw = norms - 2.0f * dot, d = raw < 0.0f ? Vector{} : raw;
    const Vector ratio = dot / (d + epsilon), part = back * ratio;
    YatGradient g;
    g.scale = part * dot;
    g.epsilon = -scale * part * ratio;
    g.distance = raw > 0.0f ? g.epsilon : Vector{};
    g.dot = 2.0f * scale * part - 2.0f * g.distance;
    return g;
}

constexpr long MOST_ROWS = 64;
constexpr long PEAK = 2;  // numbers that are kept of a query for the way back, unless its weights are

inline long padded(long count) { return (count + LANES - 1) / LANES * LANES; }

// Queries of a block: its scores stay in the cache next to the core.
inline long rows_at_once(long queries, long wide) { return std::min({queries, MOST_ROWS, std::max(8L, 16384 / wide)}); }

struct Sizes {
    long heads, queries, keys, width, depth, keep_row;
};

class Buffer {
   public:
    explicit Buffer(long count) : count(count), data(static_cast<float*>(std::aligned_alloc(64, (4 * count + 63) / 64 * 64))) {
        if (!data) std::abort();
        clear();
    }
    Buffer(const Buffer&) = delete;
    ~Buffer() { std::free(data); }
    operator float*() const { return data; }
    void clear() { std::memset(data, 0, 4 * count); }

   private:
    long count;
    float* data;
};

template <typename Number>
struct Rows {
    Number* data;
    long stride;

    Rows(Number* data, long stride) : data(data), stride(stride) {}
    Rows(Number* tensor, const long* strides, long map, long heads)
        : data(tensor + map / heads * strides[0] + map % heads * strides[1]), stride(strides[2]) {}
    Number* operator[](long row) const { return data + row * stride; }
    Rows from(long row) const { return {data + row * stride, stride}; }
};

// The rows of a map in single precision: where they lie, or bfloat16 widened into `own`.
template <typename Number>
Rows<const float> floats(const Rows<const Number>& rows, long count, long width, Buffer& own) {
    if constexpr (std::is_same_v<Number, float>) {
        return rows;
    } else {
        for (long s = 0; s < count; ++s)
            for (long e = 0; e < width; ++e) own[s * width + e] = widened(rows[s][e]);
        return {own, width};
    }
}

// Numbers that `floats` needs of its own.
template <typename Number>
constexpr long widened_size(long count) { return std::is_same_v<Number, float> ? 0 : count; }

#if defined(__clang__) || __GNUC__ >= 12
typedef float Eight __attribute__((vector_size(32)));
typedef float EightUnaligned __attribute__((vector_size(32), aligned(4)));

// Eight rows of eight numbers, a step apart, to eight rows that lie `wide` apart.
inline void transpose_eight(const float* from, long step, float* to, long wide) {
    Eight r[8], pairs[8], fours[8];
    for (int i = 0; i < 8; ++i) r[i] = *reinterpret_cast<const EightUnaligned*>(from + i * step);
    for (int i = 0; i < 8; i += 2) {
        pairs[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        pairs[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; ++k) {
            fours[i + 2 * k] = __builtin_shufflevector(pairs[i + k], pairs[i + k + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            fours[i + 2 * k + 1] = __builtin_shufflevector(pairs[i + k], pairs[i + k + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int i = 0; i < 4; ++i) {
        const Eight near = __builtin_shufflevector(fours[i], fours[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        const Eight far = __builtin_shufflevector(fours[i], fours[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
        *reinterpret_cast<EightUnaligned*>(to + i * wide) = near;
        *reinterpret_cast<EightUnaligned*>(to + (i + 4) * wide) = far;
    }
}
#else
inline void transpose_eight(const float* from, long step, float* to, long wide) {
    for (long e = 0; e < 8; ++e)
        for (long s = 0; s < 8; ++s) to[e * wide + s] = from[s * step + e];
}
#endif

void transpose(const Rows<const float>& rows, long count, long width, float* to, long wide) {
    const long down = count / 8 * 8, across = width / 8 * 8;
    for (long s = 0; s < down; s += 8)
        for (long e = 0; e < across; e += 8) transpose_eight(rows[s] + e, rows.stride, to + e * wide + s, wide);
    for (long s = 0; s < count; ++s)
        for (long e = s < down ? across : 0; e < width; ++e) to[e * wide + s] = rows[s][e];
}

// Rows with `broad` numbers each: where they lie if they have as many, or copied to `own`, behind whose `width` are zeros.
Rows<const float> broadened(const Rows<const float>& rows, long count, long width, float* own, long broad) {
    if (width == broad) return rows;
    for (long s = 0; s < count; ++s) std::copy(rows[s], rows[s] + width, own + s * broad);
    return {own, broad};
}

// Numbers that `broadened` needs of its own.
inline long broadened_size(long count, long width, long broad) { return width == broad ? 0 : count * broad; }

template <typename Number>
void scale_row(float factor, const float* __restrict from, Number* __restrict to, long width) {
    for (long e = 0; e < width; ++e) put(factor * from[e], &to[e]);
}

inline void scale_in_place(float factor, float* row, long count) {
    for (long p = 0; p < count; p += LANES) store(row + p, factor * load(row + p, LANES), LANES);
}

template <typename Number>
void mix_rows(float share, const float* __restrict from, float factor, const float* __restrict other,
              Number* __restrict to, long width) {
    for (long e = 0; e < width; ++e) put(factor * other[e] + share * from[e], &to[e]);
}

float inner(const float* a, const float* b, long width) {
    Vector total = {};
    for (long e = 0; e < width; e += LANES) total += load(a + e, width - e) * load(b + e, width - e);
    return sum(total);
}

float energy(const float* row, long width) { return inner(row, row, width); }

void fill_terms(float* terms, const float* column, const Rows<const float>& k, long map, long keys, long width) {
    for (long s = 0; s < keys; ++s) terms[s] = column ? column[map * keys + s] : energy(k[s], width);
}

// M rows and N vectors of columns of c = a b, or c += a b, with c in registers.
template <int M, int N, bool ADD>
inline void tile(const float* a, long a_row, long a_step, const float* b, long b_row, float* c, long c_row, long depth) {
    Vector sums[M][N];
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) sums[i][j] = ADD ? load(c + i * c_row + j * LANES, LANES) : Vector{};
    for (long p = 0; p < depth; ++p, a += a_step, b += b_row) {
        Vector row[N];
        for (int j = 0; j < N; ++j) row[j] = load(b + j * LANES, LANES);
        for (int i = 0; i < M; ++i)
            for (int j = 0; j < N; ++j) sums[i][j] += a[i * a_row] * row[j];
    }
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) store(c + i * c_row + j * LANES, sums[i][j], LANES);
}

// All rows of N vectors of columns.
template <int N, bool ADD>
void strip(long rows, const float* a, long a_row, long a_step, const float* b, long b_row, float* c, long c_row, long depth) {
    for (; rows >= 6; rows -= 6, a += 6 * a_row, c += 6 * c_row)
        tile<6, N, ADD>(a, a_row, a_step, b, b_row, c, c_row, depth);
    switch (rows) {
        case 5: return tile<5, N, ADD>(a, a_row, a_step, b, b_row, c, c_row, depth);
        case 4: return tile<4, N, ADD>(a, a_row, a_step, b, b_row, c, c_row, depth);
        case 3: return tile<3, N, ADD>(a, a_row, a_step, b, b_row, c, c_row, depth);
        case 2: return tile<2, N, ADD>(a, a_row, a_step, b, b_row, c, c_row, depth);
        case 1: return tile<1, N, ADD>(a, a_row, a_step, b, b_row, c, c_row, depth);
    }
}

// c [rows, columns] = a b, or c += a b; columns are a multiple of LANES, and so much of b and c is there.
template <bool ADD>
void product(long rows, long columns, long depth, const float* a, long a_row, long a_step, const float* b, long b_row,
             float* c, long c_row) {
    long j = 0;
    if constexpr (LANES == 16)  // twice as many registers, too
        for (; j + 4 * LANES <= columns; j += 4 * LANES) strip<4, ADD>(rows, a, a_row, a_step, b + j, b_row, c + j, c_row, depth);
    for (; j + 2 * LANES <= columns; j += 2 * LANES) strip<2, ADD>(rows, a, a_row, a_step, b + j, b_row, c + j, c_row, depth);
    if (j < columns) strip<1, ADD>(rows, a, a_row, a_step, b + j, b_row, c + j, c_row, depth);
}

// Of a query and keys with their inner product and the keys' terms; `row` is the query's squared norm.
struct Score {
    float scale, epsilon, row;
    bool is_yat;

    Vector operator()(Vector dot, Vector term) const {
        if (!is_yat) return scale * (2.0f * dot - term);
        const Vector raw = term + row - 2.0f * dot, d = raw < 0.0f ? Vector{} : raw;
        return scale * dot * dot / (d + epsilon);
    }
};

// Scores in place of inner products, and the greatest of them.
float greatest_score(float* row, const float* terms, long count, const Score& score) {
    Vector greatest = Vector{} - std::numeric_limits<float>::infinity();
    for (long p = 0; p < count; p += LANES) {
        Vector value = score(load(row + p, LANES), load(terms + p, LANES));
        store(row + p, value, LANES);
        if (count - p < LANES)
            for (long lane = count - p; lane < LANES; ++lane) value[lane] = greatest[lane];
        greatest = value > greatest ? value : greatest;
    }
    float most = greatest[0];
    for (long lane = 1; lane < LANES; ++lane) most = std::max(most, greatest[lane]);
    return most;
}

// exp(score - greatest) in place of scores, and their sum.
float exponentials(float* row, long count, float greatest) {
    Vector total = {};
    for (long p = 0; p < count; p += LANES) {
        const Vector power = exponential(load(row + p, LANES) - greatest);
        store(row + p, power, LANES);
        total += count - p < LANES ? kept(power, count - p) : power;
    }
    return sum(total);
}

// Weights again, from inner products; returns the mean of `back`, the weights' gradients.
float weights_again(const float* dot, float* weights, const float* back, const float* terms, long count,
                    const Score& score, const float* peak) {
    Vector mean = {};
    for (long p = 0; p < count; p += LANES) {
        const Vector weight = peak[1] * exponential(score(load(dot + p, LANES), load(terms + p, LANES)) - peak[0]);
        store(weights + p, count - p < LANES ? kept(weight, count - p) : weight, LANES);
        mean += load(weights + p, LANES) * load(back + p, LANES);
    }
    return sum(mean);
}

// HyperBF: in place of the weights' gradients those of the scores, which the caller multiplies by the scale.
void score_gradients(const float* weights, float* back, float* of_terms, long count, float mean) {
    for (long p = 0; p < count; p += LANES) {
        const Vector to_score = load(weights + p, LANES) * (load(back + p, LANES) - mean);
        store(back + p, to_score, LANES);
        store(of_terms + p, load(of_terms + p, LANES) + to_score, LANES);
    }
}

// Yat: in place of the weights' gradients those of the inner products; returns that of the query's squared norm.
float yat_gradients(const float* dot, const float* weights, float* back, const float* terms, float* of_terms, long count,
                    const Score& score, float mean, double* totals) {
    Vector of_row = {}, of_scale = {}, of_epsilon = {};
    for (long p = 0; p < count; p += LANES) {
        const Vector to_score = load(weights + p, LANES) * (load(back + p, LANES) - mean);
        const Vector norms = load(terms + p, LANES) + score.row;
        YatGradient g = yat_gradient(load(dot + p, LANES), norms, to_score, score.scale, score.epsilon);
        if (count - p < LANES) {  // what stands behind the last may be a NaN
            g.distance = kept(g.distance, count - p);
            g.scale = kept(g.scale, count - p), g.epsilon = kept(g.epsilon, count - p);
        }
        of_scale += g.scale, of_epsilon += g.epsilon, of_row += g.distance;
        store(back + p, g.dot, LANES);
        store(of_terms + p, load(of_terms + p, LANES) + g.distance, LANES);
    }
    totals[0] += sum(of_scale);
    totals[1] += sum(of_epsilon);
    return sum(of_row);
}

// Attention of maps `first` to `last`; a map is a head of a sample.  sizes: heads, queries, keys, their width, that of
// values, numbers kept of a query for the backward pass; strides: of a sample, a head and a row, for query, key,
// value and `out`; the numbers of a row stand side by side.  column [maps, keys], or none: the squared norms of the keys.
// keep [maps, queries, keep_row]: the greatest score, and one over the sum of exponentials (their logarithm would lose the
// sum beside a large score); or the weights, with room for whole vectors.
template <typename Number>
void attend(const Number* query, const Number* key, const Number* value, const float* column, Number* out, float* keep,
            const long* sizes, const long* strides, float scale, float epsilon, bool is_causal, bool is_yat, long first,
            long last) {
    const auto [heads, queries, keys, width, depth, keep_row] = *reinterpret_cast<const Sizes*>(sizes);
    const long wide = padded(keys), deep = padded(depth), block = rows_at_once(queries, wide);
    const bool are_weights = keep_row != PEAK;
    Buffer turned(width * wide), terms(wide), own_weights(are_weights ? 0 : block * wide), mixed(block * deep);
    Buffer values(broadened_size(keys, depth, deep));
    Buffer wide_queries(widened_size<Number>(queries * width)), wide_keys(widened_size<Number>(keys * width));
    Buffer wide_values(widened_size<Number>(keys * depth));
    for (long map = first; map < last; ++map) {
        const auto q = floats<Number>({query, strides, map, heads}, queries, width, wide_queries);
        const auto k = floats<Number>({key, strides + 3, map, heads}, keys, width, wide_keys);
        const auto v = floats<Number>({value, strides + 6, map, heads}, keys, depth, wide_values);
        const Rows<Number> to(out, strides + 9, map, heads);
        transpose(k, keys, width, turned, wide);
        fill_terms(terms, column, k, map, keys, width);
        const auto rows = broadened(v, keys, depth, values, deep);
        for (long start = 0; start < queries; start += block) {
            const long count = std::min(block, queries - start), seen = is_causal ? std::min(keys, start + count) : keys;
            float* keep_here = keep + (map * queries + start) * keep_row;
            float* weights = are_weights ? keep_here : own_weights;
            const long apart = are_weights ? keep_row : wide;
            product<false>(count, padded(seen), width, q[start], q.stride, 1, turned, wide, weights, apart);
            float shares[MOST_ROWS];
            for (long i = 0; i < count; ++i) {
                float* row = weights + i * apart;
                const long own = is_causal ? std::min(keys, start + i + 1) : keys;
                const Score score{scale, epsilon, is_yat ? energy(q[start + i], width) : 0.0f, is_yat};
                const float greatest = greatest_score(row, terms, own, score);
                const float total = exponentials(row, own, greatest);
                std::fill(row + own, row + (are_weights ? keep_row : seen), 0.0f);
                shares[i] = 1.0f / total;
                if (are_weights) {
                    scale_in_place(shares[i], row, own);
                    shares[i] = 1.0f;
                } else {
                    keep_here[i * PEAK] = greatest;
                    keep_here[i * PEAK + 1] = shares[i];
                }
            }
            product<false>(count, deep, seen, weights, apart, 1, rows[0], rows.stride, mixed, deep);
            for (long i = 0; i < count; ++i)
                scale_row(shares[i], mixed + i * deep, to[start + i], depth);
        }
    }
}

// Gradients, written to contiguous tensors; `to_column` where a column came; totals [maps, 2]: of scale and epsilon, added to.
// Weights that aren't kept are made again: with large maps that takes less than to write them down and read them.
template <typename Number>
void attend_back(const Number* query, const Number* key, const Number* value, const float* column, const Number* grad,
                 const float* keep, Number* to_query, Number* to_key, Number* to_value, float* to_column,
                 double* totals, const long* sizes, const long* strides, float scale, float epsilon, bool is_causal,
                 bool is_yat, long first, long last) {
    const auto [heads, queries, keys, width, depth, keep_row] = *reinterpret_cast<const Sizes*>(sizes);
    const long wide = padded(keys), broad = padded(width), deep = padded(depth), block = rows_at_once(queries, wide);
    const bool are_weights = keep_row != PEAK;
    const long again = are_weights ? 0 : block * wide, apart = are_weights ? keep_row : wide;
    Buffer turned(are_weights ? 0 : width * wide), dots(again), own_weights(again);
    Buffer turned_values(depth * wide), terms(wide), own_keys(broadened_size(keys, width, broad));
    Buffer backs(block * wide), of_terms(wide), of_queries(block * broad), of_keys(keys * broad), of_values(keys * deep);
    Buffer own_queries(broadened_size(block, width, broad)), own_grads(broadened_size(block, depth, deep));
    Buffer wide_queries(widened_size<Number>(queries * width)), wide_keys(widened_size<Number>(keys * width));
    Buffer wide_values(widened_size<Number>(keys * depth)), wide_grads(widened_size<Number>(queries * depth));
    const float share = is_yat ? 1.0f : 2.0f * scale;  // of what is multiplied by queries and keys
    for (long map = first; map < last; ++map) {
        const auto q = floats<Number>({query, strides, map, heads}, queries, width, wide_queries);
        const auto k = floats<Number>({key, strides + 3, map, heads}, keys, width, wide_keys);
        const auto v = floats<Number>({value, strides + 6, map, heads}, keys, depth, wide_values);
        const auto g = floats<Number>({grad, strides + 9, map, heads}, queries, depth, wide_grads);
        if (!are_weights) transpose(k, keys, width, turned, wide);
        transpose(v, keys, depth, turned_values, wide);
        fill_terms(terms, column, k, map, keys, width);
        const auto k_rows = broadened(k, keys, width, own_keys, broad);
        of_keys.clear(), of_values.clear(), of_terms.clear();
        for (long start = 0; start < queries; start += block) {
            const long count = std::min(block, queries - start), seen = is_causal ? std::min(keys, start + count) : keys;
            const auto q_rows = broadened(q.from(start), count, width, own_queries, broad);
            const auto g_rows = broadened(g.from(start), count, depth, own_grads, deep);
            const float* keep_here = keep + (map * queries + start) * keep_row;
            const float* weights = are_weights ? keep_here : own_weights;
            if (!are_weights)
                product<false>(count, padded(seen), width, q_rows[0], q_rows.stride, 1, turned, wide, dots, wide);
            product<false>(count, padded(seen), depth, g_rows[0], g_rows.stride, 1, turned_values, wide, backs, wide);
            float of_rows[MOST_ROWS] = {};
            for (long i = 0; i < count; ++i) {
                const long own = is_causal ? std::min(keys, start + i + 1) : keys;
                const Score score{scale, epsilon, is_yat ? energy(q[start + i], width) : 0.0f, is_yat};
                const float *dot = dots + i * wide, *row = weights + i * apart;
                float* back = backs + i * wide;
                float mean;
                if (are_weights) {
                    mean = inner(row, back, own);
                } else {
                    mean = weights_again(dot, own_weights + i * wide, back, terms, own, score, keep_here + i * PEAK);
                    std::fill(own_weights + i * wide + own, own_weights + i * wide + seen, 0.0f);
                }
                if (is_yat)
                    of_rows[i] = yat_gradients(dot, row, back, terms, of_terms, own, score, mean, totals + 2 * map);
                else
                    score_gradients(row, back, of_terms, own, mean);
                std::fill(back + own, back + seen, 0.0f);
            }
            product<true>(seen, deep, count, weights, 1, apart, g_rows[0], g_rows.stride, of_values, deep);
            product<true>(seen, broad, count, backs, 1, wide, q_rows[0], q_rows.stride, of_keys, broad);
            product<false>(count, broad, seen, backs, wide, 1, k_rows[0], k_rows.stride, of_queries, broad);
            Number* to = to_query + (map * queries + start) * width;
            for (long i = 0; i < count; ++i) {
                const float* of_query = of_queries + i * broad;
                if (!is_yat) totals[2 * map] += 2.0f * inner(of_query, q_rows[i], width);
                mix_rows(share, of_query, 2.0f * of_rows[i], q_rows[i], to + i * width, width);
            }
        }
        for (long s = 0; s < keys; ++s) {
            if (!is_yat) {
                totals[2 * map] -= terms[s] * of_terms[s];
                of_terms[s] *= -scale;
            }
            const float of_norm = column ? 0.0f : 2.0f * of_terms[s];
            mix_rows(share, of_keys + s * broad, of_norm, k_rows[s], to_key + (map * keys + s) * width, width);
            scale_row(1.0f, of_values + s * deep, to_value + (map * keys + s) * depth, depth);
            if (column) to_column[map * keys + s] = of_terms[s];
        }
    }
}

}  // namespace

extern "C" {

void attention_forward(const float* query, const float* key, const float* value, const float* column, float* out,
                       float* keep, const long* sizes, const long* strides, float scale, float epsilon, long is_causal,
                       long is_yat, long first, long last) {
    attend(query, key, value, column, out, keep, sizes, strides, scale, epsilon, is_causal, is_yat, first, last);
}

void attention_forward_half(const Half* query, const Half* key, const Half* value, const float* column, Half* out,
                            float* keep, const long* sizes, const long* strides, float scale, float epsilon,
                            long is_causal, long is_yat, long first, long last) {
    attend(query, key, value, column, out, keep, sizes, strides, scale, epsilon, is_causal, is_yat, first, last);
}

void attention_backward(const float* query, const float* key, const float* value, const float* column,
                        const float* grad, const float* keep, float* to_query, float* to_key, float* to_value,
                        float* to_column, double* totals, const long* sizes, const long* strides, float scale,
                        float epsilon, long is_causal, long is_yat, long first, long last) {
    attend_back(query, key, value, column, grad, keep, to_query, to_key, to_value, to_column, totals, sizes, strides,
                scale, epsilon, is_causal, is_yat, first, last);
}

void attention_backward_half(const Half* query, const Half* key, const Half* value, const float* column,
                             const Half* grad, const float* keep, Half* to_query, Half* to_key, Half* to_value,
                             float* to_column, double* totals, const long* sizes, const long* strides, float scale,
                             float epsilon, long is_causal, long is_yat, long first, long last) {
    attend_back(query, key, value, column, grad, keep, to_query, to_key, to_value, to_column, totals, sizes, strides,
                scale, epsilon, is_causal, is_yat, first, last);
}

}
