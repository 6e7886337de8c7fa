"""The missing trainings of several experiments as one list: no device waits at the end for one that began last, and
none for DVC, which runs its stages one after the other.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stages.datasets.packed import PackedDataError
from stages.evaluation.flops import CountFlops
from stages.params.budget import PlannedRun
from stages.params.experiment import Experiment, Params, ParamsError
from stages.runs.object_store import open_store
from stages.runs.store import Store
from stages.scheduling.engine.groups import Event, Group, Report, find_engine
from stages.scheduling.journal import Journal
from stages.scheduling.planning import pricing
from stages.scheduling.runner import Order, compare, find_experiment, read_packed


@dataclass(frozen=True)
class Queue:
    """`groups` in the order in which they begin; `names` of their runs by key, `<experiment>.<arm>.<replicate>`.

    `held`: wanted runs that have an outcome, by experiment.
    """

    groups: list[Group]
    names: dict[str, str]
    held: dict[str, int]


def train_together(
    chosen: Mapping[str, Collection[str] | None],
    params: Params,
    *,
    data: Path,
    devices: list[str],
    report: Report,
    stop: threading.Event,
    engine: str,
    order: Order,
) -> tuple[int, int]:
    """Train what the store lacks of `chosen`; returns how many runs were missing and how many still are.

    `chosen`: labels `<arm>.<replicate>` by experiment, None for those of the profile.  The experiments' folders stay as
    they are: `dvc repro` takes the outcomes from the store.

    Raises:
        EngineError, EvidenceError, ParamsError, TrainingsKilled: as for `stages.scheduling.runner.train_experiment`.
        PackedDataError: data aren't packed.
    """
    run_groups, store = find_engine(engine), open_store()
    queue = line_up(chosen, params, data, store, order)
    journal = Journal(
        store,
        queue.groups,
        queue.names,
        engine=engine,
        profile=params.profile_name,
        slots=len(devices),
        held=queue.held,
    )

    def report_both(event: Event) -> None:
        report(event)
        journal.report(event)

    with journal:
        run_groups(queue.groups, store, devices, report_both, stop)
    return len(queue.names), len(queue.names.keys() - {*store.run_keys()})


def line_up(
    chosen: Mapping[str, Collection[str] | None], params: Params, data: Path, store: Store, order: Order
) -> Queue:
    """The groups that are missing of `chosen` (as `train_together` takes it), each run once, in `order`.

    Raises:
        EvidenceError, ParamsError: as for `stages.scheduling.runner.train_experiment`.
        PackedDataError: data aren't packed.
    """
    refuse_unpacked([find_experiment(params, name) for name in chosen], params, data)
    queue, listed = Queue([], {}, {}), [*store.run_keys()]
    ranked: list[tuple[float, Group]] = []
    for name, labels in chosen.items():
        print(f"{name}:")
        only = None if labels is None else sorted(labels)
        found = compare(find_experiment(params, name), params, data, store, only, listed)
        queue.held[name] = len(found.wanted) - len(found.missing)
        for group in found.groups:
            runs = [run for run in found.missing_of(group) if run.spec.run_key not in queue.names]
            queue.names.update({run.spec.run_key: run.name.label for run in runs})
            if runs:
                ranked.append((order(runs, group.stacked), group))
    queue.groups.extend(group for _, group in sorted(ranked, key=lambda one: one[0]))
    return queue


def refuse_unpacked(experiments: Iterable[Experiment], params: Params, data: Path) -> None:
    """Name all data sets of these experiments that aren't packed as the profile wants, and what packs them.

    Raises:
        PackedDataError: there are some.
    """
    lacking: dict[str, None] = {}
    for experiment in experiments:
        try:
            read_packed(experiment, params, data)
        except (PackedDataError, ParamsError):
            lacking[experiment.dataset] = None
    if lacking:
        wanted = {experiment.dataset for experiment in params.experiments.values()}
        targets = "preprocess" if lacking.keys() == wanted else " ".join(f"preprocess@{name}" for name in lacking)
        raise PackedDataError(
            f"{', '.join(lacking)}: not packed in data/processed as the profile {params.profile_name} wants them "
            f"({params.profile.data} data); `dvc repro {targets}` packs them"
        )


def longest_first(params: Params, device: str, count: CountFlops) -> Order:
    """Sort by planned time on the named `device`; a network that can't be built comes first, since it fails at once."""
    kind = "cuda" if device.startswith("cuda") else "cpu"
    price = pricing(params, params.profile, params.rates, count)

    def cost(run: PlannedRun, together: int) -> float:
        try:
            return price(run, together).seconds[kind]
        except Exception:  # noqa: BLE001  (its training reports the error and stops no other run)
            return math.inf

    return lambda runs, together: -sum(cost(run, together) for run in runs)
