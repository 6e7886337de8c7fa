"""The folder `data/runs/<experiment>`: outcomes that DVC keeps, linked from the store, and the list of their runs."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from stages.runs.outcome import find_fault
from stages.runs.runlist import DamagedRunList, read_run_list
from stages.runs.store import Store, clone, write_atomically

DVC_CACHE = Path(".dvc/cache/files/md5")


def adopt(folder: Path, store: Store, stored: set[str]) -> None:
    """Put outcomes that `dvc pull` brought into the store, each under its own spec's key, and add it to `stored`."""
    for path in sorted(folder.glob("*/result.json")):
        run_key = path.parent.name
        if run_key in stored:
            continue
        fault = find_fault(path.parent, run_key)
        if fault is None:
            store.publish(run_key, {file.name: file.read_bytes() for file in path.parent.iterdir()})
            stored.add(run_key)
        else:
            _refuse(path.parent, fault)


def _refuse(outcome: Path, fault: str) -> None:
    outcome_here = f"{outcome.parent.name}/{outcome.name[:12]}"
    print(f"  {outcome_here}: not a whole outcome of that run ({fault}); not adopted")


def previous_specs(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Specs of the runs now in the folder, by label; damaged ones, which are rewritten later, are left out."""
    try:
        run_list = read_run_list(folder)
    except DamagedRunList as error:
        print(f"  {error}")
        return {}
    specs = {}
    for run in run_list.runs if run_list else ():
        path = folder / run.run_key / "spec.json"
        with suppress(FileNotFoundError, ValueError):
            specs[f"{run.arm}.{run.replicate}"] = json.loads(path.read_bytes())
    return specs


def link_outcomes(folder: Path, run_keys: Iterable[str], store: Store) -> set[str]:
    """Link what the store has of these runs into the folder; returns their keys."""
    found = {run_key: store.published(run_key) for run_key in sorted(run_keys)}
    there = {run_key: outcome for run_key, outcome in found.items() if outcome is not None}
    for run_key, outcome in there.items():
        for file in outcome.iterdir():
            _link(file, folder / run_key / file.name)
    return {*there}


def remove_others(folder: Path, run_keys: Collection[str]) -> None:
    """Remove outcomes of other runs than these from the folder."""
    for path in folder.iterdir():
        if path.is_dir() and path.name not in run_keys:
            shutil.rmtree(path)


def _link(source: Path, target: Path) -> None:
    """Make a copy that shares its blocks if the file system can, otherwise a hard link, otherwise a plain copy.

    A hard link is the same file: what damages one name damages all, so files of the store are read-only.
    """
    if target.exists():
        if source.samefile(target) or filecmp.cmp(source, target, shallow=False):
            return
        target.unlink()
    target.parent.mkdir(parents=True, exist_ok=True)
    if clone(source, target):
        return
    try:
        os.link(source, target)
    except OSError:
        write_atomically(target, source.read_bytes())


def remove_damaged(folder: Path, wanted: Collection[str]) -> None:
    """Remove damaged outcomes of `folder`, together with the objects in DVC's cache that are the same files.

    DVC finds an object by its name, and would restore the damaged one over a new training's outcome.
    """
    damaged: set[tuple[int, int]] = set()
    for path in sorted(folder.glob("*/result.json")):
        fault = find_fault(path.parent, path.parent.name) if path.parent.name in wanted else None
        if fault:
            _refuse(path.parent, fault)
            damaged |= {(file.stat().st_dev, file.stat().st_ino) for file in path.parent.iterdir()}
            shutil.rmtree(path.parent)
    if damaged:
        for file in DVC_CACHE.glob("*/*"):
            if (file.stat().st_dev, file.stat().st_ino) in damaged:
                file.unlink()
