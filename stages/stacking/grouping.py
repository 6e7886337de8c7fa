"""Which runs train together: replicates of one small network, if that saves more time than compiling costs.

A stacked network has the weights of its run except for rounding, so the run key is the same.  Standard library only.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path

from stages.run import Replicate, RunSpec, canonical_json, steps_per_epoch, training_counts
from stages.store import RunStore, write_atomically

Specs = tuple[RunSpec, ...]

# Networks with a `Stack` beside them, which is faster than one after the other (bench_stacking, up to 200 units).
STACKED = ("stages.papers.dac.mlp:MLP", "stages.papers.dac.mlp:DACMLP")
WIDEST = 256
MAX_MODELS = 16
MIN_STEPS = 10_000  # a step alone takes 6 to 40 ms; compiling takes up to 20 s, and again where a stack shrinks
STACK_PREFIX, _MANIFEST = "stack-", "group.json"


def is_worth_stacking(spec: RunSpec, rows: int) -> bool:
    """True if the run is faster in a stack, even alone in it; `rows` are those of the data set's training part."""
    protocol = spec.protocol
    is_plain = protocol.precision == "float32" and not protocol.compile
    has_known_parts = protocol.optimizer.name in ("adam", "adamw") and protocol.split.kind != "folds"
    is_narrow = spec.model.path in STACKED and spec.model.arguments.get("width", math.inf) <= WIDEST
    return is_plain and has_known_parts and is_narrow and _least_steps(spec, rows) >= MIN_STEPS


def _least_steps(spec: RunSpec, rows: int) -> int:
    """The smallest number of steps, even with early stopping."""
    protocol, stop = spec.protocol, spec.protocol.early_stop
    epochs = protocol.epochs if stop is None else min(protocol.epochs, stop.from_epoch + stop.patience)
    return epochs * steps_per_epoch(training_counts(rows, protocol, spec.replicate)[0], protocol)


def form_groups(specs: Sequence[RunSpec], rows: int, store: RunStore) -> list[tuple[Specs, bool]]:
    """Groups in the order of their first run, each with whether it is a stack; a run of no stack is its own group.

    A stack holds all wanted replicates of its network.  An interrupted one is resumed as it was, including runs that
    are published already, unless that would mean training a run that isn't wanted.
    """
    wanted = {spec.run_key: spec for spec in specs}
    groups: dict[str, tuple[Specs, bool]] = {}  # by the key of each wanted member
    for begun in _begun(store):
        members = [spec.run_key for spec in begun if store.published(spec.run_key) is None]
        if members and all(key in wanted and key not in groups for key in members):
            groups |= dict.fromkeys(members, (begun, True))
    alike: dict[str, list[RunSpec]] = {}
    for key, spec in wanted.items():
        if key in groups:
            continue
        if is_worth_stacking(spec, rows):
            alike.setdefault(dataclasses.replace(spec, replicate=Replicate(seed=0)).run_key, []).append(spec)
        else:
            groups[key] = (spec,), False
    for replicates in alike.values():
        for start in range(0, len(replicates), MAX_MODELS):
            part = tuple(replicates[start : start + MAX_MODELS])
            groups |= dict.fromkeys((spec.run_key for spec in part), (part, True))
    return list({id(group): group for group in (groups[key] for key in wanted)}.values())


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


def _begun(store: RunStore) -> list[Specs]:
    """Stacks whose training was interrupted after an epoch."""
    folders = sorted((store.root / "work").glob(f"{STACK_PREFIX}*"))
    return [members_of(folder) for folder in folders if (folder / "resume.pt").is_file()]
