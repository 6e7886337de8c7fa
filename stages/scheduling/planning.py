"""Estimates the cost of trainings before anything trains: steps, FLOPs, hours on a device, money.

FLOPs are 2 x multiply-accumulates of matrix products, convolutions and attention; a backward pass counts as two forward
passes.  Hours come from the rates in params.yaml: the time of the FLOPs, or the time to start every step if that is
longer, and the time to start each training.  The limit is the time of the FLOPs at the device's peak.  Networks that
train as a stack share its steps, if the device's rate has the time of a stack's step; otherwise each counts as if it
trained alone.
"""

from __future__ import annotations

import dataclasses
import heapq
import json
import math
import os
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from stages.datasets.packed import PackedInfo, read_info
from stages.datasets.prepare import RowCounts, count_rows
from stages.device import processor_name
from stages.evaluation.flops import CountFlops, MeasurementCache, digest_of
from stages.params.experiment import DatasetSource, Params, PlannedRun, ProfileParams, Rate, plan_runs
from stages.run import (
    Precision,
    Protocol,
    Replicate,
    RunSpec,
    SplitSpec,
    canonical_json,
    steps_per_epoch,
    training_counts,
)
from stages.runs.store import RunStore
from stages.scheduling.groups import MAX_MODELS, Event, Group, is_worth_stacking
from stages.scheduling.runner import Order


@dataclass(frozen=True, kw_only=True)
class PlannedCost:
    """The joint cost of some trainings, with several times by kind of device.

    - `seconds`: all trainings one after another.
    - `starting_seconds`: those whose steps take longer to start than to compute.
    - `alone_seconds`: all, if no network shared its steps with others.
    - `limit_seconds`: the FLOPs alone, at the device's peak.

    `stacked` is the number of runs that share steps.
    """

    runs: int
    epochs: int
    steps: int
    flops: int
    stacked: int
    seconds: Mapping[str, float]
    starting_seconds: Mapping[str, float]
    alone_seconds: Mapping[str, float]
    limit_seconds: Mapping[str, float]

    def hours(self, device: str) -> float:
        return self.seconds[device] / 3600

    def limit_hours(self, device: str) -> float:
        return self.limit_seconds[device] / 3600


def add_up(costs: Iterable[PlannedCost], devices: Iterable[str]) -> PlannedCost:
    """Return the sum, zero for no costs."""
    costs, devices = list(costs), list(devices)
    numbers = ("runs", "epochs", "steps", "flops", "stacked")
    seconds = ("seconds", "starting_seconds", "alone_seconds", "limit_seconds")
    total: dict[str, Any] = {name: sum(getattr(cost, name) for cost in costs) for name in numbers}
    total |= {name: {kind: sum(getattr(cost, name)[kind] for cost in costs) for kind in devices} for name in seconds}
    return PlannedCost(**total)


def plan_costs(
    params: Params, profile: ProfileParams, experiments: Iterable[str], count: CountFlops
) -> dict[str, PlannedCost]:
    """Return the cost of each experiment's trainings; a training that two experiments share counts for the first."""
    seen: set[str] = set()
    price, costs = pricing(params, profile, params.rates, count), {}
    for name in experiments:
        experiment = params.experiments[name]
        source = params.datasets[experiment.dataset]
        by_network = defaultdict[str, list[PlannedRun]](list)
        for run in plan_runs(experiment, profile, source):
            # The parts of a run key that are known before the data are packed.
            spec = run.spec.to_dict()
            identity = canonical_json([experiment.dataset, spec])
            if identity not in seen:
                seen.add(identity)
                by_network[canonical_json(spec | {"replicate": {}})].append(run)
        starts = range(0, max(map(len, by_network.values()), default=0), MAX_MODELS)
        stacks = [runs[start : start + MAX_MODELS] for runs in by_network.values() for start in starts]
        costs[name] = add_up([price(run, len(stack)) for stack in stacks for run in stack], params.rates)
    return costs


Price = Callable[[PlannedRun, int], PlannedCost]
"""Returns the cost of a training, given how many replicates of its network would train as one stack."""


