"""Disk usage of data and trainings, and what killed trainings left behind.  Standard library only."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from stages.runs.stacks import STACK_PREFIX, members_of
from stages.runs.store import RunStore, home

# If nothing was written for this long, files still marked as partial belong to a process that was killed.
ABANDONED_SECONDS = 3600.0


def disk_usage(root: Path) -> dict[str, int]:
    """Bytes by place below `root`.  A file with several names (hard links) counts at the first one."""
    base = root / home()
    places = {
        "downloads": base / "downloads",
        "packed data": root / "data" / "processed",
        "run store": base / "store" / "runs",
        "trainings under way": base / "store" / "work",
        "measurements": base / "store" / "evaluated",
        "outcomes of experiments": root / "data" / "runs",
        "DVC's cache": root / ".dvc" / "cache",
    }
    seen: set[tuple[int, int]] = set()
    return {name: sum(_new_bytes(folder, seen)) for name, folder in places.items()}


def _new_bytes(folder: Path, seen: set[tuple[int, int]]) -> Iterator[int]:
    for path, _, names in os.walk(folder):
        for name in names:
            status = os.stat(os.path.join(path, name), follow_symlinks=False)
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                yield status.st_size


def _is_done(work: Path, store: RunStore) -> bool:
    """True if the run of this scratch folder is published; for a stack, if all of its runs are."""
    if not work.name.startswith(STACK_PREFIX):
        return store.published(work.name) is not None
    members = members_of(work.name, store.scratch)
    return bool(members) and all(store.published(spec.run_key) for spec in members)


def remove_leftovers(root: Path) -> list[Path]:
    """Remove and return what a killed process left: half-written files, staged outcomes, states of runs that are done.

    Outcomes stay, and so does every state from which a training could resume.
    """
    store = RunStore(root / home() / "store")
    found = [path for path in (store.root / "work").glob("*") if _is_done(path, store)]
    abandoned = [*(store.root / "staged").glob("*"), *(root / "data").rglob(".*.partial")]
    if not (root / home()).is_relative_to(root / "data"):
        abandoned += store.root.rglob(".*.partial")
    found += [path for path in abandoned if time.time() - path.stat().st_mtime > ABANDONED_SECONDS]
    for path in found:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # it may lie in a folder that has just gone
    return sorted(found)
