"""Uploaded image files to a network's input: any size and mode in, uint8 [C, H, W] out."""

from __future__ import annotations

import io
import re
import warnings
import zlib
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

FORMATS = ("PNG", "JPEG", "WEBP")
MAX_PIXELS = 16_000_000
MAX_SCANS = 100
"""Of a JPEG: each makes the decoder walk over the whole image again.  Encoders write 10, the most thorough about 20."""
MAX_SEGMENTS = 10_000

_JPEG_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")  # what isn't stuffed and restarts no interval
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_ALONE, _JPEG_END, _JPEG_SCAN = frozenset({*range(0xC0), 0xD8}), 0xD9, 0xDA


class ImageError(ValueError):
    """The bytes aren't an image that we read; the message says what was expected and what came."""


class ImageTooLarge(ImageError):
    """More pixels than `MAX_PIXELS` or more scans than `MAX_SCANS`, detected before decoding."""


@dataclass(frozen=True)
class Outline:
    """What a file says of itself before it is decoded; `scans` is 1 but for a progressive JPEG."""

    width: int
    height: int
    scans: int = 1

    @property
    def pixels(self) -> int:
        return self.width * self.height

    @property
    def work(self) -> int:
        """Pixels that the decoder walks over."""
        return self.pixels * self.scans


def outline(content: bytes) -> Outline:
    """Size and scans of a PNG, JPEG or WebP file, read from its headers alone; 0 pixels where they don't say.

    Raises:
        ImageTooLarge: more pixels than `MAX_PIXELS`, or more scans than `MAX_SCANS`.
    """
    found = Outline(0, 0)
    if content.startswith(b"\x89PNG\r\n\x1a\n") and zlib.crc32(content[12:29]).to_bytes(4, "big") == content[29:33]:
        found = Outline(int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big"))
    elif content.startswith(b"\xff\xd8"):
        found = _jpeg_outline(content)
    elif content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        found = Outline(*_webp_size(content))
    if found.pixels > MAX_PIXELS:
        raise ImageTooLarge(f"the image has {found.width} x {found.height} pixels; at most {MAX_PIXELS:,}")
    return found


def _jpeg_outline(content: bytes) -> Outline:
    """Walk over the segments; bytes between two of them belong to a scan.

    Scans are what the marker of one is found in the rest: only where it is found too often, in other data perhaps, are
    they walked over, too.
    """
    width = height = scans = offset = 0
    for _ in range(MAX_SEGMENTS):
        found = _JPEG_MARKER.search(content, offset)
        if found is None or (kind := found[1][0]) == _JPEG_END:
            return Outline(width, height, max(scans, 1))
        offset = found.end()
        if kind in _JPEG_ALONE:
            continue
        if kind in _JPEG_FRAMES:
            height = int.from_bytes(content[offset + 3 : offset + 5], "big")
            width = int.from_bytes(content[offset + 5 : offset + 7], "big")
        if kind == _JPEG_SCAN:
            scans += 1
            if scans == 1 and (most := 1 + content.count(b"\xff\xda", offset)) <= MAX_SCANS:
                return Outline(width, height, most)
            if scans > MAX_SCANS:
                raise ImageTooLarge(f"the image has more than {MAX_SCANS} scans")
        offset += int.from_bytes(content[offset : offset + 2], "big")
    raise ImageTooLarge(f"the image has more than {MAX_SEGMENTS:,} segments")


def _webp_size(content: bytes) -> tuple[int, int]:
    """Width and height of the canvas; of a file without one, of its only frame."""
    kind, data = content[12:16], content[20:30]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[4:7], "little"), 1 + int.from_bytes(data[7:10], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(data[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return int.from_bytes(data[6:8], "little") & 0x3FFF, int.from_bytes(data[8:10], "little") & 0x3FFF


def decode_image(content: bytes, shape: tuple[int, int, int]) -> np.ndarray:
    """The first frame of a PNG, JPEG or WebP file as uint8 [C, H, W].

    Turned upright by its EXIF orientation, laid on black where transparent, converted to grey (C = 1) or RGB (C = 3),
    cut to the centre with the aspect of `shape` and resized (bilinear, antialiased).  An image that already has the
    size keeps its exact pixels, so a test image sent as a file gets what `evaluate` gives it.

    Raises:
        ImageError: empty, of another format, or damaged.
        ImageTooLarge: more pixels than `MAX_PIXELS`, or more scans than `MAX_SCANS`.
        MemoryError: this process may not take as much memory as the image needs.
    """
    channels, height, width = shape
    mode = "L" if channels == 1 else "RGB"
    if not content:
        raise ImageError("the file is empty; expected a PNG, JPEG or WebP image")
    promised = outline(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's own size warnings; the cap below is ours
        try:
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                if image.width * image.height > promised.pixels:
                    raise ImageError("the image is damaged: it has more pixels than its header says")
                # a JPEG can be decoded at a fraction of its size, still twice as large as needed
                image.draft(None, (2 * max(width, height), 2 * max(width, height)))
                ImageOps.exif_transpose(image, in_place=True)
                fitted = _fit(_resizable(image, mode), (width, height))
                flat = _without_alpha(fitted).convert(mode)
        except (ImageError, MemoryError):
            raise
        except Image.DecompressionBombError:
            raise ImageTooLarge(f"the image has more pixels than {MAX_PIXELS:,}") from None
        except UnidentifiedImageError:
            raise ImageError("the file is not a PNG, JPEG or WebP image") from None
        except Exception as error:  # noqa: BLE001  (decoders raise almost anything on damaged input)
            what = "it ends too early" if _is_cut(content, error) else "its pixels can't be decoded"
            raise ImageError(f"the image is damaged: {what}") from None
    pixels = np.asarray(flat, dtype=np.uint8)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _is_cut(content: bytes, error: Exception) -> bool:
    """True if the file is cut off: Pillow says so for PNG and JPEG; a WebP file begins with its own length."""
    is_short = content.startswith(b"RIFF") and len(content) < 8 + int.from_bytes(content[4:8], "little")
    return is_short or "truncated" in str(error).lower()


def _resizable(image: Image.Image, mode: str) -> Image.Image:
    """Convert to a mode whose pixels may be averaged: no palette, 8 bits per channel, transparency as a channel."""
    if image.mode.startswith("I"):  # 16-bit PNG; the other formats have none
        levels = np.asarray(image)
        if levels.dtype != np.uint16:
            levels = levels.clip(0, 65535)
        return Image.fromarray((levels // 257).astype(np.uint8))  # 65535 / 257 = 255
    if image.mode == "PA" or "transparency" in image.info:
        return image.convert("RGBA")
    return image if image.mode in ("L", "LA", "RGB", "RGBA") else image.convert(mode)


def _fit(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Crop to the centre with the aspect of `size`, and resize; unchanged if it already has the size."""
    if image.size == size:
        return image
    scale = min(image.width / size[0], image.height / size[1])
    left, top = max(0.0, (image.width - scale * size[0]) / 2), max(0.0, (image.height - scale * size[1]) / 2)
    box = (left, top, image.width - left, image.height - top)
    return image.resize(size, Image.Resampling.BILINEAR, box=box, reducing_gap=2.0)


def _without_alpha(image: Image.Image) -> Image.Image:
    """Lay transparency on black; leave everything else unchanged."""
    if image.mode not in ("LA", "RGBA"):
        return image
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, (0, 0, 0, 255)), layer)
