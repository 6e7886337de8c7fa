"""Packs the loose files of a mirror into the archive that the reader knows; the same files give the same bytes."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from stages.datasets.mirror import BadMirror, MirrorFile
from stages.datasets.verified import Pin, digest_file
from stages.faults import named


def pack_loose(folder: Path, files: Mapping[str, MirrorFile], target: Path) -> None:
    """Write the files below `folder` into the archive `target`, each one checked, by name.

    Raises:
        BadMirror: a name leads out of the folder, or a file isn't there.
        ChecksumMismatch: a file has other bytes than its entry says.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    try:
        with named(target), partial.open("wb") as file:
            (_write_zip if target.suffix == ".zip" else _write_tar)(file, _contents(folder, files))
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def _contents(folder: Path, files: Mapping[str, MirrorFile]) -> Iterator[tuple[str, bytes]]:
    for name, entry in sorted(files.items()):
        path = folder / name
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or path.is_symlink():
            raise BadMirror(f"{folder / 'mirror.json'}: {name!r} leads out of the mirror")
        if not path.is_file():
            raise BadMirror(f"{folder / 'mirror.json'}: lists {name}, which isn't there")
        Pin(inexact_sha256=entry.sha256).check(digest_file(path), path)
        yield name, path.read_bytes()


def _write_zip(file: IO[bytes], contents: Iterator[tuple[str, bytes]]) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in contents:
            archive.writestr(zipfile.ZipInfo(name), content)  # without a date, so always the same bytes


def _write_tar(file: IO[bytes], contents: Iterator[tuple[str, bytes]]) -> None:
    with (
        gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1, mtime=0, filename="") as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, content in contents:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
