"""The trainings as printed that have no outcome yet, each with its planned seconds on a kind of device."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stages.datasets.packed import PackedDataError, read_info
from stages.datasets.rows import count_rows
from stages.evaluation.flops import CountFlops
from stages.params.budget import PlannedRun, plan_runs
from stages.params.experiment import Params, ParamsError
from stages.params.nearest import nearest
from stages.priorities.looks import PROFILE, RunName
from stages.run import canonical_json
from stages.runs.equivalence import read_equivalences
from stages.runs.stores import open_store
from stages.scheduling.grouping import MAX_MODELS
from stages.scheduling.planning import cost_of_run, network_of
from stages.scheduling.runner import assignments, find_experiment, find_outcome, ways_to


@dataclass(frozen=True, kw_only=True)
class Trainings:
    """All runs as printed.  `first`: for each the first run with the same training, itself if none is before it."""

    planned: Mapping[RunName, PlannedRun]
    first: Mapping[RunName, RunName]

    def of(self, runs: Iterable[RunName]) -> frozenset[RunName]:
        """One run for each training among `runs`."""
        return frozenset(self.first[run] for run in runs)

    def with_same(self, runs: Iterable[RunName]) -> frozenset[RunName]:
        """These runs and all that are the same trainings."""
        trainings = self.of(runs)
        return frozenset(run for run, first in self.first.items() if first in trainings)


def as_printed(params: Params) -> Params:
    """The params under the profile whose results decide.

    Raises:
        ParamsError: params.yaml has no such profile.
    """
    if PROFILE not in params.profiles:
        raise ParamsError(f"params.yaml: no profile {PROFILE!r}, whose results alone decide a claim")
    return dataclasses.replace(params, profile_name=PROFILE)


def all_trainings(params: Params) -> Trainings:
    """The grids of all experiments under the profile of `params`."""
    planned, first, known = dict[RunName, PlannedRun](), dict[RunName, RunName](), dict[str, RunName]()
    for name, experiment in params.experiments.items():
        for run in plan_runs(experiment, params.profile, params.datasets[experiment.dataset]):
            place = RunName(name, run.arm, run.replicate_index)
            planned[place] = run
            # The parts of a run key that are known before the data are packed.
            identity = canonical_json([experiment.dataset, run.spec().to_dict()])
            first[place] = known.setdefault(identity, place)
    return Trainings(planned=planned, first=first)


def trained_runs(params: Params, root: Path = Path()) -> frozenset[RunName]:
    """Runs of the profile whose outcome is in the store, those of older code that gives the same included.

    Raises:
        EvidenceError: a line of equivalent codes isn't as it was written.
    """
    store, equivalences, found = open_store(root), read_equivalences(root), set[RunName]()
    stored = {*store.run_keys()}
    for name, experiment in params.experiments.items():
        try:
            digest = read_info(root / "data" / "processed" / experiment.dataset).digest
        except PackedDataError:
            continue
        for run in assignments(experiment, params, digest):
            if find_outcome(store, ways_to(run.spec, equivalences), stored) is not None:
                found.add(RunName(name, run.planned.arm, run.planned.replicate_index))
    return frozenset(found)


def seconds_each(
    trainings: Trainings, runs: Iterable[RunName], params: Params, device: str, count: CountFlops
) -> dict[RunName, float]:
    """Planned seconds of the device for each of `runs`, in the order of the grid; a network's replicates share a stack.

    Raises:
        ParamsError: no rate for such a device.
    """
    if device not in params.rates:
        raise ParamsError(f"params.yaml: rates has no device {device!r}{nearest(device, params.rates)}")
    wanted = frozenset(runs)
    ordered = [run for run in trainings.planned if run in wanted]
    networks = {run: network_of(trainings.planned[run]) for run in ordered}
    alike = Counter(networks.values())
    seconds = {}
    for run in ordered:
        experiment = find_experiment(params, run.experiment)
        source = params.datasets[experiment.dataset]
        rows = count_rows(experiment.dataset, source, is_stand_in=params.profile.data == "embedded")
        together = min(MAX_MODELS, alike[networks[run]])
        rates, scored = {device: params.rates[device]}, params.profile.test_rows or rows.test
        cost = cost_of_run(trainings.planned[run], rows, source, rates, count, scored, together=together)
        seconds[run] = cost.seconds[device]
    return seconds
