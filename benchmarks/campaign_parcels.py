"""Transfers to and from the GPU machine: packed data in parts, outcomes and resume states in archives.

Uses only the standard library. Every file is listed with its digest, and any difference is refused.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

MIB = 1024 * 1024
BACK_FILES, BACK_FILE_BYTES, BACK_BYTES = 8, 15 * MIB, 60 * MIB
MEMBER = re.compile(r"(runs|work)/((?:stack-)?[0-9a-f]{64})/([a-z]+\.(?:json|jsonl|pt|safetensors))")


class DamagedParcel(ValueError):
    """A file differs from what was sent; the message names it."""


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cut(folder: Path, name: str, parts: Path, part_bytes: int) -> list[dict[str, Any]]:
    """Write the files of `folder` as one archive in numbered parts below `parts`; return their names and digests."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path in sorted(folder.iterdir()):
            entry = tarfile.TarInfo(path.name)
            entry.size = path.stat().st_size
            with path.open("rb") as file:
                tar.addfile(entry, file)
    content, found = archive.getbuffer(), []
    parts.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, len(content), part_bytes)):
        path = parts / f"{name}.{number:03d}"
        path.write_bytes(content[start : start + part_bytes])
        found.append({"name": path.name, "sha256": sha256_of(path), "bytes": path.stat().st_size})
    return found


def take_in(carried: Path, held: Path, listed: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Copy the listed parts to `held`.

    Raises:
        DamagedParcel: a part differs from the list.
    """
    held.mkdir(parents=True, exist_ok=True)
    for part in (part for parts in listed.values() for part in parts):
        source = carried / part["name"]
        if not source.is_file() or (held / part["name"]).is_file():
            continue
        if sha256_of(source) != part["sha256"]:
            raise DamagedParcel(f"{source}: not the part that was sent; send it again")
        partial = held / f".{part['name']}"
        shutil.copyfile(source, partial)
        partial.rename(held / part["name"])


def join(parts: Sequence[Mapping[str, Any]], held: Path, folder: Path) -> bool:
    """Join the parts as `folder`; return False if some are missing."""
    if folder.is_dir():
        return True
    paths = [held / part["name"] for part in parts]
    if not parts or not all(path.is_file() for path in paths):
        return False
    staged = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(staged, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(b"".join(path.read_bytes() for path in paths))) as tar:
        tar.extractall(staged, filter="data")
    staged.rename(folder)
    return True


def pack_back(folders: Sequence[Path], out: Path) -> tuple[list[dict[str, Any]], list[Path], list[str]]:
    """Write archives below `out` with as many of the folders, in order, as the limits of a transfer allow.

    Return the archives with their digests, the folders that must wait, and the files that are too large for any
    archive.
    """
    bins: list[list[tuple[Path, int]]] = []
    waiting, too_large = [], []
    for folder in folders:
        files = []
        for path in sorted(folder.iterdir()):
            if path.stat().st_size + 4096 <= BACK_FILE_BYTES:
                files.append((path, path.stat().st_size + 2048))
            else:
                too_large.append(f"{folder.name[:12]}/{path.name}")
        size = sum(length for _, length in files)
        place = next((one for one in bins if sum(length for _, length in one) + size <= BACK_FILE_BYTES), None)
        whole = sum(length for one in bins for _, length in one) + size
        if place is None and (len(bins) + 1 >= BACK_FILES or whole > BACK_BYTES):
            waiting.append(folder)
        elif place is None:
            bins.append(files)
        else:
            place += files
    archives = []
    for number, files in enumerate(bins):
        path = out / f"outcomes-{number}.tar"
        with tarfile.open(path, "w") as tar:
            for file, _ in files:
                tar.add(file, "/".join(file.parts[-3:]))
        archives.append({"name": path.name, "sha256": sha256_of(path)})
    return archives, waiting, too_large


def unpack_back(folder: Path, archives: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, dict[str, bytes]]]:
    """Yield (`runs` or `work`, key, files) of everything that came back.

    Raises:
        DamagedParcel: an archive or a name in it differs from what was sent.
    """
    for listed in archives:
        path = folder / listed["name"]
        if not path.is_file() or sha256_of(path) != listed["sha256"]:
            raise DamagedParcel(f"{path}: missing, or not the archive that was sent; run the same slice again")
        found: dict[tuple[str, str], dict[str, bytes]] = {}
        with tarfile.open(path) as tar:
            for member in tar:
                name = MEMBER.fullmatch(member.name)
                content = tar.extractfile(member)
                if name is None or content is None:
                    raise DamagedParcel(f"{path}: {member.name!r} is no file of an outcome")
                found.setdefault((name[1], name[2]), {})[name[3]] = content.read()
        for (kind, key), files in found.items():
            yield kind, key, files


def read_json(path: Path, default: Any) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else default
