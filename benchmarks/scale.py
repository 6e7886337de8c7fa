"""The planned trainings on many GPUs that come and go, simulated: the tables of docs/scale.md on scheduling.

The trainings of profile `paper`, grouped as the engine groups them, with the plan's seconds on its GPU, and the
engine's own times for leases and saved states.  A GPU lives for times that are exponentially distributed.
Run: python -m benchmarks.scale
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.simulated import Job, Simulated, Site, bound, longest_first, simulate
from stages.datasets.prepare import count_rows
from stages.evaluation.flops import CountFlops, FlopCounts
from stages.params.budget import PlannedRun, plan_runs
from stages.params.experiment import Params, load_params
from stages.run import canonical_json
from stages.runs.store import RunStore, Specs
from stages.scheduling.engine.groups import form_groups
from stages.scheduling.engine.lease import EXPIRY_SECONDS
from stages.scheduling.planning import cost_of_run, expected_epochs
from stages.verdicts.intervals import half_width

DEVICE, PROFILE = "cuda", "paper"
GPUS = (1, 8, 64, 512)
LIVES_HOURS = (math.inf, 24.0, 4.0, 0.5)
"""Mean time until a GPU is taken away."""
SEEDS = 20
SAVE_SECONDS = 60.0
"""How often a training saves its state, as in `stages.training.loop`; stacks save between epochs."""
START_SECONDS = 20.0
"""Assumed: a process, its data on the device, what compiles."""
AWAY_SECONDS = 120.0
"""Assumed: until another GPU takes the place of one that was taken away."""


LONGEST = 25
"""So many groups are listed."""
TOGETHER, LONG_SECONDS = (1, 2, 4, 8), 900.0
"""Groups of more than so many seconds, on so many GPUs each, as if these shared a step without loss."""


def planned_jobs(params: Params, count: CountFlops) -> list[Job]:
    """The groups of all experiments in file order; a training that two experiments share belongs to the first."""
    rates, jobs = {DEVICE: params.rates[DEVICE]}, list[Job]()
    seen: set[str] = set()
    for name, experiment in params.experiments.items():
        source = params.datasets[experiment.dataset]
        rows = count_rows(experiment.dataset, source, is_stand_in=False)
        own: dict[str, PlannedRun] = {}
        for run in plan_runs(experiment, params.profiles[PROFILE], source):
            identity = canonical_json([experiment.dataset, run.spec().to_dict()])
            if identity not in seen:
                seen.add(identity)
                own[run.spec().run_key] = run
        for specs, is_stack in _groups(own.values(), rows.train):
            members = [own[spec.run_key] for spec in specs]
            costs = [cost_of_run(run, rows, source, rates, count, rows.test, together=len(specs)) for run in members]
            seconds = sum(cost.seconds[DEVICE] for cost in costs)
            epoch = seconds / expected_epochs(members[0].protocol)
            jobs.append(
                Job(
                    label=f"{name} {members[0].arm}.{members[0].replicate_index}",
                    seconds=seconds,
                    save_seconds=max(epoch, SAVE_SECONDS) if is_stack else SAVE_SECONDS,
                )
            )
    return jobs


def _groups(runs: Iterable[PlannedRun], rows: int) -> list[tuple[Specs, bool]]:
    """As the engine forms them where nothing has been trained."""
    with tempfile.TemporaryDirectory() as empty:
        return form_groups([run.spec() for run in runs], rows, RunStore(Path(empty)))


def repeat(jobs: Sequence[Job], gpus: int, life_hours: float) -> list[Simulated]:
    """One simulation a seed; a single one where nothing is drawn."""
    site = Site(devices=gpus, start_seconds=START_SECONDS, lease_seconds=EXPIRY_SECONDS, away_seconds=AWAY_SECONDS)
    if math.isinf(life_hours):
        return [simulate(jobs, site)]
    found = []
    for seed in range(SEEDS):
        draw = random.Random(seed)
        found.append(simulate(jobs, site, lambda draw=draw: draw.expovariate(1 / (3600 * life_hours))))  # type: ignore[misc]
    return found


def with_interval(values: Sequence[float]) -> str:
    """The mean, and the half-width of its 95 % interval (Student's t)."""
    mean = statistics.fmean(values)
    if len(values) == 1:
        return f"{mean:.3g}"
    half = half_width(statistics.variance(values) / len(values), len(values) - 1, 0.025)
    return f"{mean:.3g} ± {float(half):.1g}"


HEADINGS = (
    *("GPUs", "a GPU lives", "bound, h", "longest first, h", "over the bound", "in file order, h", "work lost"),
    "attempts a group",
)


def lines(jobs: Sequence[Job]) -> Iterator[str]:
    """The tables, as Markdown."""
    hours = [job.seconds / 3600 for job in jobs]
    yield f"{len(jobs):,} groups take {sum(hours):.0f} hours of one GPU; the longest {_half(hours)} take half of them."
    yield ""
    yield from _rows(("the longest groups", "hours each"))
    for name, alike in itertools.groupby(longest_first(jobs)[:LONGEST], key=lambda job: job.label.rpartition(".")[0]):
        same = list(alike)
        yield f"| {len(same)} × `{name}` | {same[0].seconds / 3600:.2f} |"
    yield ""
    yield from _rows(HEADINGS)
    for gpus, life in itertools.product(GPUS, LIVES_HOURS):
        yield row(jobs, gpus, life)
    yield ""
    yield from _rows(("the longest groups train on", *(f"bound on {gpus} GPUs, h" for gpus in GPUS)))
    for together in TOGETHER:
        spread = max(job.seconds / (together if job.seconds > LONG_SECONDS else 1) for job in jobs) / 3600
        bounds = (f"{max(spread, sum(hours) / gpus):.3g}" for gpus in GPUS)
        yield f"| {together} GPU{'s' * (together > 1)} each | {' | '.join(bounds)} |"


def _rows(headings: Sequence[str]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{'--:|' * len(headings)}"


def row(jobs: Sequence[Job], gpus: int, life_hours: float) -> str:
    least = bound(jobs, gpus) / 3600
    ours, in_file = repeat(longest_first(jobs), gpus, life_hours), repeat(jobs, gpus, life_hours)
    hours = [one.makespan / 3600 for one in ours]
    cells = (
        *(str(gpus), "for ever" if math.isinf(life_hours) else f"{life_hours:g} h", f"{least:.3g}"),
        *(with_interval(hours), f"{100 * (statistics.fmean(hours) / least - 1):.0f} %"),
        with_interval([one.makespan / 3600 for one in in_file]),
        f"{100 * statistics.fmean(one.lost / one.trained for one in ours):.2g} %",
        f"{statistics.fmean(sum(one.attempts.values()) for one in ours) / len(jobs):.2f}",
    )
    return f"| {' | '.join(cells)} |"


def _half(hours: Sequence[float]) -> int:
    """The least number of groups that have half of all hours."""
    total = itertools.accumulate(sorted(hours, reverse=True))
    return next(number for number, so_far in enumerate(total, 1) if so_far >= sum(hours) / 2)


if __name__ == "__main__":
    counts = FlopCounts()
    for line in lines(planned_jobs(load_params(), counts.count)):
        print(line, flush=True)
    counts.save()
