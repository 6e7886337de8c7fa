"""Read zip and tar archives member by member, without unpacking them, and reject malicious ones.

Every entry is checked before it is read: for names that lead out of the archive, links and devices, duplicate names,
and more bytes than an honest archive of that size unpacks to.
"""

from __future__ import annotations

import io
import lzma
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
from PIL import Image, UnidentifiedImageError

from stages.datasets.manifest import DatasetError, chunks_of
from stages.datasets.packed import ImageSet
from stages.images import crop_and_resize, fit_picture, turn_upright

# Pictures hardly compress and text does tenfold; labels as bytes compress more, but are few.
MAX_RATIO = 64
ALWAYS_ALLOWED_BYTES = 1 << 24
DRIVE = re.compile(r"^[A-Za-z]:")


@dataclass(frozen=True, kw_only=True)
class Member:
    """A file in an archive, whose content can be read until the walk continues.

    `crc32` is the content's checksum from a zip's directory; None in a tar.
    """

    archive: Path
    name: str
    size_bytes: int
    crc32: int | None
    open_content: Callable[[], IO[bytes]]

    @property
    def where(self) -> str:
        return f"{self.archive}, {self.name}"

    def chunks(self) -> Iterator[bytes]:
        """Yield the content in chunks."""
        try:
            with closing(self.open_content()) as content:
                yield from chunks_of(content)
        except UNREADABLE as error:
            raise DatasetError(f"{self.where}: can't be read ({error})") from None

    def read(self) -> bytes:
        return b"".join(self.chunks())


UNREADABLE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError),
    # zipfile and tarfile read damaged headers without a check, and can't decrypt.
    *(ValueError, LookupError, TypeError, ArithmeticError, RuntimeError, MemoryError),
)


def walk(archive: Path) -> Iterator[Member]:
    """Yield the files of an archive in its own order."""
    is_zip = archive.suffix == ".zip"
    limit = ALWAYS_ALLOWED_BYTES + MAX_RATIO * archive.stat().st_size
    names: set[str] = set()
    unpacked_bytes = 0
    try:
        for member in _zip_members(archive) if is_zip else _tar_members(archive):
            unpacked_bytes += member.size_bytes
            if unpacked_bytes > limit:
                raise DatasetError(f"{member.where}: unpacks to more than {limit:,} bytes")
            if member.name in names:
                raise DatasetError(f"{member.where}: occurs twice")
            names.add(member.name)
            yield member
    except UNREADABLE as error:
        raise DatasetError(f"{archive}: not a readable {'zip' if is_zip else 'tar'} archive ({error})") from None


