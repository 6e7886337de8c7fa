"""Which runs train together: replicates of one small network, where that saves more than compiling costs.

Stacked, a network's weights are those of its run but for rounding, so the run key is the same.  Standard library only.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path

from stages.run import Protocol, Replicate, RunSpec, canonical_json
from stages.store import RunStore, write_atomically

Specs = tuple[RunSpec, ...]

# The widest layer, in units, up to which a stack was faster here than one network after the other (bench_stacking).
WIDEST = {"stages.papers.dac.mlp:MLP": 256, "stages.papers.dac.mlp:DACMLP": 25}
MAX_MODELS = 16
MIN_STEPS = 5_000  # compiling takes some 25 s; a step of these networks alone 5 to 35 ms
_MANIFEST = "group.json"


def is_worth_stacking(spec: RunSpec, rows: int) -> bool:
    """Whether the run is faster in a stack, even one of its own; `rows` are those that train."""
    protocol = spec.protocol
    is_plain = protocol.precision == "float32" and not (protocol.compile or protocol.observe_test)
    has_known_parts = protocol.optimizer.name in ("adam", "adamw") and protocol.split.kind != "folds"
    is_narrow = spec.model.arguments.get("width", math.inf) <= WIDEST.get(spec.model.path, 0)
    return is_plain and has_known_parts and is_narrow and _expected_steps(protocol, rows) >= MIN_STEPS


def _expected_steps(protocol: Protocol, rows: int) -> int:
    """At least so many, whatever early stopping says."""
    stop = protocol.early_stop
    epochs = protocol.epochs if stop is None else min(protocol.epochs, stop.from_epoch + stop.patience)
    full = math.ceil(min(rows, protocol.train_images or rows) / protocol.batch_size)
    return epochs * min(full, protocol.steps_per_epoch or full)


def form_groups(specs: Sequence[RunSpec], rows: int, store: RunStore, slots: int) -> list[tuple[Specs, bool]]:
    """Groups in the order of their first run, each with whether it is a stack; a run of no stack is a group of its own.

    A stack that was cut off is taken up as it was, with the runs of it that are published already.  Where there are
    fewer stacks than `slots`, they are smaller.
    """
    wanted = {spec.run_key: spec for spec in specs}
    groups: dict[str, tuple[Specs, bool]] = {}  # by the key of each member that is wanted
    for begun in _begun(store):
        members = [spec.run_key for spec in begun if spec.run_key in wanted]
        if members and not any(key in groups for key in members):
            groups |= dict.fromkeys(members, (begun, True))
    alike: dict[str, list[RunSpec]] = {}
    for key, spec in wanted.items():
        if key in groups:
            continue
        if is_worth_stacking(spec, rows):
            alike.setdefault(dataclasses.replace(spec, replicate=Replicate(seed=0)).run_key, []).append(spec)
        else:
            groups[key] = (spec,), False
    count = sum(map(len, alike.values()))
    size = min(MAX_MODELS, max(1, math.ceil(count / max(1, slots))))
    for members_of_one in alike.values():
        for start in range(0, len(members_of_one), size):
            part = tuple(members_of_one[start : start + size])
            groups |= dict.fromkeys((spec.run_key for spec in part), (part, True))
    ordered = [groups[key] for key in wanted]
    return [group for place, group in enumerate(ordered) if group not in ordered[:place]]


def stack_id(specs: Sequence[RunSpec]) -> str:
    """Names the ordered list of runs that train as one."""
    return "stack-" + hashlib.sha256("+".join(spec.run_key for spec in specs).encode()).hexdigest()


def remember(specs: Sequence[RunSpec], store: RunStore) -> Path:
    """The stack's scratch folder, with the list of its runs, so that it is taken up as it was."""
    folder = store.work(stack_id(specs))
    write_atomically(folder / _MANIFEST, canonical_json([spec.to_dict() for spec in specs]).encode())
    return folder


def _begun(store: RunStore) -> list[Specs]:
    """Stacks whose training was cut off; a list that can't be read is none."""
    found = []
    for path in sorted((store.root / "work").glob(f"stack-*/{_MANIFEST}")):
        try:
            specs = tuple(RunSpec.from_dict(spec) for spec in json.loads(path.read_bytes()))
        except (TypeError, ValueError, KeyError):
            continue
        if stack_id(specs) == path.parent.name:
            found.append(specs)
    return found
