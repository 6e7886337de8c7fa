"""Packed data on a node: in place where a file system is shared, else a copy kept by the digest of its content.

Either way the content is read and its digest compared before anything trains on it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

from stages.datasets.packed import PackedDataError, digest_packed, read_info

Packed = Callable[[], Mapping[str, np.ndarray]]
"""Brings the files of a packed set to this node: bytes, uint8 [N], by name."""


def pack_files(folder: Path) -> dict[str, np.ndarray]:
    """The files of a packed set as `Packed` brings them; mapped, so that one as large as memory can be passed on."""
    return {path.name: np.memmap(path, np.uint8, "r") for path in sorted(folder.iterdir()) if path.is_file()}


def place(folder: Path, digest: str, packed: Packed | None) -> Path:
    """A folder of this machine with the packed data of that digest: `folder` itself, or a copy of what `packed` brings.

    Raises:
        PackedDataError: they are neither here nor brought, or what was brought is something else.
    """
    if _has(folder, digest):
        return folder
    if packed is None:
        raise PackedDataError(f"{folder}: no packed data with digest {digest[:12]} on this machine, and none were sent")
    kept = _cache() / digest
    with _locked(kept):
        if not _has(kept, digest):
            _write(packed(), kept, digest)
    return kept


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "claimcheck" / "packed"


def _has(folder: Path, digest: str) -> bool:
    if not (folder / "dataset.json").is_file():
        return False
    stamp = tuple((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(folder.iterdir()))
    return _digest_of(folder, stamp) == digest


@cache
def _digest_of(folder: Path, stamp: tuple[tuple[str, int, int], ...]) -> str | None:
    """The digest of the content as it was at `stamp`: one process reads it once."""
    try:
        info = read_info(folder)
        return info.digest if digest_packed(folder, info) == info.digest else None
    except PackedDataError:
        return None


@contextmanager
def _locked(kept: Path) -> Iterator[None]:
    """One process of this machine at a time brings a set."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.with_name(f".{kept.name}.lock").open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(files: Mapping[str, np.ndarray], kept: Path, digest: str) -> None:
    staged = Path(tempfile.mkdtemp(prefix=f".{kept.name[:12]}.", dir=kept.parent))
    try:
        for name, content in files.items():
            (staged / name).write_bytes(content.data)
        if not _has(staged, digest):
            raise PackedDataError(f"what was sent as packed data {digest[:12]} has another content; nothing is trained")
        shutil.rmtree(kept, ignore_errors=True)  # damaged, or half of it
        os.rename(staged, kept)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
