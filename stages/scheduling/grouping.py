"""Which runs train together: replicates of one small network, if that saves more time than compiling costs.

A stacked network has the weights of its run except for rounding, so the run key is the same.  Standard library only.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from stages.run import Replicate, RunSpec, steps_per_epoch, training_counts
from stages.runs.store import Specs, Store, begun_stacks

# Networks with a `Stack` beside them, which is faster than one after the other (bench_stacking, up to 200 units).
STACKED = ("stages.papers.dac.mlp:MLP", "stages.papers.dac.mlp:DACMLP")
WIDEST = 256
MAX_MODELS = 16
MIN_STEPS = 10_000  # a step alone takes 6 to 40 ms; compiling takes up to 20 s, and again where a stack shrinks


def is_worth_stacking(spec: RunSpec, rows: int) -> bool:
    """True if the run is faster in a stack, even alone in it; `rows` are those of the data set's training part."""
    protocol = spec.protocol
    is_plain = protocol.precision in ("float32", "tf32") and not protocol.compile
    has_known_parts = protocol.optimizer.name in ("adam", "adamw") and protocol.split.kind != "folds"
    is_narrow = spec.model.path in STACKED and spec.model.arguments.get("width", math.inf) <= WIDEST
    return is_plain and has_known_parts and is_narrow and _least_steps(spec, rows) >= MIN_STEPS


def _least_steps(spec: RunSpec, rows: int) -> int:
    """The smallest number of steps, even with early stopping."""
    protocol, stop = spec.protocol, spec.protocol.early_stop
    epochs = protocol.epochs if stop is None else min(protocol.epochs, stop.from_epoch + stop.patience)
    return epochs * steps_per_epoch(training_counts(rows, protocol, spec.replicate)[0], protocol)


def form_groups(specs: Sequence[RunSpec], rows: int, store: Store) -> list[tuple[Specs, bool]]:
    """Groups in the order of their first run, each with whether it is a stack; a run of no stack is its own group.

    A stack holds all wanted replicates of its network.  An interrupted one is resumed as it was, including runs that
    are published already, unless that would mean training a run that isn't wanted.
    """
    wanted = {spec.run_key: spec for spec in specs}
    groups: dict[str, tuple[Specs, bool]] = {}  # by the key of each wanted member
    for begun in begun_stacks(store.scratch):
        members = [spec.run_key for spec in begun if not store.has(spec.run_key)]
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
