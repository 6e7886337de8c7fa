"""Trains the missing runs of several experiments at once, into the store alone: no experiment waits for another.

`dvc repro` afterwards finds them in the store, and evaluates and records.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from stages.params.experiment import Params, ParamsError
from stages.runs.equivalence import read_equivalences
from stages.runs.stores import open_store
from stages.scheduling.engine.choice import DEFAULT, find_engine
from stages.scheduling.engine.groups import Event, Group, Report
from stages.scheduling.grouping import form_groups
from stages.scheduling.journal import Journal
from stages.scheduling.runner import (
    Assignment,
    assignments,
    find_experiment,
    find_outcome,
    label_of_group,
    read_packed,
    ways_to,
)


def train_missing(
    params: Params,
    chosen: Mapping[str, Collection[str]],
    *,
    data: Path,
    devices: list[str],
    report: Report,
    stop: threading.Event,
    engine: str = DEFAULT,
    first: Callable[[str, Assignment], float] = lambda experiment, run: 0.0,
) -> bool:
    """Train what the store lacks of `chosen`; returns True if each of these runs has an outcome.

    `chosen`: labels `<arm>.<replicate>` by experiment.  `first`: groups begin by its smallest value over their runs,
    by experiment and run, and equal ones in file order.

    Raises:
        EngineError: no such engine, or its package is missing.
        EvidenceError: a line of equivalent codes can't be read, or isn't as it was written.
        PackedDataError: an experiment's data aren't packed.
        ParamsError: no such experiment or run, or the packed data are stand-ins where the profile wants real data.
    """
    run_groups, store, equivalences = find_engine(engine), open_store(), read_equivalences(data.parent)
    names: dict[str, str] = {}
    held: dict[str, int] = {}
    ranked: list[tuple[float, Group]] = []
    for name, labels in chosen.items():
        experiment = find_experiment(params, name)
        packed = read_packed(experiment, params, data)
        runs = {run.label: run for run in assignments(experiment, params, packed.digest, every_role=True)}
        if unknown := sorted(set(labels) - runs.keys()):
            raise ParamsError(f"{name}: no run {unknown[0]!r} under the profile {params.profile_name}")
        missing = {
            run.spec.run_key: run
            for label, run in runs.items()
            if label in labels and find_outcome(store, ways_to(run.spec, equivalences)) is None
        }
        held[name] = len(set(labels)) - len(missing)
        fresh = [run.spec for key, run in missing.items() if key not in names]
        names |= {key: f"{name}.{run.label}" for key, run in missing.items() if key not in names}
        for specs, is_stack in form_groups(fresh, packed.train_images, store):
            members = [missing[spec.run_key] for spec in specs if spec.run_key in missing]
            group = Group(
                label=f"{name} {label_of_group([run.label for run in members])}",
                specs=specs,
                data=data / "processed" / experiment.dataset,
                is_stack=is_stack,
            )
            ranked.append((min(first(name, run) for run in members), group))
    groups = [group for _, group in sorted(ranked, key=lambda one: one[0])]
    journal = Journal(store, groups, names, engine=engine, profile=params.profile_name, slots=len(devices), held=held)

    def report_both(event: Event) -> None:
        report(event)
        journal.report(event)

    with journal:
        return run_groups(groups, store, devices, report_both, stop)
