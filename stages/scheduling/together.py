"""The missing trainings of several experiments as one list, the longest first: no device waits at the end for one
that began last, and none for DVC, which runs its stages one after the other.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from stages.datasets.rows import count_rows
from stages.evaluation.flops import CountFlops
from stages.params.budget import PlannedRun
from stages.params.experiment import Params
from stages.runs.store import Store
from stages.runs.stores import open_store
from stages.scheduling.engine.choice import find_engine
from stages.scheduling.engine.groups import Group, Report
from stages.scheduling.planning import cost_of_run
from stages.scheduling.runner import compare, find_experiment


def train_together(
    names: Sequence[str],
    params: Params,
    *,
    data: Path,
    devices: list[str],
    report: Report,
    stop: threading.Event,
    engine: str,
    count: CountFlops,
) -> tuple[int, int]:
    """Train what the store lacks of these experiments; returns how many runs were missing and how many still are.

    The experiments' folders stay as they are: `dvc repro` takes the outcomes from the store.

    Raises:
        EngineError, EvidenceError, ParamsError, TrainingsKilled: as for `stages.scheduling.runner.train_experiment`.
    """
    run_groups, store = find_engine(engine), open_store()
    groups = longest_first(names, params, data, store, "cuda" if devices[0].startswith("cuda") else "cpu", count)
    keys = {run_key for group in groups for run_key in group.run_keys if not store.has(run_key)}
    run_groups(groups, store, devices, report, stop)
    return len(keys), sum(not store.has(run_key) for run_key in keys)


def longest_first(
    names: Sequence[str], params: Params, data: Path, store: Store, device: str, count: CountFlops
) -> list[Group]:
    """The groups that these experiments lack, each once, by their time on `device` as the plan has it.

    Raises:
        EvidenceError, ParamsError: as for `stages.scheduling.runner.train_experiment`.
    """
    seconds: dict[tuple[str, ...], tuple[float, Group]] = {}
    known: set[str] = set()
    for name in names:
        experiment = find_experiment(params, name)
        print(f"{name}:")
        found = compare(experiment, params, data, store)
        source = params.datasets[experiment.dataset]
        rows = count_rows(experiment.dataset, source, is_stand_in=params.profile.data == "embedded")
        planned = {assignment.spec.run_key: assignment.planned for assignment in found.missing}

        def cost(run: PlannedRun, together: int) -> float:
            scored = params.profile.test_rows or rows.test  # noqa: B023  (called before the next turn)
            priced = cost_of_run(run, rows, source, params.rates, count, scored, together=together)  # noqa: B023
            return priced.seconds[device]

        for group in found.groups:
            keys = [run_key for run_key in group.run_keys if run_key in planned and run_key not in known]
            known.update(keys)
            if keys:
                together = len(group.specs) if group.is_stack else 1
                seconds[group.run_keys] = sum(cost(planned[key], together) for key in keys), group
    return [group for _, group in sorted(seconds.values(), key=lambda one: -one[0])]
