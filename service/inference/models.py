"""Checkpoint files: whether they are the recorded ones, and their contracts, before any process loads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cachetools import LRUCache

from stages.checkpoint.contract import InputContract, read_checkpoint

MAX_KNOWN = 4096
FLOPS_PER_SECOND, BYTES_PER_SECOND = 50e9, 500e6  # on one core of a 2025 processor; only ratios matter
IMAGE_SECONDS, LOAD_SECONDS = 0.0005, 0.005  # plus a constant for any model
FLOPS_PER_BYTE = 64  # if none are recorded


def cost_of(size_bytes: int, flops: float | None) -> tuple[float, float]:
    """Estimate the seconds per image and the seconds for loading the model."""
    flops = FLOPS_PER_BYTE * size_bytes if flops is None else flops
    return IMAGE_SECONDS + flops / FLOPS_PER_SECOND, LOAD_SECONDS + size_bytes / BYTES_PER_SECOND


@dataclass(frozen=True)
class Model:
    """A checkpoint file that had the digest `sha256` when it was read; `seconds` is the estimate per image."""

    path: Path
    sha256: str
    contract: InputContract
    seconds: float = IMAGE_SECONDS
    load_seconds: float = LOAD_SECONDS


class Models:
    """Caches the contracts of checked files until the files change."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: LRUCache[tuple[str, str], tuple[object, Model]] = LRUCache(MAX_KNOWN)

    def known(self, path: str, sha256: str) -> Model | None:
        """Return the checkpoint at `path` if it was checked and hasn't changed since."""
        state, found = self._known.get((path, sha256), (None, None))
        return found if found is not None and state == state_of(found.path) else None

    def get(self, path: str, sha256: str, flops: float | None = None) -> Model:
        """Return the checkpoint at `path` below the root if its digest is `sha256`; `flops` are per image.

        Raises:
            CheckpointError: the file is missing, isn't the recorded one, or has no contract of ours.
        """
        file = self.root / path
        state = state_of(file)  # read before the file, so that the cache is never older than it
        content, contract, _ = read_checkpoint(file, expected_sha256=sha256)
        found = Model(file, sha256, contract, *cost_of(len(content), flops))
        self._known[path, sha256] = state, found
        return found


def state_of(path: Path) -> object:
    """Return a value that changes with the file; a missing file equals nothing."""
    try:
        status = path.stat()
    except OSError:
        return object()
    return status.st_ino, status.st_mtime_ns, status.st_size