def pricing(params: Params, profile: ProfileParams, rates: Mapping[str, Rate], count: CountFlops) -> Price:
    """Return a function that prices trainings under `profile`, each on the rows of its own data set."""

    @cache
    def rows_of(name: str) -> RowCounts:
        return count_rows(name, params.datasets[name], is_stand_in=profile.data == "embedded")

    def price(run: PlannedRun, together: int) -> PlannedCost:
        name = params.experiments[run.name.experiment].dataset
        rows = rows_of(name)
        scored = profile.test_rows or rows.test
        return cost_of_run(run, rows, params.datasets[name], rates, count, scored, together=together)

    return price


def longest_first(params: Params, device: str, count: CountFlops) -> Order:
    """Sort by planned time on `device`; a network that can't be built comes first, because it fails at once."""
    kind = "cuda" if device.startswith("cuda") else "cpu"
    price = pricing(params, params.profile, params.rates, count)

    def cost(run: PlannedRun, together: int) -> float:
        try:
            return price(run, together).seconds[kind]
        except Exception:  # noqa: BLE001  (its training reports the error and stops no other run)
            return math.inf

    return lambda runs, together: -sum(cost(run, together) for run in runs)


def cost_of_run(
    run: PlannedRun,
    rows: RowCounts,
    source: DatasetSource,
    rates: Mapping[str, Rate],
    count: CountFlops,
    scored: int,
    *,
    together: int = 1,
) -> PlannedCost:
    """Return the cost of one training on `rows` of `source`; `scored` test rows are measured at the end.

    `together` is the number of replicates that would train as one stack, including this one, if stacking is faster.
    """
    protocol = run.spec.protocol
    train, validation = training_counts(rows.train, protocol, run.spec.replicate)
    steps = steps_per_epoch(train, protocol)
    epochs = expected_epochs(protocol)
    trained = epochs * min(train, steps * protocol.batch_size)
    measured = epochs * (validation + (rows.test if protocol.observe_test else 0)) + min(scored, rows.test)
    forward = count(run.spec.model, rows.shape, source.classes if source.kind == "text" else None)
    steps, flops = epochs * steps, forward * (3 * trained + measured)
    is_stacked = is_worth_stacking(run.spec, rows.train)
    seconds, starting, alone = dict[str, float](), dict[str, float](), dict[str, float]()
    for device, rate in rates.items():
        computing = flops / rate.flops_per_second[_priced(protocol)]
        own_step = a_step = rate.step_seconds * (protocol.accumulate or 1)
        if is_stacked and rate.stack_step_seconds is not None:
            a_step = rate.stack_step_seconds / together
        seconds[device] = rate.start_seconds + max(computing, steps * a_step)
        starting[device] = seconds[device] if steps * a_step > computing else rate.start_seconds
        alone[device] = rate.start_seconds + max(computing, steps * own_step)
    return PlannedCost(
        runs=1,
        epochs=epochs,
        steps=steps,
        flops=flops,
        stacked=int(is_stacked),
        seconds=seconds,
        starting_seconds=starting,
        alone_seconds=alone,
        limit_seconds={device: flops / rate.peak_flops_per_second[_priced(protocol)] for device, rate in rates.items()},
    )


def _priced(protocol: Protocol) -> Precision:
    """Return the precision whose rates apply: float16 is computed by the same units as bfloat16."""
    return "bfloat16" if protocol.precision == "float16" else protocol.precision


def expected_epochs(protocol: Protocol) -> int:
    """Return all epochs or, if training may stop early, those up to twice the patience after the first that counts."""
    if protocol.early_stop is None:
        return protocol.epochs
    return min(protocol.epochs, protocol.early_stop.from_epoch + 2 * protocol.early_stop.patience)


