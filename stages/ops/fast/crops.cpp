// A batch of cropped, flipped and normalised images from uint8 ones: each byte is read and each number written once.

#include <cstdint>
#include <cstring>
#include <vector>

namespace {

// As PyTorch's `addcmul`, which rounds once or twice where its code for these instructions does.
inline float normal(uint8_t pixel, float scale, float shift) { return shift + static_cast<float>(pixel) * scale; }

void line_as_is(const uint8_t* __restrict from, float* __restrict to, long width, float scale, float shift) {
    for (long x = 0; x < width; ++x) to[x] = normal(from[x], scale, shift);
}

void line_flipped(const uint8_t* __restrict from, float* __restrict to, long width, float scale, float shift) {
    for (long x = 0; x < width; ++x) to[x] = normal(from[width - 1 - x], scale, shift);
}

}  // namespace

// images [N, C, H, W]; rows [B]: places in it; offsets [2, B]: upper and left edges of windows in images padded by P,
// from 0 to 2 P, and flips [B]: whether an image is flipped, or null; normals [2, C]: scale and shift;
// out [B, C, H, W]; sizes: B, N, C, H, W, P.
// Returns 1 where a row isn't in `images`, else 0.
extern "C" int crop(const uint8_t* images, const int64_t* rows, const int64_t* offsets, const uint8_t* flips,
                    const float* normals, float* out, const long* sizes) {
    const long count = sizes[0], all = sizes[1], channels = sizes[2], height = sizes[3], width = sizes[4];
    const long padding = sizes[5];
    std::vector<float> padded(width + 2 * padding), empty(width);
    for (long b = 0; b < count; ++b) {
        if (rows[b] < 0 || rows[b] >= all) return 1;
        const uint8_t* image = images + rows[b] * channels * height * width;
        const bool flipped = flips && flips[b];
        const long top = offsets ? offsets[b] - padding : 0;
        const long left = offsets ? (flipped ? 2 * padding - offsets[count + b] : offsets[count + b]) : padding;
        for (long c = 0; c < channels; ++c) {
            const float scale = normals[c], shift = normals[channels + c], none = normal(0, scale, shift);
            padded.assign(padded.size(), none);
            empty.assign(width, none);
            for (long y = top; y < top + height; ++y, out += width) {
                const bool is_inside = y >= 0 && y < height;
                const uint8_t* line = image + (c * height + y) * width;
                if (is_inside) (flipped ? line_flipped : line_as_is)(line, &padded[padding], width, scale, shift);
                std::memcpy(out, is_inside ? &padded[left] : empty.data(), width * sizeof(float));
            }
        }
    }
    return 0;
}
