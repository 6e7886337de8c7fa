"""Converts uploaded image files of any size and mode to a network's input, uint8 [C, H, W]."""

from __future__ import annotations

import io
import re
import warnings
import zlib
from dataclasses import dataclass

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

FORMATS = ("PNG", "JPEG", "WEBP")
_BEGINNINGS = {
    "PNG": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "JPEG": re.compile(rb"\xff\xd8"),
    "WebP": re.compile(rb"RIFF....WEBP", re.DOTALL),
    "GIF": re.compile(rb"GIF8"),
    "HEIC": re.compile(rb"....ftyp(hei|hev|mif|msf)", re.DOTALL),
    "AVIF": re.compile(rb"....ftypavi", re.DOTALL),
    "TIFF": re.compile(rb"II\*\0|MM\0\*"),
    "BMP": re.compile(rb"BM"),
    "JPEG XL": re.compile(rb"\xff\x0a|....JXL ", re.DOTALL),
    "SVG": re.compile(rb"\s*<(svg|\?xml)"),
    "PDF": re.compile(rb"%PDF"),
}
_TURNS: dict[object, Image.Transpose] = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""Transposition that turns an image upright, by its EXIF orientation."""
MAX_PIXELS = 16_000_000
MAX_SCANS = 100
"""Largest number of a JPEG's scans; each makes the decoder process the whole image again.  Encoders write up to 20."""
MAX_CHUNKS, MAX_SEGMENTS, MAX_FILL_BYTES = 10_000, 1_000, 64 * 1024
"""Largest numbers of a PNG's chunks, a JPEG's segments, and bytes between those segments.

The decoder reads chunks and segments in Python, and appends metadata in quadratic time.
"""

_JPEG_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")  # neither a stuffed byte nor a restart marker
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_ALONE, _JPEG_END, _JPEG_SCAN = frozenset({*range(0xC0), 0xD8}), 0xD9, 0xDA


class ImageError(ValueError):
    """The bytes aren't an image in a known format; the message says what was expected and what was found."""


class ImageTooLarge(ImageError):
    """More pixels than `MAX_PIXELS` or more scans than `MAX_SCANS`, detected before decoding."""


@dataclass(frozen=True)
class Outline:
    """Header of an image file, read before decoding; `scans` is 1 except for a progressive JPEG."""

    width: int
    height: int
    scans: int = 1

    @property
    def pixels(self) -> int:
        return self.width * self.height

    @property
    def work(self) -> int:
        """Number of pixels that the decoder processes."""
        return self.pixels * self.scans


