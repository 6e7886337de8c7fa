"""Scratch folders of stacks, in which runs train together: which runs each holds.  Standard library only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from stages.run import RunSpec, canonical_json
from stages.runs.store import RunStore, write_atomically

Specs = tuple[RunSpec, ...]

STACK_PREFIX, _MANIFEST = "stack-", "group.json"


def stack_id(specs: Sequence[RunSpec]) -> str:
    """The name of the ordered list of runs that train as one."""
    return STACK_PREFIX + hashlib.sha256("+".join(spec.run_key for spec in specs).encode()).hexdigest()


def remember(specs: Sequence[RunSpec], store: RunStore) -> Path:
    """The stack's scratch folder, with the list of its runs, so that it can be resumed as it was."""
    folder = store.work(stack_id(specs))
    write_atomically(folder / _MANIFEST, canonical_json([spec.to_dict() for spec in specs]).encode())
    return folder


def members_of(folder: Path) -> Specs:
    """The runs of the stack with this scratch folder; none if its list can't be read."""
    try:
        specs = tuple(RunSpec.from_dict(spec) for spec in json.loads((folder / _MANIFEST).read_bytes()))
    except (OSError, TypeError, ValueError, KeyError):
        return ()
    return specs if stack_id(specs) == folder.name else ()


def begun_stacks(store: RunStore) -> list[Specs]:
    """Stacks whose training was interrupted after an epoch."""
    folders = sorted((store.root / "work").glob(f"{STACK_PREFIX}*"))
    return [members_of(folder) for folder in folders if (folder / "resume.pt").is_file()]