def _zip_members(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as content:
        for info in content.infolist():
            # The upper half holds the Unix mode if the archive was made on Unix.
            kind = stat.S_IFMT(info.external_attr >> 16)
            if not info.is_dir():
                yield Member(
                    archive=archive,
                    name=_safe_name(info.filename, archive, is_file=kind in (0, stat.S_IFREG)),
                    size_bytes=info.file_size,
                    crc32=info.CRC,
                    open_content=partial(content.open, info),
                )


def _tar_members(archive: Path) -> Iterator[Member]:
    with tarfile.open(archive) as content:
        for info in content:
            if not info.isdir():
                yield Member(
                    archive=archive,
                    name=_safe_name(info.name, archive, is_file=info.isreg()),
                    size_bytes=info.size,
                    crc32=None,
                    open_content=partial(_open_tar_member, content, info),
                )


def _open_tar_member(content: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    file = content.extractfile(info)
    assert file is not None, "a regular member has content"
    return file


def _safe_name(name: str, archive: Path, *, is_file: bool) -> str:
    path = PurePosixPath(name)
    if not is_file:
        raise DatasetError(f"{archive}, {name}: a link or a device; a data set has files only")
    if path.is_absolute() or ".." in path.parts or "\\" in name or DRIVE.match(name) or not path.parts:
        raise DatasetError(f"{archive}, {name!r}: the name leads out of the archive")
    return str(path)


FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
# No picture of these sets has more, and this many are decoded in a fraction of a second.
MAX_PIXELS = 64_000_000


def decode_square(content: bytes, side: int, where: str) -> np.ndarray:
    """Decode a published JPEG to RGB uint8 [3, side, side]: resize its shorter side (bilinear) and crop the centre.

    A picture that is already `side` x `side` keeps its pixels.  Grey ones get three equal channels.
    """
    with _opened(content, where, ("JPEG",)) as picture:
        return np.asarray(_middle(picture.convert("RGB"), side)).transpose(2, 0, 1)


def decode_own(content: bytes, shape: tuple[int, int, int], where: str, *, is_mask: bool = False) -> np.ndarray:
    """Decode a user's own picture to uint8 `shape` [C, H, W], exactly as the service decodes an upload.

    A mask has one channel with class numbers, which are never interpolated.
    """
    with _opened(content, where, FORMATS) as picture:
        if picture.mode[:1] in "IF":
            raise DatasetError(f"{where}: has more than 8 bits per channel ({picture.mode}); convert it to 8 bits")
        if not is_mask:
            return fit_picture(picture, shape)
        if picture.mode not in ("1", "L", "P"):
            raise DatasetError(f"{where}: has mode {picture.mode}; a mask is grey or has a palette, a class per value")
        mask = crop_and_resize(turn_upright(picture), (shape[2], shape[1]), Image.Resampling.NEAREST)
        return np.asarray(mask, dtype=np.uint8)[None]


@contextmanager
def _opened(content: bytes, where: str, formats: tuple[str, ...]) -> Iterator[Image.Image]:
    """Open a picture in one of some formats.

    Raises:
        DatasetError: it is damaged, in another format, or too large.
    """
    try:
        with Image.open(io.BytesIO(content), formats=formats) as picture:
            width, height = picture.size
            if width * height > MAX_PIXELS:
                raise DatasetError(f"{where}: {width} x {height} pixels; no picture here has more than {MAX_PIXELS:,}")
            yield picture
    except DatasetError:
        raise
    except Exception as error:  # noqa: BLE001  (Pillow's decoders don't say which errors a damaged picture raises)
        kind = "JPEG " if formats == ("JPEG",) else ""
        raise DatasetError(f"{where}: not a complete {kind}picture ({_describe(error)})") from None


def _describe(error: Exception) -> str:
    """Describe an error of Pillow without the address of an object, which differs at every run."""
    return "of no known format" if isinstance(error, UnidentifiedImageError) else str(error) or type(error).__name__


def upright_size(content: bytes) -> tuple[int, int]:
    """Return width and height of a picture that `decode_own` has read, as it is shown."""
    with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
        return turn_upright(picture).size


def size_of(member: Member) -> tuple[int, int]:
    """Return width and height of a JPEG file in an archive, from its header only."""
    try:
        with closing(member.open_content()) as content, Image.open(content, formats=("JPEG",)) as picture:
            return picture.size
    except (*UNREADABLE, SyntaxError, Image.DecompressionBombError) as error:
        raise DatasetError(f"{member.where}: not a complete JPEG picture ({_describe(error)})") from None


def _middle(picture: Image.Image, side: int) -> Image.Image:
    width, height = picture.size
    shorter = min(width, height)
    if shorter != side:
        scaled = (side * width // shorter, side * height // shorter)
        if scaled[0] * scaled[1] > MAX_PIXELS:
            raise ValueError(f"{width} x {height} pixels would become {scaled[0]:,} x {scaled[1]:,}")
        picture = picture.resize(scaled, Image.Resampling.BILINEAR)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    return picture.crop((left, top, left + side, top + side))


def read_pictures(archive: Path, labels: Mapping[str, int], side: int) -> ImageSet:
    """Read the pictures of an archive that have a label, in its order, at `side` x `side` pixels."""
    # One growing buffer, because joining a list of pictures would take twice the memory.
    pixels, kept = bytearray(), []
    for member in walk(archive):
        if member.name in labels:
            pixels += decode_square(member.read(), side, member.where).tobytes()
            kept.append(labels[member.name])
    if not kept:
        raise DatasetError(f"{archive}: has no labelled picture of this split")
    images = np.frombuffer(pixels, dtype=np.uint8).reshape(-1, 3, side, side)
    return ImageSet(images=images, labels=np.array(kept, dtype=np.int64))
