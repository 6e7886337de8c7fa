"""Measurements of evaluations, kept beside the run store for as long as everything they depend on is unchanged.

DVC removes a stage's outputs before it runs: without this, a new replicate would cause all others to be re-evaluated.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stages.run import canonical_json
from stages.runs.store import home, write_atomically


def digest_of(parts: Any) -> str:
    """sha256 over the JSON values that a measurement depends on."""
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()


class Kept:
    """One file per name, with the newest measurement, the digest of what it depends on, and a digest over both."""

    def __init__(self, kind: str, root: Path | None = None) -> None:
        self.folder = (root or home() / "store") / kind

    @contextmanager
    def held(self, name: str, *, is_patient: bool = True) -> Iterator[bool]:
        """Measure what this name stands for alone: others wait, or get False at once where they aren't patient."""
        path = self.folder / f"{name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if is_patient else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True

    def read(self, name: str, stands_on: str) -> Any:
        """The measurement, or None if there is none, its dependencies have changed, or its file is damaged."""
        try:
            content = json.loads((self.folder / f"{name}.json").read_bytes())
            is_whole = content.pop("digest") == digest_of(content)
            return content["measured"] if is_whole and content["stands_on"] == stands_on else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def write(self, name: str, stands_on: str, measured: Any) -> None:
        """Keep JSON values, replacing what was kept under this name."""
        content = {"stands_on": stands_on, "measured": measured}
        text = json.dumps(content | {"digest": digest_of(content)}, sort_keys=True)
        write_atomically(self.folder / f"{name}.json", f"{text}\n".encode())
