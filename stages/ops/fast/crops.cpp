// A batch of cropped, flipped and normalised images from uint8 ones: each byte is read and each number written once.

#include <algorithm>
#include <cstdint>

namespace {

constexpr long LINE = 64, AHEAD = 1 << 14;  // bytes of a cache's line, and of the largest image to ask for ahead

// As PyTorch's `addcmul`, which rounds once or twice where its code for these instructions does.
inline float normal(uint8_t pixel, float scale, float shift) { return shift + static_cast<float>(pixel) * scale; }

inline void line_as_is(const uint8_t* __restrict from, float* __restrict to, long width, float scale, float shift) {
    for (long x = 0; x < width; ++x) to[x] = normal(from[x], scale, shift);
}

inline void line_flipped(const uint8_t* __restrict from, float* __restrict to, long width, float scale, float shift) {
    for (long x = 0; x < width; ++x) to[x] = normal(from[width - 1 - x], scale, shift);
}

// `WIDTH`: the images', where the compiler is to know it; 0 for any.
template <long WIDTH>
int cropped(const uint8_t* images, const int64_t* rows, const int64_t* offsets, const uint8_t* flips,
            const float* normals, float* out, const long* sizes) {
    const long count = sizes[0], all = sizes[1], channels = sizes[2], height = sizes[3], padding = sizes[5];
    const long width = WIDTH ? WIDTH : sizes[4], end = all * channels * height * width;
    for (long b = 0; b < count; ++b) {
        if (rows[b] < 0 || rows[b] >= all) return 1;
        const bool flipped = flips && flips[b];
        const auto line = flipped ? line_flipped : line_as_is;
        const long top = offsets ? offsets[b] - padding : 0, left = offsets ? offsets[count + b] - padding : 0;
        // Columns of the window inside the image, and what is empty before and after them where they are written.
        const long first = std::clamp(-left, 0L, width), last = std::clamp(width - left, first, width);
        const long before = flipped ? width - last : first, after = flipped ? first : width - last;
        // Ask for the next image already: small ones lie anywhere, and waiting for them takes as long as all the rest.
        const long size = channels * height * width;
        const bool is_next_known = b + 1 < count && rows[b + 1] >= 0 && rows[b + 1] < all;
        if (is_next_known && size <= AHEAD)
            for (long at = 0; at < size; at += LINE) __builtin_prefetch(images + rows[b + 1] * size + at);
        for (long c = 0; c < channels; ++c) {
            const float scale = normals[c], shift = normals[channels + c], empty = normal(0, scale, shift);
            for (long y = top; y < top + height; ++y, out += width) {
                if (y < 0 || y >= height) {
                    std::fill(out, out + width, empty);
                    continue;
                }
                // A whole line is faster than a part of it: what neighbours are in it is written over.
                const long from = ((rows[b] * channels + c) * height + y) * width + left;
                if (from >= 0 && from + width <= end) {
                    line(images + from, out, width, scale, shift);
                } else {
                    line(images + from + first, out + before, last - first, scale, shift);
                }
                for (long x = 0; x < before; ++x) out[x] = empty;
                for (long x = width - after; x < width; ++x) out[x] = empty;
            }
        }
    }
    return 0;
}

}  // namespace

// images [N, C, H, W]; rows [B]: places in it; offsets [2, B]: upper and left edges of windows in images padded by P,
// from 0 to 2 P, and flips [B]: whether an image is flipped, or null; normals [2, C]: scale and shift;
// out [B, C, H, W]; sizes: B, N, C, H, W, P.
// Returns 1 where a row isn't in `images`, else 0.
extern "C" int crop(const uint8_t* images, const int64_t* rows, const int64_t* offsets, const uint8_t* flips,
                    const float* normals, float* out, const long* sizes) {
    const long width = sizes[4];
    const auto of = width == 28 ? cropped<28> : width == 32 ? cropped<32> : width == 64 ? cropped<64> : cropped<0>;
    return of(images, rows, offsets, flips, normals, out, sizes);
}
