"""Disk usage of data and trainings, here and in an object store, and what killed trainings left behind."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from stages.runs.object_store import BLOBS, WORK, ObjectStore, open_store, store_folder
from stages.runs.store import STACK_PREFIX, RunStore, Store, home, members_of

# If nothing was written for this long, files still marked as partial belong to a process that was killed.
ABANDONED_SECONDS = 3600.0


def disk_usage(root: Path) -> dict[str, int]:
    """Bytes by place below `root`, and in the object store if there is one.

    A file with several names (hard links) counts at the first one.
    """
    store, local = open_store(root), store_folder(root)
    folder = store.root if isinstance(store, RunStore) else local
    places = {
        "downloads": root / home() / "downloads",
        "packed data": root / "data" / "processed",
        "run store": folder / "runs",
        "trainings under way": folder / "work",
        "read of object stores": local / "objects",
        "measurements": local / "evaluated",
        "outcomes of experiments": root / "data" / "runs",
        "DVC's cache": root / ".dvc" / "cache",
    }
    seen: set[tuple[int, int]] = set()
    sizes = {name: sum(_new_bytes(folder, seen)) for name, folder in places.items()}
    if isinstance(store, ObjectStore):
        for name, place in (("outcomes", BLOBS), ("trainings under way", WORK)):
            sizes[f"{store.address}, {name}"] = sum(item.size_bytes for item in store.bucket.list(place))
    return sizes


def _new_bytes(folder: Path, seen: set[tuple[int, int]]) -> Iterator[int]:
    for path, _, names in os.walk(folder):
        for name in names:
            status = os.stat(os.path.join(path, name), follow_symlinks=False)
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                yield status.st_size


def _is_done(work: str, store: Store) -> bool:
    """True if the run with this scratch is published; for a stack, if all of its runs are."""
    if not work.startswith(STACK_PREFIX):
        return store.has(work)
    members = members_of(work, store.scratch)
    return bool(members) and all(store.has(spec.run_key) for spec in members)


def remove_leftovers(root: Path) -> list[Path]:
    """Remove and return what a killed process left: half-written files, staged outcomes, states of runs that are done.

    Outcomes stay, and so does every state from which a training could resume.
    """
    asked, local = open_store(root), store_folder(root)
    store = asked if isinstance(asked, RunStore) else RunStore(local)
    found = [path for path in (store.root / "work").glob("*") if _is_done(path.name, store)]
    abandoned = [*store.root.glob("staged/*"), *local.glob("objects/*/staged/*")]
    abandoned += (root / "data").rglob(".*.partial*")
    for place in {store.root, local}:
        if not place.is_relative_to(root / "data"):
            abandoned += place.rglob(".*.partial*")
    found += [path for path in abandoned if time.time() - path.stat().st_mtime > ABANDONED_SECONDS]
    for path in found:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # it may lie in a folder that has just gone
    return sorted(found)


def remove_objects(root: Path) -> list[str]:
    """Remove and return what killed processes left in the object store, if there is one: the same as in a folder.

    A file of an outcome stays if any record names it, published or about to be, or if it is young by the store's clock.
    """
    store = open_store(root)
    if not isinstance(store, ObjectStore):
        return []
    works = [work for work in store.scratch.list_works() if _is_done(work, store)]
    for work in works:
        store.scratch.drop(work)
    newest = store.bucket.now() - ABANDONED_SECONDS
    old = {item.name for item in store.bucket.list(BLOBS) if item.changed < newest}
    unnamed = sorted(old - store.named_blobs()) if old else []
    store.bucket.delete(unnamed)
    return [f"{store.address}/{name}" for name in [*(f"{WORK}/{work}" for work in works), *unnamed]]