def what_counts(total: PlannedCost, rates: Mapping[str, Rate]) -> Iterator[str]:
    """Explain for each device how the hours as printed are made up."""
    for kind, rate in rates.items():
        whole, starting = total.hours(kind), total.starting_seconds[kind] / 3600
        yield (
            f"As printed, everything takes {two_digits(whole)} hours on {kind}: {two_digits(whole - starting)} to "
            f"compute and {two_digits(starting)} to launch kernels in the short steps of small networks"
        )
        if not total.stacked:
            continue
        words = "are counted as if each were trained alone"
        if rate.stack_step_seconds is not None:
            alone = two_digits(total.alone_seconds[kind] / 3600)
            words = f"share the steps of their stack; if each were trained alone, everything would take {alone} hours"
        yield f"  {total.stacked:,} stacked trainings {words}"


def in_other_profile(name: str, other: PlannedCost, printed: PlannedCost, rates: Mapping[str, Rate]) -> Iterator[str]:
    """Compare hours and limit under the profile `name` with those as printed, for each device that it makes faster."""
    for kind in rates:
        if other.hours(kind) < printed.hours(kind):
            hours, limit = two_digits(other.hours(kind)), two_digits(other.limit_hours(kind))
            as_printed = f"{two_digits(printed.hours(kind))} and {two_digits(printed.limit_hours(kind))} as printed"
            takes = f"everything takes {hours} hours on {kind} ({limit} at its peak)"
            yield f"Under {name}, {takes}, instead of {as_printed}"


