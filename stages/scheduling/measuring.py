"""Time of trainings on this machine, measured: a few real steps of some networks, by the engine that trains them all.

Slots, threads and stacks are those of the real trainings.  Networks of one class differ in size alone, so at most three
of them are measured, and the others lie between them by their FLOPs.
"""

from __future__ import annotations

import dataclasses
import heapq
import json
import os
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from stages.device import processor_name
from stages.evaluation.kept import Kept, digest_of
from stages.params.experiment import Rate
from stages.run import Replicate, RunSpec, SplitSpec, steps_per_epoch, training_counts
from stages.runs.store import RunStore
from stages.scheduling.engine.groups import Event, Group
from stages.scheduling.engine.local import run_groups
from stages.scheduling.grouping import MAX_MODELS
from stages.scheduling.planning import expected_epochs

_EPOCHS = 2
_EPOCH_SECONDS = 2.0
_MOST_STEPS = 100
_MEASURED = 3


@dataclass(frozen=True)
class Pace:
    """Seconds of one step of a group, and what its training takes besides: to build, compile and publish."""

    step: float
    fixed: float


@dataclass(frozen=True)
class Planned:
    """A group to train, its rows for training and testing, and the forward FLOPs of one row."""

    group: Group
    train: int
    test: int
    flops: int

    @property
    def spec(self) -> RunSpec:
        return self.group.specs[0]

    def seconds(self, pace: Pace) -> float:
        """Expected time; measuring a row without training takes a third of its share of a step."""
        protocol = self.spec.protocol
        train, validation = training_counts(self.train, protocol, self.spec.replicate)
        epochs = expected_epochs(protocol)
        measured = epochs * (validation + (self.test if protocol.observe_test else 0))
        steps = epochs * steps_per_epoch(train, protocol) + measured / (3 * protocol.batch_size)
        return pace.fixed + pace.step * steps


def measured_seconds(
    planned: Sequence[Planned], devices: Sequence[str], rate: Rate, say: Callable[[str], None]
) -> tuple[list[float | None], float]:
    """Return the expected seconds of each group, None for a network that can't be trained here; and those to start."""
    classes = [_class_of(one) for one in planned]
    alike = defaultdict[str, list[Planned]](list)
    for name, one in zip(classes, planned, strict=True):
        alike[name].append(one)
    chosen = {name: _spread(ones) for name, ones in alike.items()}
    paces, start = _measure([one for ones in chosen.values() for one in ones], devices, rate, say)
    found: list[float | None] = []
    for name, one in zip(classes, planned, strict=True):
        known = [(other.flops, paces[id(other)]) for other in chosen[name] if id(other) in paces]
        found.append(one.seconds(_between(one.flops, known)) if known else None)
    return found, start


def makespan(seconds: Iterable[float], slots: int) -> float:
    """Return the time until `slots` that take the longest run first are done."""
    ends = [0.0] * slots
    for one in sorted(seconds, reverse=True):
        heapq.heapreplace(ends, ends[0] + one)
    return max(ends)


def _class_of(one: Planned) -> str:
    """Identify networks whose time differs by their size alone."""
    protocol = dataclasses.replace(one.spec.protocol, epochs=1, steps_per_epoch=None, early_stop=None)
    model = dataclasses.replace(one.spec.model, arguments={})
    spec = dataclasses.replace(one.spec, model=model, protocol=protocol, replicate=Replicate(seed=0))
    return digest_of([spec.to_dict(), one.group.stacked])


def _spread(ones: Sequence[Planned]) -> list[Planned]:
    """Choose the smallest network, the largest and those between, one for each size."""
    sizes = list({one.flops: one for one in sorted(ones, key=lambda one: one.flops)}.values())
    last = len(sizes) - 1
    return [sizes[place] for place in sorted({round(part * last / (_MEASURED - 1)) for part in range(_MEASURED)})]


