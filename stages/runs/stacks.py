"""Stacks, in which runs train together: which runs each holds.  Standard library only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from stages.run import RunSpec, canonical_json
from stages.runs.store import Scratch

Specs = tuple[RunSpec, ...]

STACK_PREFIX, STATE, _MANIFEST = "stack-", "resume.pt", "group.json"


def stack_id(specs: Sequence[RunSpec]) -> str:
    """The name of the ordered list of runs that train as one."""
    return STACK_PREFIX + hashlib.sha256("+".join(spec.run_key for spec in specs).encode()).hexdigest()


def remember(specs: Sequence[RunSpec], scratch: Scratch) -> None:
    """Keep the list of a stack's runs beside its state, so that it can be resumed as it was."""
    scratch.save(f"{stack_id(specs)}/{_MANIFEST}", canonical_json([spec.to_dict() for spec in specs]).encode())


def members_of(stack: str, scratch: Scratch) -> Specs:
    """The runs of the stack; none if its list can't be read."""
    try:
        specs = tuple(RunSpec.from_dict(spec) for spec in json.loads(scratch.load(f"{stack}/{_MANIFEST}") or b""))
    except (OSError, TypeError, ValueError, KeyError):
        return ()
    return specs if stack_id(specs) == stack else ()


def begun_stacks(scratch: Scratch) -> list[Specs]:
    """Stacks whose training was interrupted after an epoch."""
    return [members_of(name, scratch) for name in scratch.list_works(STACK_PREFIX) if scratch.holds(f"{name}/{STATE}")]
