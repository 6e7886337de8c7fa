"""OpenWebText: the pages that GPT-2 was trained on, re-collected (Gokaslan, Cohen 2019); a sample of them.

An official file is a tar of `…_data.xz`, each of them a compressed tar with one file per page.
"""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Iterator
from pathlib import Path

from stages.datasets.archive import UNREADABLE, Member, walk
from stages.datasets.verified import DatasetError

MAX_PAGE_BYTES = 1 << 24
BETWEEN_PAGES = b"\n\n"


def read_sample(archive: Path, size_bytes: int) -> bytes:
    """The first `size_bytes` of the pages in their order, or all of them if there are fewer.

    Raises:
        DatasetError: the file can't be read or is a trap.
    """
    text = bytearray()
    for member in walk(archive):
        if member.name.endswith("_data.xz"):
            for page in _pages(member):
                text += page + BETWEEN_PAGES
                if len(text) >= size_bytes:
                    return bytes(text[:size_bytes])
    return bytes(text)


def _pages(member: Member) -> Iterator[bytes]:
    try:
        with tarfile.open(fileobj=io.BytesIO(member.read()), mode="r:xz") as pages:
            for info in pages:
                if info.size > MAX_PAGE_BYTES:
                    raise DatasetError(f"{member.where}, {info.name}: a page of {info.size:,} bytes")
                file = pages.extractfile(info) if info.isreg() else None
                if file is not None:
                    yield file.read()
    except (*UNREADABLE, lzma.LZMAError) as error:
        raise DatasetError(f"{member.where}: not a readable tar archive ({error})") from None
