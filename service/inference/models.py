"""Knowledge of a checkpoint before any process loads it: that it is the recorded file, and its contract."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cachetools import LRUCache

from stages.checkpoint.contract import InputContract, read_checkpoint

MAX_KNOWN = 4096
FLOPS_PER_SECOND, BYTES_PER_SECOND = 50e9, 500e6  # of one core, as measured on one of 2025; only ratios matter
IMAGE_SECONDS, LOAD_SECONDS = 0.0005, 0.005  # besides, for any model
FLOPS_PER_BYTE = 64  # where none are recorded


def cost_of(size_bytes: int, flops: float | None) -> tuple[float, float]:
    """Estimate the seconds that an image takes, and those that loading the model does."""
    flops = FLOPS_PER_BYTE * size_bytes if flops is None else flops
    return IMAGE_SECONDS + flops / FLOPS_PER_SECOND, LOAD_SECONDS + size_bytes / BYTES_PER_SECOND


@dataclass(frozen=True)
class Model:
    """A checkpoint file that had the digest `sha256` when it was read; `seconds` are those of an image, estimated."""

    path: Path
    sha256: str
    contract: InputContract
    seconds: float = IMAGE_SECONDS
    load_seconds: float = LOAD_SECONDS


class Models:
    """Remembers the contracts of files that were checked, each until its file is another one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: LRUCache[tuple[str, str], tuple[object, Model]] = LRUCache(MAX_KNOWN)

    def known(self, path: str, sha256: str) -> Model | None:
        """The checkpoint at `path` if it was already checked and is the same file still."""
        state, found = self._known.get((path, sha256), (None, None))
        return found if found is not None and state == state_of(found.path) else None

    def get(self, path: str, sha256: str, flops: float | None = None) -> Model:
        """The checkpoint at `path`, relative to the root, whose digest must be `sha256`; `flops` are those of an image.

        Raises:
            CheckpointError: the file is gone, isn't the recorded one, or has no contract of ours.
        """
        file = self.root / path
        state = state_of(file)  # taken before it is read, so that what is remembered is never older than this
        content, contract, _ = read_checkpoint(file, expected_sha256=sha256)
        found = Model(file, sha256, contract, *cost_of(len(content), flops))
        self._known[path, sha256] = state, found
        return found


def state_of(path: Path) -> object:
    """A value that changes with the file; equal to no other one where there is no file."""
    try:
        status = path.stat()
    except OSError:
        return object()
    return status.st_ino, status.st_mtime_ns, status.st_size
