"""Pictures from compressed files: decoded, resized to one size, stacked as in the packed form."""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import numpy as np
from PIL import Image

from stages.datasets.archive import UNREADABLE, Member, walk
from stages.datasets.packed import ImageSet
from stages.datasets.verified import DatasetError

# More than any picture of these sets has, and decoded in a fraction of a second.
MAX_PIXELS = 64_000_000


def decode_square(content: bytes, side: int, where: str) -> np.ndarray:
    """RGB uint8 [3, side, side] of a JPEG file: its shorter side resized to `side` (bilinear), the middle kept.

    A picture that is `side` x `side` already keeps its pixels.  Grey ones get three equal channels.
    """
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG",)) as picture:
            width, height = picture.size
            if width * height > MAX_PIXELS:
                raise DatasetError(f"{where}: {width} x {height} pixels; no picture here has more than {MAX_PIXELS:,}")
            square = _middle(picture.convert("RGB"), side)
    except (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError) as error:
        raise DatasetError(f"{where}: not a whole JPEG picture ({error})") from None
    return np.asarray(square, dtype=np.uint8).transpose(2, 0, 1)


def size_of(member: Member) -> tuple[int, int]:
    """Width and height of a JPEG file in an archive, from its header only."""
    try:
        with closing(member.open_content()) as content, Image.open(content, formats=("JPEG",)) as picture:
            return picture.size
    except (*UNREADABLE, RuntimeError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError) as error:
        raise DatasetError(f"{member.where}: not a whole JPEG picture ({error})") from None


def _middle(picture: Image.Image, side: int) -> Image.Image:
    width, height = picture.size
    shorter = min(width, height)
    if shorter != side:
        scaled = (side * width // shorter, side * height // shorter)
        picture = picture.resize(scaled, Image.Resampling.BILINEAR)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    return picture.crop((left, top, left + side, top + side))


def read_pictures(archive: Path, labels: Mapping[str, int], side: int) -> ImageSet:
    """The pictures of an archive that have a label, in its order, at `side` x `side` pixels."""
    # One growing buffer: a list of pictures would hold them twice in the end.
    pixels, kept = bytearray(), []
    for member in walk(archive):
        if member.name in labels:
            pixels += decode_square(member.read(), side, member.where).tobytes()
            kept.append(labels[member.name])
    if not kept:
        raise DatasetError(f"{archive}: has no labelled picture of this split")
    images = np.frombuffer(pixels, dtype=np.uint8).reshape(-1, 3, side, side)
    return ImageSet(images=images, labels=np.array(kept, dtype=np.int64))