def outline(content: bytes) -> Outline:
    """Read size and scans of a PNG, JPEG or WebP file from its headers; 0 pixels if they don't say.

    Raises:
        ImageTooLarge: more pixels than `MAX_PIXELS`, or more scans than `MAX_SCANS`.
    """
    found = Outline(0, 0)
    if _BEGINNINGS["PNG"].match(content) and zlib.crc32(content[12:29]).to_bytes(4, "big") == content[29:33]:
        found = Outline(int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big"))
    elif content.startswith(b"\xff\xd8"):
        found = _jpeg_outline(content)
    elif content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        found = Outline(*_webp_size(content))
    if found.pixels > MAX_PIXELS:
        scale = (MAX_PIXELS / found.pixels) ** 0.5
        fit = f"{max(1, int(found.width * scale)):,} x {max(1, int(found.height * scale)):,}"
        size = f"the image has {found.width:,} x {found.height:,} pixels; at most {MAX_PIXELS:,}"
        raise ImageTooLarge(f"{size}: scale it down, to {fit} or less")
    return found


def _jpeg_outline(content: bytes) -> Outline:
    """Read the segments; bytes between two of them belong to a scan.

    From the first scan on, the scans' markers are only counted.  If there are too many, which may be in other data, the
    segments are read one by one.
    """
    width = height = scans = offset = fill = 0
    for _ in range(MAX_SEGMENTS):
        found = _JPEG_MARKER.search(content, offset)
        fill += (found.start() if found else len(content)) - offset
        if not scans and fill > MAX_FILL_BYTES:
            raise ImageError(f"the image is damaged: it has more than {MAX_FILL_BYTES:,} bytes between its segments")
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
    """Return width and height of the canvas, or of the only frame of a file without a canvas."""
    kind, data = content[12:16], content[20:30]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[4:7], "little"), 1 + int.from_bytes(data[7:10], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(data[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return int.from_bytes(data[6:8], "little") & 0x3FFF, int.from_bytes(data[8:10], "little") & 0x3FFF


def _only_pixels(content: bytes) -> bytes:
    """Return a PNG without texts, profiles and times, which may be damaged, or huge after decompression.

    Raises:
        ImageTooLarge: more than `MAX_CHUNKS` chunks are left.
    """
    parts, offset = [content[:8]], 8
    while offset < len(content):
        end, name = offset + 12 + int.from_bytes(content[offset : offset + 4], "big"), content[offset + 4 : offset + 8]
        is_whole = zlib.crc32(content[offset + 4 : end - 4]) == int.from_bytes(content[end - 4 : end], "big")
        if name[:1].isupper() or name == b"tRNS" or (name == b"eXIf" and is_whole):
            parts.append(content[offset:end])
            if len(parts) > MAX_CHUNKS:
                raise ImageTooLarge(f"the image has more than {MAX_CHUNKS:,} chunks")
        offset = len(content) if name == b"IEND" else end
    return b"".join(parts)


def decode_image(content: bytes, shape: tuple[int, int, int]) -> np.ndarray:
    """Decode the first frame of a PNG, JPEG or WebP file to uint8 [C, H, W].

    The image is turned upright by its EXIF orientation, put on black if it is transparent, converted to grey (C = 1) or
    RGB (C = 3), cut to the centre with the aspect of `shape`, and resized (bilinear, antialiased).  An image that
    already has the size keeps its exact pixels, so that a test image sent as a file gives what `evaluate` computes.
    Metadata that can't be read is ignored.

    Raises:
        ImageError: the file is empty, in another format, or damaged.
        ImageTooLarge: it has more pixels than `MAX_PIXELS`, or more scans than `MAX_SCANS`.
        MemoryError: the image needs more memory than this process may use.
    """
    if not content:
        raise ImageError("the file is empty; expected a PNG, JPEG or WebP image")
    header = outline(content)
    kind = next((name for name, beginning in _BEGINNINGS.items() if beginning.match(content)), "")
    if kind not in ("PNG", "JPEG", "WebP"):
        advice = f"; it is {kind}: save it as one of these" if kind else ""
        raise ImageError(f"the file is not a PNG, JPEG or WebP image{advice}")
    if kind == "PNG":
        content = _only_pixels(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's own size warnings; the cap below is ours
        try:
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                if image.width * image.height > header.pixels:
                    raise ImageError("the image is damaged: it has more pixels than its header says")
                return fit_picture(image, shape)
        except (ImageError, MemoryError):
            raise
        except Image.DecompressionBombError:
            raise ImageTooLarge(f"the image has more pixels than {MAX_PIXELS:,}") from None
        except UnidentifiedImageError:
            raise ImageError(f"the image is damaged: it begins as {kind}, but its header can't be read") from None
        except Exception as error:  # noqa: BLE001  (decoders raise almost anything on damaged input)
            # Pillow reports cut PNG and JPEG files; a WebP file begins with its length
            is_cut = content.startswith(b"RIFF") and len(content) < 8 + int.from_bytes(content[4:8], "little")
            is_cut |= "truncated" in str(error).lower()
            what = "it ends too early" if is_cut else "its pixels can't be decoded"
            raise ImageError(f"the image is damaged: {what}") from None


def fit_picture(image: Image.Image, shape: tuple[int, int, int]) -> np.ndarray:
    """Convert an opened picture to uint8 [C, H, W], as `decode_image` describes; own data are packed so, too."""
    channels, height, width = shape
    mode = "L" if channels == 1 else "RGB"
    # a JPEG can be decoded at a fraction of its size, here at least twice the needed size
    image.draft(None, (2 * max(width, height), 2 * max(width, height)))
    fitted = crop_and_resize(_resizable(turn_upright(image), mode), (width, height))
    if fitted.mode in ("LA", "RGBA"):  # put transparency on black
        layer = fitted.convert("RGBA")
        fitted = Image.alpha_composite(Image.new("RGBA", layer.size, (0, 0, 0, 255)), layer)
    pixels = np.asarray(fitted.convert(mode), dtype=np.uint8)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def turn_upright(image: Image.Image) -> Image.Image:
    """Turn an image as its EXIF orientation says; metadata that can't be read are ignored."""
    image.load()  # turns a TIFF itself
    try:
        turn = _TURNS.get(image.getexif().get(ExifTags.Base.Orientation))
    except Exception:  # noqa: BLE001  (damaged metadata raises almost anything, and doesn't affect the pixels)
        turn = None
    return image if turn is None else image.transpose(turn)


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


def crop_and_resize(
    image: Image.Image, size: tuple[int, int], filtering: Image.Resampling = Image.Resampling.BILINEAR
) -> Image.Image:
    """Crop to the centre with the aspect of `size`, and resize; unchanged if it already has the size."""
    if image.size == size:
        return image
    scale = min(image.width / size[0], image.height / size[1])
    left, top = max(0.0, (image.width - scale * size[0]) / 2), max(0.0, (image.height - scale * size[1]) / 2)
    box = (left, top, image.width - left, image.height - top)
    # Pillow's first, coarse step would average pixels with any filter, and a mask's are numbers of classes.
    gap = None if filtering is Image.Resampling.NEAREST else 2.0
    return image.resize(size, filtering, box=box, reducing_gap=gap)
