"""What evaluations measured, kept beside the run store for as long as all that it stands on is the same.

DVC removes a stage's outputs before it runs: without this, a new replicate would have all others evaluated again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from stages.run import canonical_json
from stages.store import home, write_atomically


def digest_of(parts: Any) -> str:
    """sha256 over JSON values: what a measurement stands on."""
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()


class Kept:
    """One file a name, which holds the newest measurement, what it stands on, and a digest over both."""

    def __init__(self, kind: str, root: Path | None = None) -> None:
        self.folder = (root or home() / "store") / kind

    def read(self, name: str, stands_on: str) -> Any:
        """The measurement, or None where there is none, it stands on something else, or its file is damaged."""
        try:
            content = json.loads((self.folder / f"{name}.json").read_bytes())
            is_whole = content.pop("digest") == digest_of(content)
            return content["measured"] if is_whole and content["stands_on"] == stands_on else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def write(self, name: str, stands_on: str, measured: Any) -> None:
        """Keep JSON values in place of what was kept under this name."""
        content = {"stands_on": stands_on, "measured": measured}
        text = json.dumps(content | {"digest": digest_of(content)}, sort_keys=True)
        write_atomically(self.folder / f"{name}.json", f"{text}\n".encode())
