from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stages.datasets.archive import decode_square, read_pictures
from stages.datasets.verified import DatasetError
from tests.datasets.archives import write_archive


def jpeg(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=95, subsampling=0)
    return buffer.getvalue()


def stripes(height: int, width: int) -> np.ndarray:
    """Red grows from left to right, green from top to bottom."""
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    pixels[:, :, 0] = np.linspace(0, 255, width)
    pixels[:, :, 1] = np.linspace(0, 255, height)[:, None]
    return pixels


def test_picture_of_the_right_size_keeps_its_pixels() -> None:
    content = jpeg(stripes(64, 64))
    expected = np.asarray(Image.open(io.BytesIO(content)))
    np.testing.assert_array_equal(decode_square(content, 64, "here"), expected.transpose(2, 0, 1))


@pytest.mark.parametrize(("height", "width"), [(160, 213), (213, 160)], ids=["wide", "tall"])
def test_shorter_side_is_fitted_and_the_middle_kept(height: int, width: int) -> None:
    square = decode_square(jpeg(stripes(height, width)), 80, "here").astype(int)
    assert square.shape == (3, 80, 80)
    # As much is missing on one side as on the other, in the longer direction only.
    red, green = square[0, 40], square[1, :, 40]
    cut = (1 - 160 / 213) / 2 * 255
    for ramp, is_cut in ((red, width > height), (green, height > width)):
        assert abs(ramp[0] - (cut if is_cut else 0)) < 5
        assert abs(255 - ramp[-1] - (cut if is_cut else 0)) < 5


def test_shrinking_averages_instead_of_picking() -> None:
    board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    small = decode_square(jpeg(np.stack([board] * 3, axis=2)), 32, "here")
    assert abs(small.astype(int) - 127).max() < 10


def test_grey_picture_gets_three_equal_channels() -> None:
    square = decode_square(jpeg(stripes(64, 64)[:, :, 0]), 64, "here")
    np.testing.assert_array_equal(square[0], square[1])
    np.testing.assert_array_equal(square[0], square[2])


def png() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(stripes(8, 8)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [b"", b"<!doctype html>", jpeg(stripes(64, 64))[:-200], jpeg(stripes(64, 64))[:30], png()],
    ids=["empty", "page", "cut", "header", "png"],
)
def test_what_is_no_whole_jpeg_is_named(content: bytes) -> None:
    with pytest.raises(DatasetError, match="archive, picture: not a whole JPEG picture"):
        decode_square(content, 64, "archive, picture")


def resized(content: bytes, height: int, width: int) -> bytes:
    """The same file claiming other dimensions, in its frame header."""
    at = content.index(b"\xff\xc0") + 5
    return content[:at] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + content[at + 4 :]


@pytest.mark.parametrize(("height", "width"), [(9000, 8000), (60000, 60000)])
def test_picture_that_unpacks_to_too_many_pixels_is_refused(height: int, width: int) -> None:
    with pytest.raises(DatasetError, match="pixels"):
        decode_square(resized(jpeg(stripes(64, 64)), height, width), 64, "here")


@pytest.mark.parametrize("suffix", [".zip", ".tgz"])
def test_pictures_come_in_the_order_of_the_archive(tmp_path: Path, suffix: str) -> None:
    pictures = {f"{name}.JPEG": stripes(8, 8) // (number + 1) for number, name in enumerate("bcad")}
    archive = write_archive(tmp_path / f"a{suffix}", [(name, jpeg(pixels)) for name, pixels in pictures.items()])
    images = read_pictures(archive, {"a.JPEG": 7, "b.JPEG": 5, "d.JPEG": 7}, 8)
    assert images.labels.tolist() == [5, 7, 7]
    for image, name in zip(images.images, ["b.JPEG", "a.JPEG", "d.JPEG"], strict=True):
        np.testing.assert_array_equal(image, decode_square(jpeg(pictures[name]), 8, name))


def test_archive_without_a_labelled_picture_is_named(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "a.zip", [("a.JPEG", jpeg(stripes(8, 8)))])
    with pytest.raises(DatasetError, match="has no labelled picture"):
        read_pictures(archive, {}, 8)
