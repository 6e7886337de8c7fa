// Batches of images: a window of each, mirrored or not, its pixels looked up in a table of their channel's numbers.

#include <cstdint>

extern "C" {

// images [N, channels, padded_height, padded_width]; rows, top and left [count], mirrored [count] or none;
// numbers [channels, 256]; out [count, channels, height, width].
void windows(const uint8_t* images, const int64_t* rows, const int64_t* top, const int64_t* left,
             const uint8_t* mirrored, const float* numbers, float* out, long count, long channels, long padded_height,
             long padded_width, long height, long width) {
    for (long n = 0; n < count; ++n)
        for (long channel = 0; channel < channels; ++channel) {
            const float* of_channel = numbers + 256 * channel;
            const uint8_t* image = images + (rows[n] * channels + channel) * padded_height * padded_width;
            for (long y = 0; y < height; ++y, out += width) {
                const uint8_t* line = image + (top[n] + y) * padded_width + left[n];
                if (mirrored && mirrored[n])
                    for (long x = 0; x < width; ++x) out[x] = of_channel[line[width - 1 - x]];
                else
                    for (long x = 0; x < width; ++x) out[x] = of_channel[line[x]];
            }
        }
}

}
