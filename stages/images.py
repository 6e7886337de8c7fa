"""Uploaded image files to a network's input: any size and mode in, uint8 [C, H, W] out."""

from __future__ import annotations

import io
import warnings

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("PNG", "JPEG", "WEBP")
MAX_PIXELS = 50_000_000


class ImageError(ValueError):
    """Bytes that are not an image we read; the message says what was expected and what came."""


class ImageTooLarge(ImageError):
    """More pixels than `MAX_PIXELS`, seen in the header before anything is decoded."""


def decode_image(content: bytes, shape: tuple[int, int, int]) -> np.ndarray:
    """The first frame of a PNG, JPEG or WebP file as uint8 [C, H, W].

    Turned upright by its EXIF orientation, laid on black where transparent, converted to grey (C = 1) or RGB (C = 3),
    cut to the centre with the aspect of `shape` and resized (bilinear, antialiased).  An image that already has the
    size keeps its exact pixels, so a test image sent as a file gets what `evaluate` gives it.

    Raises:
        ImageError: empty, no such format, or damaged.
        ImageTooLarge: a decompression bomb.
    """
    channels, height, width = shape
    if not content:
        raise ImageError("the file is empty; expected a PNG, JPEG or WebP image")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's own size warnings; the cap below is ours
        try:
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise ImageTooLarge(f"the image has {image.width} x {image.height} pixels; at most {MAX_PIXELS:,}")
                upright = ImageOps.exif_transpose(image)
                flat = _without_alpha(upright).convert("L" if channels == 1 else "RGB")
        except ImageError:
            raise
        except Image.DecompressionBombError:
            raise ImageTooLarge(f"the image has more pixels than {MAX_PIXELS:,}") from None
        except UnidentifiedImageError:
            raise ImageError("the file is not a PNG, JPEG or WebP image") from None
        except Exception as error:  # noqa: BLE001  (decoders raise almost anything on damaged input)
            raise ImageError(f"the image is damaged: {type(error).__name__}") from None
    if flat.size != (width, height):
        flat = ImageOps.fit(flat, (width, height), method=Image.Resampling.BILINEAR)
    pixels = np.asarray(flat, dtype=np.uint8)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _without_alpha(image: Image.Image) -> Image.Image:
    """16-bit grey scaled to 8 bits; transparency laid on black; everything else as it came."""
    if image.mode.startswith("I"):  # 16-bit PNG; the other formats have none
        levels = np.asarray(image, dtype=np.int64).clip(0, 65535)
        return Image.fromarray((levels * 255 // 65535).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, (0, 0, 0, 255)), layer)
    return image
