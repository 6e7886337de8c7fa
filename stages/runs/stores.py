"""Opens the run store: the folder below `home()`, or what `CLAIMCHECK_STORE` names."""

from __future__ import annotations

import os
from pathlib import Path

from stages.runs.store import RunStore, Store, home

STORE = "CLAIMCHECK_STORE"
"""The environment's name for it: a folder."""


def open_store(root: Path = Path()) -> Store:
    """The store of the clone in `root`."""
    return RunStore(root / (os.environ.get(STORE) or home() / "store"))
