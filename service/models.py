"""Knowledge of a checkpoint before any process loads it: that it is the recorded file, and its contract."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from stages.checkpoint.contract import InputContract, read_checkpoint

MAX_KNOWN = 4096


@dataclass(frozen=True)
class Model:
    """A checkpoint file that had the digest `sha256` when it was read."""

    path: Path
    sha256: str
    contract: InputContract


class Models:
    """Remembers the contracts of files that were checked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._known: OrderedDict[tuple[str, str], Model] = OrderedDict()

    def known(self, path: str, sha256: str) -> Model | None:
        """The checkpoint at `path` if it was already checked."""
        return self._known.get((path, sha256))

    def get(self, path: str, sha256: str) -> Model:
        """The checkpoint at `path`, relative to the root, whose digest must be `sha256`.

        Raises:
            CheckpointError: the file is gone, isn't the recorded one, or has no contract of ours.
        """
        place = self.root / path
        _, contract, _ = read_checkpoint(place, expected_sha256=sha256)
        found = self._known[path, sha256] = Model(place, sha256, contract)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return found