def two_digits(value: float) -> str:
    """Format an estimate: at least two digits, and no meaningless decimals."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


_EPOCHS = 2
_EPOCH_SECONDS = 2.0
_MOST_STEPS = 100
_MEASURED = 3


@dataclass(frozen=True)
class Pace:
    """Seconds of one step of a group, and the fixed time of its training: to build, compile and publish."""

    step: float
    fixed: float

    def seconds(self, spec: RunSpec, info: PackedInfo) -> float:
        """Return the expected time; measuring a row takes a third of the time of training on it."""
        protocol = spec.protocol
        train, validation = training_counts(info.train_images, protocol, spec.replicate)
        epochs = expected_epochs(protocol)
        measured = epochs * (validation + (info.test_images if protocol.observe_test else 0))
        steps = epochs * steps_per_epoch(train, protocol) + measured / (3 * protocol.batch_size)
        return self.fixed + self.step * steps


def measured_seconds(
    groups: Sequence[Group], count: CountFlops, devices: Sequence[str], rate: Rate, say: Callable[[str], None]
) -> tuple[list[float | None], float]:
    """Return the expected seconds of each group (None if its network can't be trained here), and the time to start."""
    infos = {data: read_info(data) for data in {group.data for group in groups}}
    alike = defaultdict[str, dict[int, Group]](dict)  # networks that differ only in size, by forward FLOPs of one row
    sizes = []  # of each group, the name of its network among `alike`, and its FLOPs
    for group in groups:
        whole, info = group.specs[0], infos[group.data]
        protocol = dataclasses.replace(whole.protocol, epochs=1, steps_per_epoch=None, early_stop=None)
        model = dataclasses.replace(whole.model, arguments={})
        spec = dataclasses.replace(whole, model=model, protocol=protocol, replicate=Replicate(seed=0))
        name, flops = digest_of([spec.to_dict(), group.stacked]), count(whole.model, info.shape, info.vocabulary)
        alike[name][flops] = group
        sizes.append((name, flops))
    chosen = []  # of each network, the smallest, the largest, and one of medium size
    for name, by_flops in alike.items():
        ordered = sorted(by_flops)
        places = sorted({round(part * (len(ordered) - 1) / (_MEASURED - 1)) for part in range(_MEASURED)})
        chosen += [(name, ordered[place]) for place in places]
    measured, start = _measure([(alike[name][flops], flops) for name, flops in chosen], devices, rate, say)
    paces = defaultdict[str, list[tuple[int, Pace]]](list)
    for (name, flops), pace in zip(chosen, measured, strict=True):
        if pace is not None:
            paces[name].append((flops, pace))
    found: list[float | None] = []
    for group, (name, flops) in zip(groups, sizes, strict=True):
        if not (known := paces[name]):
            found.append(None)
            continue
        step, fixed = (
            float(np.interp(flops, [size for size, _ in known], [getattr(pace, part) for _, pace in known]))
            for part in ("step", "fixed")
        )
        found.append(Pace(step, fixed).seconds(group.specs[0], infos[group.data]))
    return found, start


def makespan(seconds: Iterable[float], slots: int) -> float:
    """Return the time until all runs are done if each of `slots` always takes the longest run left."""
    ends = [0.0] * slots
    for one in sorted(seconds, reverse=True):
        heapq.heapreplace(ends, ends[0] + one)
    return max(ends)


def _measure(
    chosen: Sequence[tuple[Group, int]], devices: Sequence[str], rate: Rate, say: Callable[[str], None]
) -> tuple[list[Pace | None], float]:
    """Measure the pace of each group (with its FLOPs), unless it is known here, and the time to start.

    It is known if this processor has measured it with these slots and this code; None if it can't be trained.
    """
    from stages.scheduling.local import run_groups  # needs psutil, which the image of the service lacks

    kept, paces, cuts = MeasurementCache("paces"), list[Pace | None](), dict[int, Group]()
    machine = digest_of([list(devices), processor_name(), os.cpu_count()])
    for number, (group, flops) in enumerate(chosen):
        cut = _cut(group, flops, rate, str(number))
        known = kept.read(_name(cut), machine)
        paces.append(Pace(**known) if known else None)
        if not known:
            cuts[number] = cut
    if not cuts:
        return paces, kept.read("start", machine) or 0.0
    say(f"measuring {len(cuts)} networks, {len(devices)} at a time")
    times: dict[tuple[str, str], float] = {}

    def note(event: Event) -> None:
        times[event.kind, event.label] = time.monotonic()
        if event.kind == "failed":
            say(f"{event.label}: {event.message.strip().splitlines()[-1]}")

    # The first training of each slot also loads libraries for later ones, so it counts as starting.
    smallest = min(chosen, key=lambda pair: pair[1] * pair[0].specs[0].protocol.batch_size)
    first = [_cut(*smallest, rate, f"first {slot}", seed=MAX_MODELS * (slot + 1)) for slot in range(len(devices))]
    with tempfile.TemporaryDirectory(prefix="claimcheck-measuring-") as scratch:
        store, began = RunStore(Path(scratch)), time.monotonic()
        run_groups([*first, *cuts.values()], store, devices, note, threading.Event())
        for number, cut in cuts.items():
            if ("finished", cut.label) in times:
                step, per_epoch = 0.0, 0
                for folder in map(store.published, cut.run_keys):
                    assert folder is not None, "its group has finished"
                    result = json.loads((folder / "result.json").read_bytes())
                    per_epoch = json.loads((folder / "history.jsonl").read_bytes().splitlines()[0])["steps"]
                    step += result["epoch_seconds"][-1] / per_epoch
                wall = times["finished", cut.label] - times["started", cut.label]
                paces[number] = pace = Pace(step, max(0.0, wall - _EPOCHS * step * per_epoch))
                kept.write(_name(cut), machine, vars(pace))
    labels = [cut.label for cut in cuts.values()]
    start = min((times["started", label] for label in labels if ("started", label) in times), default=began) - began
    kept.write("start", machine, start)
    return paces, start


def _cut(group: Group, flops: int, rate: Rate, name: str, *, seed: int = 0) -> Group:
    """Shorten the group to two epochs of some seconds; the first one includes all work that is done once."""
    protocol = group.specs[0].protocol
    step = max(3 * flops * protocol.batch_size / rate.flops_per_second[_priced(protocol)], rate.step_seconds)
    steps = min(_MOST_STEPS, max(2, round(_EPOCH_SECONDS / step)), protocol.steps_per_epoch or _MOST_STEPS)
    shorter = dataclasses.replace(
        protocol, epochs=_EPOCHS, steps_per_epoch=steps, observe_test=False, early_stop=None, split=SplitSpec()
    )
    specs = tuple(
        dataclasses.replace(spec, protocol=shorter, replicate=Replicate(seed=seed + member))
        for member, spec in enumerate(group.specs)
    )
    return dataclasses.replace(group, specs=specs, label=f"{name}: {group.label}")


def _name(cut: Group) -> str:
    return digest_of([cut.is_stack, list(cut.run_keys)])
