"""Archives written member by member, both valid and malicious."""

import io
import stat
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

Entries = Sequence[tuple[str, bytes]]


def write_zip(path: Path, entries: Entries, compression: int = zipfile.ZIP_STORED) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries:
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return path


def write_tar(path: Path, entries: Entries, mode: Literal["w:gz", "w"] = "w:gz") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, content in entries:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_archive(path: Path, entries: Entries) -> Path:
    return write_zip(path, entries) if path.suffix == ".zip" else write_tar(path, entries)


def write_zip_link(path: Path, name: str, target: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, target)
    return path


def write_tar_special(path: Path, name: str, kind: bytes, target: str = "") -> Path:
    """Write a tar with one special member: a link, a device or a pipe."""
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, target
        archive.addfile(member)
    return path
