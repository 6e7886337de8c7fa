"""Uploads are preprocessed like the images in `evaluate`; `tests/service/hostile_images.py` has invalid ones."""

import io
import itertools
import math
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from stages.images import MAX_PIXELS, ImageError, decode_image, outline

RGB = (3, 32, 32)


def encode(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def noise(size: tuple[int, int], mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 4), dtype=np.uint8)
    return Image.fromarray(pixels, "RGBA" if mode != "CMYK" else "CMYK").convert(mode)


def test_png_of_the_right_size_keeps_its_pixels() -> None:
    image = noise((32, 32))
    assert np.array_equal(decode_image(encode(image), RGB), np.asarray(image).transpose(2, 0, 1))
    grey = noise((28, 28), "L")
    assert np.array_equal(decode_image(encode(grey), (1, 28, 28))[0], np.asarray(grey))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
@pytest.mark.parametrize("shape", [RGB, (1, 28, 28)], ids=["rgb", "grey"])
def test_every_mode_and_size_is_converted_to_the_input_shape(mode: str, shape: tuple[int, int, int]) -> None:
    kind = "JPEG" if mode == "CMYK" else "PNG"
    if mode.startswith("I"):
        levels = np.linspace(0, 65535, 50 * 40).reshape(40, 50)
        image = Image.fromarray(levels.astype(np.uint16))
    else:
        image = noise((50, 40), mode)
    decoded = decode_image(encode(image, kind), shape)
    assert decoded.shape == shape
    assert decoded.dtype == np.uint8
    assert decoded.std() > 5, "the content survives"


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "PNG"])
def test_colours_survive_in_every_format(kind: str) -> None:
    flat = Image.new("RGB", (64, 64), (200, 30, 60))
    assert np.abs(decode_image(encode(flat, kind), RGB).mean(axis=(1, 2)) - [200, 30, 60]).max() < 4


def test_aspect_ratio_is_kept_by_cropping_to_the_centre() -> None:
    wide = Image.new("RGB", (96, 32), (255, 0, 0))
    wide.paste((0, 255, 0), (32, 0, 64, 32))
    decoded = decode_image(encode(wide), RGB)
    assert (decoded[1] == 255).all() and (decoded[0] == 0).all()


def test_exif_orientation_is_applied() -> None:
    image = Image.new("RGB", (32, 32))
    image.paste((255, 255, 255), (0, 0, 32, 16))  # the top half is white
    exif = Image.Exif()
    exif[0x0112] = 3  # rotated by 180 degrees
    decoded = decode_image(encode(image, "JPEG", exif=exif), RGB)
    assert decoded[:, :14].mean() < 20 and decoded[:, 18:].mean() > 235


def test_transparency_is_rendered_on_black() -> None:
    clear = Image.new("RGBA", (32, 32), (255, 255, 255, 0))
    assert decode_image(encode(clear), RGB).max() == 0


def test_animation_uses_its_first_frame() -> None:
    frames = [Image.new("RGB", (32, 32), colour) for colour in ("red", "blue")]
    content = encode(frames[0], "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    assert decode_image(content, RGB)[:, 0, 0].tolist() == [255, 0, 0]


MEASURE = """
import resource, sys
from pathlib import Path
from stages.images import decode_image
content = Path(sys.argv[1]).read_bytes()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
decode_image(content, (3, 32, 32))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss counts kibibytes on Linux only")
@pytest.mark.parametrize("mode", ["RGBA", "I;16"])
def test_largest_image_needs_little_more_memory_than_its_pixels(mode: str, tmp_path: Path) -> None:
    side = math.isqrt(MAX_PIXELS)
    levels = np.full((side, side), 40_000, dtype=np.uint16)
    image = Image.fromarray(levels) if mode == "I;16" else Image.new("RGBA", (side, side), (9, 9, 9, 200))
    (tmp_path / "large.png").write_bytes(encode(image, compress_level=1))
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "large.png")]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(done.stdout) * 1024 < 10 * MAX_PIXELS, "bytes; the pixels alone take four each"


def test_shrinking_before_blending_stays_within_rounding_error() -> None:
    image = noise((640, 480), "RGBA")
    flat = Image.alpha_composite(Image.new("RGBA", image.size, (0, 0, 0, 255)), image).convert("RGB")
    expected = np.asarray(ImageOps.fit(flat, (32, 32), Image.Resampling.BILINEAR), dtype=int).transpose(2, 0, 1)
    assert np.abs(decode_image(encode(image), RGB) - expected).max() <= 12
    assert np.abs(decode_image(encode(image), RGB) - expected).mean() < 3


def test_scanning_an_outline_takes_linear_time() -> None:
    """Runs of one byte or alternating bytes must not restart the search for markers at every byte."""
    markers = (0x00, 0x01, 0xC0, 0xC4, 0xD0, 0xD8, 0xD9, 0xDA, 0xE1, 0xFE, 0xFF)
    periods = [bytes([byte]) for byte in range(256)] + [bytes(pair) for pair in itertools.product(markers, repeat=2)]
    starts = (b"\xff\xd8", b"\xff\xd8\xff\xda\x00\x02", b"\x89PNG\r\n\x1a\n", b"RIFF\x00\x00\x00\x00WEBP")
    for start, period in itertools.product(starts, periods):
        content = start + period * (40_000 // len(period))
        began = time.thread_time()
        with suppress(ImageError):
            outline(content)
        assert time.thread_time() - began < 0.2, "quadratic time takes 10 s"  # quadratic time is 10 s
