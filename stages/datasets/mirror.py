"""Mirrors: one folder per data set, with the official files below it and a `mirror.json`.  Format: docs/data.md.

`data/downloads` is itself such a mirror, so `python -m stages.datasets.mirror DEST` only copies.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import os
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from pydantic import TypeAdapter, ValidationError

from stages.datasets.manifest import DatasetError, Digests, Pin, digest_file, read_chunks, store_verified
from stages.faults import in_one_line, named
from stages.params.experiment import DatasetSource, SourceFile, load_params
from stages.runs.store import home, write_atomically


@dataclass(frozen=True, kw_only=True)
class MirrorFile:
    """A file of a mirror.  `matches_official` is None if no official digest is published."""

    sha256: str
    bytes: int
    official_md5: str | None
    matches_official: bool | None


@dataclass(frozen=True, kw_only=True)
class MirrorInfo:
    """A `mirror.json`.  `inexact_test_rows` are the positions of test images whose pixels are not the official ones.

    `archive`: the archive without a published digest from which these downloads were taken.
    """

    complete: bool
    files: Mapping[str, MirrorFile]
    inexact_test_rows: tuple[int, ...] = field(default=())
    archive: MirrorFile | None = None


def read_mirror(folder: Path) -> MirrorInfo | None:
    """Read the `mirror.json` of a data set's folder; None if there is none."""
    path = folder / "mirror.json"
    if not path.is_file():
        return None
    try:
        return TypeAdapter(MirrorInfo).validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DatasetError(f"{path}: {where or 'file'}: {first['msg']}") from None


def official_pin(file: SourceFile) -> Pin:
    return Pin(official_md5=file.md5, official_sha256=file.sha256)


def pin_in(info: MirrorInfo | None, file: SourceFile) -> Pin:
    """Return the pin for `file` in a folder with this `mirror.json`: official, unless the file is declared inexact."""
    entry = info.files.get(file.name) if info is not None else None
    inexact = entry.sha256 if entry is not None and entry.matches_official is not True else None
    return dataclasses.replace(official_pin(file), inexact_sha256=inexact)


def write_mirror(folder: Path, info: MirrorInfo) -> None:
    """Write `folder/mirror.json`, the same bytes for the same content."""
    document: dict[str, object] = {"complete": info.complete, "files": {}}
    document["files"] = {name: dataclasses.asdict(file) for name, file in info.files.items()}
    if info.archive is not None:
        document["archive"] = dataclasses.asdict(info.archive)
    if info.inexact_test_rows:
        document["inexact_test_rows"] = list(info.inexact_test_rows)
    write_atomically(folder / "mirror.json", (json.dumps(document, indent=1) + "\n").encode())


def describe_file(digests: Digests, file: SourceFile) -> MirrorFile:
    """Return a file's entry in `mirror.json`."""
    return MirrorFile(
        sha256=digests.sha256,
        bytes=digests.size_bytes,
        official_md5=file.md5,
        matches_official=official_pin(file).is_official(digests),
    )


def known_files(source: DatasetSource, info: MirrorInfo | None) -> list[SourceFile]:
    """The source's files, with those of a folder or a range that a `mirror.json` has in its place."""
    found: list[SourceFile] = []
    for file in source.files:
        names = info.files if info is not None and file.is_group else ()
        found += [SourceFile(name=name) for name in names if file.covers(name)] or [file]
    return found


def copy_to_mirror(source: DatasetSource, downloads: Path, target: Path) -> MirrorInfo:
    """Copy one data set from its downloads into `target`, rechecking every byte.

    Raises:
        ChecksumMismatch: a file in the downloads has changed.
        DatasetError: the downloads are incomplete.
    """
    info = read_mirror(downloads)
    files, wanted = {}, known_files(source, info)
    for file in wanted:
        path = downloads / file.name
        if not path.is_file():
            if file.optional:
                continue
            raise DatasetError(f"{path}: no such file; fetch the data set with real data first")
        digests = store_verified(read_chunks(path), target / file.name, pin_in(info, file), path)
        files[file.name] = describe_file(digests, file)
    inexact = info.inexact_test_rows if info is not None else ()
    is_complete = len(files) == len(wanted) and all(file.matches_official for file in files.values())
    copied = MirrorInfo(complete=is_complete, files=files, inexact_test_rows=() if is_complete else inexact)
    write_mirror(target, copied)
    return copied


@in_one_line("mirror")
def main(arguments: list[str]) -> int:
    """Write a mirror of every data set that is in the downloads."""
    if len(arguments) != 1:
        print("usage: python -m stages.datasets.mirror DEST", file=sys.stderr)
        return 2
    copied = 0
    for name, source in load_params().datasets.items():
        if source.folder is not None:
            continue
        downloads = home() / "downloads" / name
        if not downloads.is_dir():
            print(f"mirror: {name}: nothing in {downloads}, left out")
            continue
        info = copy_to_mirror(source, downloads, Path(arguments[0]) / name)
        copied += 1
        print(f"mirror: {name}: {len(info.files)} files, {'complete' if info.complete else 'not complete'}")
    return 0 if copied else 1


def pack_loose(folder: Path, files: Mapping[str, MirrorFile], target: Path) -> None:
    """Write the files below `folder` into the archive `target`, each one checked, ordered by name.

    Raises:
        DatasetError: a name leads out of the folder, or a file isn't there.
        ChecksumMismatch: a file's bytes differ from its entry.
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
            raise DatasetError(f"{folder / 'mirror.json'}: {name!r} leads out of the mirror")
        if not path.is_file():
            raise DatasetError(f"{folder / 'mirror.json'}: lists {name}, which isn't there")
        Pin(inexact_sha256=entry.sha256).check(digest_file(path), path)
        yield name, path.read_bytes()


def _write_zip(file: IO[bytes], contents: Iterator[tuple[str, bytes]]) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in contents:
            archive.writestr(zipfile.ZipInfo(name), content)  # without a date, so that the bytes are always the same


def _write_tar(file: IO[bytes], contents: Iterator[tuple[str, bytes]]) -> None:
    with (
        gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1, mtime=0, filename="") as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, content in contents:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
