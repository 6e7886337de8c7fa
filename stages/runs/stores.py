"""Opens the run store: the folder below `home()`, or what `CLAIMCHECK_STORE` names."""

from __future__ import annotations

import os
from pathlib import Path

from stages.runs.object_store import ObjectStore
from stages.runs.store import RunStore, Store, home

STORE = "CLAIMCHECK_STORE"
"""The environment's name for it: a folder, or the URL of an object store."""


def open_store(root: Path = Path()) -> Store:
    """The store of the clone in `root`.

    Raises:
        StoreFault: the URL is of no known kind, or the package for it isn't installed.
    """
    address = os.environ.get(STORE)
    if address and "://" in address:
        return ObjectStore(address, store_folder(root) / "objects")
    return RunStore(root / address) if address else RunStore(store_folder(root))


def store_folder(root: Path = Path()) -> Path:
    """The folder of this machine beside the downloads: the store itself, or what was read of an object store."""
    return root / home() / "store"
