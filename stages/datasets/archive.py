"""Zip and tar archives, member by member: nothing is unpacked to where its name says, and traps in them are refused.

Every entry is checked before any is read: for names that lead elsewhere, links and devices, duplicate names, and more
bytes than an honest archive of that size unpacks to.
"""

from __future__ import annotations

import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

from stages.datasets.verified import DatasetError, chunks_of

# Pictures hardly shrink and text shrinks tenfold; labels as bytes shrink more, but are few.
MAX_RATIO = 64
ALWAYS_ALLOWED_BYTES = 1 << 24
DRIVE = re.compile(r"^[A-Za-z]:")


@dataclass(frozen=True, kw_only=True)
class Member:
    """A file in an archive.  Its content can be read until the walk goes on.

    `crc32` is that of the content in a zip's directory; None in a tar.
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
        """The content, in chunks."""
        try:
            with closing(self.open_content()) as content:
                yield from chunks_of(content)
        # zipfile reports by a RuntimeError that it can't decrypt or decompress.
        except (*UNREADABLE, RuntimeError) as error:
            raise DatasetError(f"{self.where}: can't be read ({error})") from None

    def read(self) -> bytes:
        return b"".join(self.chunks())


UNREADABLE = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, OSError)


def walk(archive: Path) -> Iterator[Member]:
    """The files of an archive in its own order."""
    is_zip = archive.suffix == ".zip"
    limit = ALWAYS_ALLOWED_BYTES + MAX_RATIO * archive.stat().st_size
    names: set[str] = set()
    unpacked_bytes = 0
    try:
        for member in _zip_members(archive) if is_zip else _tar_members(archive):
            unpacked_bytes += member.size_bytes
            if unpacked_bytes > limit:
                raise DatasetError(f"{member.where}: unpacks to more than {limit:,} bytes up to here")
            if member.name in names:
                raise DatasetError(f"{member.where}: comes twice")
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
