"""The cost of trainings before anything trains: steps, FLOPs, hours on a device, money.

FLOPs are 2 x multiply-accumulates of matrix products, convolutions and attention; a backward pass counts as two forward
passes.  Hours come from the rates in params.yaml: the time of the FLOPs, but at least that of starting every step; the
limit is the time of the FLOPs at the device's peak.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stages.datasets.rows import Rows, count_rows
from stages.evaluation.flops import CountFlops
from stages.params.budget import PlannedRun, plan_runs
from stages.params.experiment import DatasetSource, Params, Profile, Rate
from stages.run import Protocol, canonical_json, steps_per_epoch, training_counts


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The joint cost of some trainings, by kind of device: `seconds` if each trains alone on one, and the time
    that their FLOPs alone would take at its peak.
    """

    runs: int
    epochs: int
    steps: int
    flops: int
    seconds: Mapping[str, float]
    limit_seconds: Mapping[str, float]

    def hours(self, device: str) -> float:
        return self.seconds[device] / 3600

    def limit_hours(self, device: str) -> float:
        return self.limit_seconds[device] / 3600


def add_up(costs: Iterable[Cost], devices: Iterable[str]) -> Cost:
    """The sum; zero for no costs."""
    costs, devices = list(costs), list(devices)
    return Cost(
        runs=sum(cost.runs for cost in costs),
        epochs=sum(cost.epochs for cost in costs),
        steps=sum(cost.steps for cost in costs),
        flops=sum(cost.flops for cost in costs),
        seconds={device: sum(cost.seconds[device] for cost in costs) for device in devices},
        limit_seconds={device: sum(cost.limit_seconds[device] for cost in costs) for device in devices},
    )


def plan_costs(params: Params, profile: Profile, experiments: Iterable[str], count: CountFlops) -> dict[str, Cost]:
    """Cost of each experiment's trainings under `profile`; one that two experiments share counts for the first."""
    seen: set[str] = set()
    costs = {}
    for name in experiments:
        experiment = params.experiments[name]
        source = params.datasets[experiment.dataset]
        rows = count_rows(experiment.dataset, source, is_stand_in=profile.data == "embedded")
        own = []
        for run in plan_runs(experiment, profile, source):
            # The parts of a run key that are known before the data are packed.
            identity = canonical_json([experiment.dataset, run.spec().to_dict()])
            if identity not in seen:
                seen.add(identity)
                own.append(cost_of_run(run, rows, source, params.rates, count, profile.test_rows or rows.test))
        costs[name] = add_up(own, params.rates)
    return costs


def cost_of_run(
    run: PlannedRun, rows: Rows, source: DatasetSource, rates: Mapping[str, Rate], count: CountFlops, scored: int
) -> Cost:
    """Cost of one training on `rows` of `source`, of which `scored` test rows are measured at the end."""
    protocol = run.protocol
    train, validation = training_counts(rows.train, protocol, run.replicate)
    steps = steps_per_epoch(train, protocol)
    epochs = expected_epochs(protocol)
    trained = epochs * min(train, steps * protocol.batch_size)
    measured = epochs * (validation + (rows.test if protocol.observe_test else 0)) + min(scored, rows.test)
    forward = count(run.model, rows.shape, source.classes if source.kind == "text" else None)
    steps, flops = epochs * steps, forward * (3 * trained + measured)
    seconds = {
        device: max(flops / rate.flops_per_second[protocol.precision], steps * rate.step_seconds)
        for device, rate in rates.items()
    }
    limits = {device: flops / rate.peak_flops_per_second[protocol.precision] for device, rate in rates.items()}
    return Cost(runs=1, epochs=epochs, steps=steps, flops=flops, seconds=seconds, limit_seconds=limits)


def expected_epochs(protocol: Protocol) -> int:
    """All epochs; where training stops early, twice the patience after the first epoch that counts."""
    if protocol.early_stop is None:
        return protocol.epochs
    return min(protocol.epochs, protocol.early_stop.from_epoch + 2 * protocol.early_stop.patience)