def _between(flops: int, known: Sequence[tuple[int, Pace]]) -> Pace:
    for (low, first), (high, second) in pairwise(known):
        if low <= flops <= high:
            part = (flops - low) / (high - low)
            mixed = (a + part * (b - a) for a, b in ((first.step, second.step), (first.fixed, second.fixed)))
            return Pace(*mixed)
    return min(known, key=lambda one: abs(one[0] - flops))[1]


def _measure(
    chosen: Sequence[Planned], devices: Sequence[str], rate: Rate, say: Callable[[str], None]
) -> tuple[dict[int, Pace], float]:
    """Measure each group, unless it is known for this processor, these slots and this code; and what starting takes."""
    kept, paces, cuts = Kept("paces"), dict[int, Pace](), dict[str, tuple[int, Group]]()
    stands_on = digest_of([list(devices), processor_name(), os.cpu_count()])
    for number, one in enumerate(chosen):
        cut = _cut(one, rate, str(number))
        if known := kept.read(_name(cut), stands_on):
            paces[id(one)] = Pace(**known)
        else:
            cuts[cut.label] = id(one), cut
    if not cuts:
        return paces, kept.read("start", stands_on) or 0.0
    say(f"measuring {len(cuts)} networks, {len(devices)} at a time")
    times: dict[tuple[str, str], float] = {}

    def note(event: Event) -> None:
        times[event.kind, event.label] = time.monotonic()
        if event.kind == "failed":
            say(f"{event.label}: {event.message.strip().splitlines()[-1]}")

    # The first training of each slot loads what later ones find loaded, so it counts as starting.
    smallest = min(chosen, key=lambda one: one.flops * one.spec.protocol.batch_size)
    first = [_cut(smallest, rate, f"first {slot}", seed=MAX_MODELS * (slot + 1)) for slot in range(len(devices))]
    with tempfile.TemporaryDirectory(prefix="claimcheck-measuring-") as folder:
        store, began = RunStore(Path(folder)), time.monotonic()
        run_groups([*first, *(cut for _, cut in cuts.values())], store, devices, note, threading.Event())
        for label, (key, cut) in cuts.items():
            if ("finished", label) in times:
                wall = times["finished", label] - times["started", label]
                paces[key] = _pace(cut, store, wall)
                kept.write(_name(cut), stands_on, vars(paces[key]))
    start = min((times["started", label] for label in cuts if ("started", label) in times), default=began) - began
    kept.write("start", stands_on, start)
    return paces, start


def _cut(one: Planned, rate: Rate, name: str, *, seed: int = 0) -> Group:
    """Shorten the group to two epochs of some seconds; the first one takes what is done once."""
    protocol = one.spec.protocol
    step = max(3 * one.flops * protocol.batch_size / rate.flops_per_second[protocol.precision], rate.step_seconds)
    steps = min(_MOST_STEPS, max(2, round(_EPOCH_SECONDS / step)), protocol.steps_per_epoch or _MOST_STEPS)
    shorter = dataclasses.replace(
        protocol, epochs=_EPOCHS, steps_per_epoch=steps, observe_test=False, early_stop=None, split=SplitSpec()
    )
    specs = tuple(
        dataclasses.replace(spec, protocol=shorter, replicate=Replicate(seed=seed + member))
        for member, spec in enumerate(one.group.specs)
    )
    return dataclasses.replace(one.group, specs=specs, label=f"{name}: {one.group.label}")


def _name(cut: Group) -> str:
    return digest_of([cut.is_stack, list(cut.run_keys)])


def _pace(cut: Group, store: RunStore, wall: float) -> Pace:
    step, rows = 0.0, list[dict[str, int]]()
    for run_key in cut.run_keys:
        folder = store.published(run_key)
        assert folder is not None, "its group has finished"
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        rows = [json.loads(line) for line in (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()]
        step += result["epoch_seconds"][-1] / rows[0]["steps"]
    return Pace(step, max(0.0, wall - _EPOCHS * step * rows[0]["steps"]))
