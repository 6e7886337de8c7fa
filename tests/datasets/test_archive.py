"""Malicious and damaged archives, and pictures in archives."""

import io
import tarfile
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stages.datasets.archive import decode_square, read_pictures, walk
from stages.datasets.manifest import DatasetError
from tests.datasets.archives import write_archive, write_tar_special, write_zip, write_zip_link

SUFFIXES = (".zip", ".tar.gz")


def contents(archive: Path) -> dict[str, bytes]:
    return {member.name: member.read() for member in walk(archive)}


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", ["../escaped", "a/../../escaped", "/absolute", "C:/windows", "a\\..\\escaped"])
def test_member_path_outside_the_folder_is_refused(tmp_path: Path, suffix: str, name: str) -> None:
    archive = write_archive(tmp_path / f"a{suffix}", [("good", b""), (name, b"bad")])
    with pytest.raises(DatasetError, match="the name leads out of the archive"):
        contents(archive)
    assert [path.name for path in tmp_path.iterdir()] == [archive.name]


@pytest.mark.parametrize("kind", [b"zip", tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_link_or_device_is_refused(tmp_path: Path, kind: bytes) -> None:
    name, target = "train/picture.JPEG", "../../etc/passwd"
    if kind == b"zip":
        archive = write_zip_link(tmp_path / "a.zip", name, target)
    else:
        archive = write_tar_special(tmp_path / "a.tgz", name, kind, target)
    with pytest.raises(DatasetError, match=rf"{name}: a link or a device"):
        contents(archive)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("twin", ["same", "./same"])
def test_repeated_member_is_reported(tmp_path: Path, suffix: str, twin: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile warns when writing
        archive = write_archive(tmp_path / f"a{suffix}", [("same", b"1"), (twin, b"2")])
    with pytest.raises(DatasetError, match="same: occurs twice"):
        contents(archive)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, suffix: str) -> None:
    entries = [(str(number), bytes(1 << 24)) for number in range(3)]
    path = tmp_path / f"a{suffix}"
    archive = write_zip(path, entries, zipfile.ZIP_DEFLATED) if suffix == ".zip" else write_archive(path, entries)
    assert archive.stat().st_size < 100_000
    with pytest.raises(DatasetError, match="unpacks to more than"):
        for _ in walk(archive):
            pass


def test_text_like_compression_is_not_a_bomb(tmp_path: Path) -> None:
    text = np.random.RandomState(0).bytes(17 << 19).hex().encode()
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("text", text)
    assert len(text) > (1 << 24) > (tmp_path / "a.zip").stat().st_size
    assert [member.size_bytes for member in walk(tmp_path / "a.zip")] == [len(text)]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("content", [b"", b"neither zip nor tar" * 100], ids=["empty", "other"])
def test_file_that_is_not_an_archive_is_reported(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"not a readable (zip|tar) archive"):
        contents(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_truncated_archive_is_reported(tmp_path: Path, suffix: str) -> None:
    archive = write_archive(tmp_path / f"a{suffix}", [("one", bytes(range(256)) * 100), ("two", b"2" * 5000)])
    archive.write_bytes(archive.read_bytes()[:-60])
    with pytest.raises(DatasetError):
        contents(archive)


def test_damaged_zip_member_is_reported(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "a.zip", [("one", b"right content")])
    archive.write_bytes(archive.read_bytes().replace(b"right content", b"wrong content"))
    with pytest.raises(DatasetError, match=r"a.zip, one: can't be read \(Bad CRC-32"):
        contents(archive)


def test_encrypted_member_is_reported(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "a.zip", [("one", b"secret")])
    content = bytearray(archive.read_bytes())
    content[6] |= 1  # general purpose flag of the file's own header
    content[content.index(b"PK\x01\x02") + 8] |= 1  # and of the directory
    archive.write_bytes(bytes(content))
    with pytest.raises(DatasetError, match=r"one: can't be read .*encrypted"):
        contents(archive)


def jpeg(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=95, subsampling=0)
    return buffer.getvalue()


def stripes(height: int, width: int) -> np.ndarray:
    """Return stripes: red grows from left to right, green from top to bottom."""
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
    # Both sides are cropped equally, and only along the longer dimension.
    red, green = square[0, 40], square[1, :, 40]
    cut = (1 - 160 / 213) / 2 * 255
    for ramp, is_cut in ((red, width > height), (green, height > width)):
        assert abs(ramp[0] - (cut if is_cut else 0)) < 5
        assert abs(255 - ramp[-1] - (cut if is_cut else 0)) < 5


def test_shrinking_averages_pixels() -> None:
    board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    small = decode_square(jpeg(np.stack([board] * 3, axis=2)), 32, "here")
    assert abs(small.astype(int) - 127).max() < 10


def test_grey_picture_has_three_equal_channels() -> None:
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
def test_invalid_jpeg_is_reported(content: bytes) -> None:
    with pytest.raises(DatasetError, match="archive, picture: not a complete JPEG picture"):
        decode_square(content, 64, "archive, picture")


def resized(content: bytes, height: int, width: int) -> bytes:
    """Return the file with other dimensions in its frame header."""
    at = content.index(b"\xff\xc0") + 5
    return content[:at] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + content[at + 4 :]


@pytest.mark.parametrize(("height", "width"), [(9000, 8000), (60000, 60000)])
def test_picture_with_too_many_pixels_is_refused(height: int, width: int) -> None:
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


def test_archive_without_labelled_pictures_is_reported(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "a.zip", [("a.JPEG", jpeg(stripes(8, 8)))])
    with pytest.raises(DatasetError, match="has no labelled picture"):
        read_pictures(archive, {}, 8)
