"""Hostile and unusual uploads, each with its expected status, generated on the fly."""

import io
import pickle
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image, PngImagePlugin

SIZE = (33, 29)


@dataclass(frozen=True)
class Hostile:
    name: str
    content: bytes
    status: int
    words: str = ""


def picture(mode: str = "RGB", size: tuple[int, int] = SIZE) -> Image.Image:
    pixels = np.random.default_rng(7).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def encode(kind: str, image: Image.Image | None = None, **options: object) -> bytes:
    buffer = io.BytesIO()
    (image or picture()).save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_of(
    width: int, height: int, *, depth: int = 8, colour: int = 2, data: bytes = b"", is_interlaced: bool = False
) -> bytes:
    """Make a PNG whose header may claim any size."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, is_interlaced)
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    return start + chunk(b"IDAT", data or zlib.compress(bytes(64))) + chunk(b"IEND", b"")


def within_png(*chunks: bytes) -> bytes:
    """Make a valid PNG with these chunks before its pixels."""
    whole = encode("PNG")
    return whole[:33] + b"".join(chunks) + whole[33:]


def within_jpeg(*segments: bytes) -> bytes:
    """Make a valid JPEG with these segments after its first marker."""
    whole = encode("JPEG")
    return whole[:2] + b"".join(segments) + whole[2:]


def segment(kind: int, data: bytes) -> bytes:
    return b"\xff" + bytes([kind]) + struct.pack(">H", len(data) + 2) + data


@cache
def jpeg_of_scans(side: int, scans: int) -> bytes:
    """Make a progressive JPEG with `scans` scans by repeating the last."""
    whole = encode("JPEG", Image.new("RGB", (side, side), (120, 30, 200)), progressive=True, quality=50)
    last = whole.rindex(b"\xff\xda")
    return whole[:-2] + (scans - whole.count(b"\xff\xda")) * whole[last:-2] + b"\xff\xd9"


def interlaced(side: int) -> bytes:
    """Make a black one-bit PNG in the seven passes of Adam7."""
    passes = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
    sizes = [(-(-(side - left) // right), -(-(side - top) // down)) for left, top, right, down in passes]
    data = zlib.compress(bytes(sum(rows * (1 + (columns + 7) // 8) for columns, rows in sizes)))
    return png_of(side, side, depth=1, colour=0, data=data, is_interlaced=True)


def jpeg_of(width: int, height: int) -> bytes:
    """Make a JPEG whose frame header claims another size."""
    content = bytearray(encode("JPEG"))
    place = content.index(b"\xff\xc0")
    content[place + 5 : place + 9] = struct.pack(">HH", height, width)
    return bytes(content)


def webp_of(width: int, height: int) -> bytes:
    """Make an extended WebP whose canvas has the claimed size."""
    content = bytearray(encode("WEBP", picture("RGBA"), lossless=True, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0\0\0"))
    place = content.index(b"VP8X") + 8
    content[place + 4 : place + 10] = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return bytes(content)


def animated(kind: str) -> bytes:
    frames = [picture(size=(20, 20)).rotate(90 * turn) for turn in range(3)]
    return encode(kind, frames[0], save_all=True, append_images=frames[1:], duration=50)


def odd_but_fine() -> Iterator[Hostile]:
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        image = (
            Image.fromarray(np.arange(33 * 29, dtype=np.uint16).reshape(29, 33)) if mode == "I;16" else picture(mode)
        )
        yield Hostile(f"png {mode}", encode("PNG", image), 200)
    for mode in ("L", "RGB", "CMYK"):
        yield Hostile(f"jpeg {mode}", encode("JPEG", picture(mode)), 200)
        yield Hostile(f"progressive jpeg {mode}", encode("JPEG", picture(mode), progressive=True), 200)
    translucent = picture("RGBA")
    translucent.putalpha(picture("L"))
    for image in (picture(), translucent):
        yield Hostile(f"webp {image.mode}", encode("WEBP", image), 200)
        yield Hostile(f"lossless webp {image.mode}", encode("WEBP", image, lossless=True), 200)
    for size in ((1, 1), (1, 3000), (3000, 1), (2, 2), (400, 150)):
        yield Hostile(f"png {size}", encode("PNG", picture(size=size)), 200)
        yield Hostile(f"jpeg {size}", encode("JPEG", picture(size=size)), 200)
    for orientation in range(10):
        exif = Image.Exif()
        exif[0x0112] = orientation
        yield Hostile(f"exif orientation {orientation}", encode("JPEG", exif=exif), 200)
    yield Hostile("broken exif", encode("JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff"), 200)
    yield Hostile("transparent palette", encode("PNG", picture("P"), transparency=3), 200)
    yield Hostile("palette with alpha", encode("PNG", picture("P"), transparency=bytes(range(200))), 200)
    yield Hostile("broken colour profile", encode("PNG", icc_profile=b"not a profile" * 100), 200)
    for kind in ("PNG", "WEBP"):
        yield Hostile(f"animated {kind}", animated(kind), 200)
    yield Hostile("png with a zip behind it", encode("PNG") + archive(), 200)
    yield Hostile("png with a script behind it", encode("PNG") + b"<script>alert(1)</script>", 200)
    yield Hostile("jpeg with a page behind it", encode("JPEG") + b"<html>" * 50, 200)
    yield Hostile("jpeg with a script as comment", encode("JPEG", comment=b"<?php system($_GET[0]); ?>"), 200)
    notes = PngImagePlugin.PngInfo()
    notes.add_text("note", "x" * 2000)
    yield Hostile("png with a long note", encode("PNG", pnginfo=notes), 200)


def broken_metadata() -> Iterator[Hostile]:
    """Only metadata are broken, so these are answered."""
    kinds = (b"tEXt", b"zTXt", b"iTXt", b"iCCP", b"eXIf", b"pHYs", b"gAMA", b"cHRM", b"sRGB", b"tIME", b"acTL", b"sPLT")
    for kind in kinds:
        for data in (b"", b"x", b"x\0\5noise", b"Exif\0\0garbage"):
            yield Hostile(f"{kind!r} of {data!r}", within_png(chunk(kind, data)), 200)
        yield Hostile(f"{kind!r} of a wrong checksum", within_png(chunk(kind, b"x\0y")[:-1] + b"!"), 200)
    for metadata in ({"exif": b"Exif\0\0garbage"}, {"icc_profile": b"noise"}, {"xmp": b"<noise"}):
        for format_ in ("JPEG", "WEBP"):
            yield Hostile(f"{format_} with {metadata}", encode(format_, **metadata), 200)


def archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("../../evil", "x" * 100)
    return buffer.getvalue()


def other_formats() -> Iterator[Hostile]:
    for kind in ("GIF", "BMP", "TIFF", "ICO", "PPM", "TGA", "PCX", "SGI", "DDS", "PDF", "EPS", "JPEG2000"):
        size = (32, 32) if kind == "ICO" else SIZE
        yield Hostile(f"{kind} under the name of png", encode(kind, picture(size=size)), 422, "not a PNG, JPEG or WebP")
    texts = {
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        "xml bomb": b'<!DOCTYPE a [<!ENTITY b "bbbb">]><svg>&b;</svg>',
        "html": b"<html><script>alert(1)</script></html>",
        "json": b'{"inputs": []}',
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n(/etc/passwd) (r) file",
        "psd": b"8BPS\0\x01" + bytes(200),
        "zip": archive(),
        "pickle": pickle.dumps([1, 2, 3]),
        "elf": b"\x7fELF" + bytes(100),
        "shell": b"#!/bin/sh\nrm -rf /\n",
        "gzip": b"\x1f\x8b\x08" + bytes(60),
        "gif and script at once": b"GIF89a/*" + bytes(20) + b"*/=1;alert(1)",
        "pdf before a png": b"%PDF-1.4\n" + encode("PNG"),
        "space before a png": b" " + encode("PNG"),
        "zeros": bytes(5000),
        "one byte": b"\x89",
        "noise": np.random.default_rng(0).bytes(4000),
    }
    yield Hostile("empty", b"", 422, "the file is empty; expected a PNG, JPEG or WebP image")
    for name, content in texts.items():
        yield Hostile(name, content, 422, "the file is not a PNG, JPEG or WebP image")
    boxes = {"HEIC": b"\0\0\0\x18ftypheic", "AVIF": b"\0\0\0\x1cftypavif", "JPEG XL": b"\xff\x0a", "GIF": b"GIF89a"}
    for name, content in boxes.items():
        yield Hostile(name, content + bytes(99), 422, f"it is {name}: save it as one of these")


def damaged() -> Iterator[Hostile]:
    for kind in ("PNG", "JPEG", "WEBP"):
        whole = encode(kind, picture(size=(90, 70)))
        for share in (0.03, 0.2, 0.4, 0.6, 0.8):
            yield Hostile(f"{kind} cut at {share}", whole[: int(share * len(whole))], 422, "damaged: it ends too early")
    whole = encode("PNG")
    no_header, no_pixels = "it begins as PNG, but its header can't be read", "its pixels can't be decoded"
    for place in (17, 24, 25, 30, 60, 200):
        flipped = bytearray(whole)
        flipped[place] ^= 0xFF
        yield Hostile(f"png with byte {place} flipped", bytes(flipped), 422, no_header if place < 33 else no_pixels)
    for width, height in ((0, 0), (0, 5), (5, 0)):
        yield Hostile(f"png of {width} x {height}", png_of(width, height), 422, no_header)
    for depth, colour in ((3, 2), (16, 3), (8, 1), (8, 7), (255, 255)):
        yield Hostile(f"png of depth {depth}, colour {colour}", png_of(8, 8, depth=depth, colour=colour), 422)
    yield Hostile("palette png without palette", png_of(8, 8, colour=3, data=zlib.compress(b"\x05" * 72)), 422)
    yield Hostile("png whose pixels are noise", png_of(8, 8, data=b"x" * 80), 422)
    yield Hostile("png with too few pixels", png_of(800, 800, data=zlib.compress(bytes(10))), 422)
    yield Hostile("png without pixels", encode("PNG")[:33] + chunk(b"IEND", b""), 422)
    yield Hostile("png with an endless chunk", encode("PNG")[:33] + b"\x7f\xff\xff\xffIDAT" + bytes(50), 422)
    bomb = chunk(b"zTXt", b"note\0\0" + zlib.compress(bytes(8_000_000)))
    yield Hostile("png with a bomb of text", encode("PNG")[:33] + bomb + encode("PNG")[33:], 200)


def bombs() -> Iterator[Hostile]:
    for width, height in ((50_000, 50_000), (4_001, 4_000), (16_000_001, 1), (1, 16_000_001), (2**31 - 1, 1)):
        yield Hostile(f"png bomb {width} x {height}", png_of(width, height), 413, "16,000,000: scale it down, to ")
    packed = zlib.compress(bytes(40_000_000))
    yield Hostile("png bomb with its pixels", png_of(20_000, 20_000, colour=0, data=packed), 413, "pixels")
    for width, height in ((65_500, 65_500), (65_500, 300)):
        yield Hostile(f"jpeg bomb {width} x {height}", jpeg_of(width, height), 413, "pixels")
    yield Hostile("webp bomb", webp_of(16_383, 16_383), 413, "pixels")
    yield Hostile("file over the limit", encode("PNG") + bytes(300_001), 413, "larger than 300,000 bytes")


def laborious() -> Iterator[Hostile]:
    """Small files that need much work."""
    yield Hostile("progressive jpeg of 2,000 scans", jpeg_of_scans(4000, 2000), 413, "more than 100 scans")
    yield Hostile("small jpeg of 101 scans", jpeg_of_scans(32, 101), 413, "more than 100 scans")
    yield Hostile("small jpeg of 100 scans", jpeg_of_scans(32, 100), 200)
    yield Hostile("jpeg with scans in its thumbnail", within_jpeg(segment(0xE1, b"\xff\xda\0\x08" * 200)), 200)
    yield Hostile("jpeg with scans behind its end", encode("JPEG") + b"\xff\xda\0\x08" * 200, 200)
    yield Hostile("jpeg of 12,000 segments", within_jpeg(segment(0xFE, b"") * 12_000), 413, "1,000 segments")
    yield Hostile("jpeg of 90,000 fill bytes", b"\xff\xd8" + b"\xff" * 90_000, 422, "between its segments")
    filled = within_jpeg(*[b"\xff" * 9000 + segment(0xFE, b"")] * 9)
    yield Hostile("jpeg with fill bytes before each of its segments", filled, 422, "between its segments")
    crowded = b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + bytes(65_000)
    yield Hostile("jpeg with 65,535 entries of exif", within_jpeg(segment(0xE1, crowded)), 200)
    sizes = b"".join(segment(0xC0, b"\x08" + struct.pack(">HH", side, side)) for side in (5, 9))
    yield Hostile("jpeg with three frame headers", within_jpeg(sizes), 422)
    yield Hostile("interlaced png", interlaced(33), 200)
    yield Hostile("interlaced png of 16 megapixels", interlaced(4000), 200)
    yield Hostile("png of 16 megapixels in a row", png_of(16_000_000, 1, colour=0, data=_zeros(16_000_001)), 200)
    yield Hostile("png of 16 megapixels in a column", png_of(1, 16_000_000, colour=0, data=_zeros(32_000_000)), 200)
    notes = chunk(b"zTXt", b"note\0\0" + _zeros(1_000_000))
    yield Hostile("png with 60 notes of a megabyte", within_png(*[notes] * 60), 200)
    yield Hostile("png with 80 notes of a megabyte", within_png(*[notes] * 80), 200)
    note = chunk(b"iTXt", b"note\0\1\0\0\0" + _zeros(8_000_000))
    yield Hostile("png with a bomb of foreign text", within_png(note), 200)
    yield Hostile("png with a bomb of a profile", within_png(chunk(b"iCCP", b"x\0\0" + _zeros(90_000_000))), 200)
    yield Hostile("png of 20,000 chunks", within_png(*[chunk(b"abCd", b"")] * 20_000), 200)
    parts = within_png(*[chunk(b"IDAT", b"")] * 12_000)
    yield Hostile("png of 12,000 empty parts of its pixels", parts, 413, "more than 10,000 chunks")
    grown = chunk(b"IHDR", struct.pack(">IIBBBBB", 9000, 9000, 8, 2, 0, 0, 0))
    yield Hostile("png with a second header", within_png(grown), 422, "more pixels than its header says")
    frames = [Image.new("RGB", (200, 200), (number, 0, 0)) for number in range(200)]
    for kind in ("PNG", "WEBP"):
        content = encode(kind, frames[0], save_all=True, append_images=frames[1:])
        yield Hostile(f"{kind} of 200 frames", content, 200)


def _zeros(count: int) -> bytes:
    return zlib.compress(bytes(count))


def hostile_images() -> list[Hostile]:
    return [*odd_but_fine(), *broken_metadata(), *other_formats(), *damaged(), *bombs(), *laborious()]
