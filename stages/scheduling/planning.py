"""The cost of trainings before anything trains: steps, FLOPs, hours on a device, money.

FLOPs are 2 x multiply-accumulates of matrix products, convolutions and attention; a backward pass counts as two forward
passes.  Hours come from the rates in params.yaml: the time of the FLOPs, but at least that of starting every step; the
limit is the time of the FLOPs at the device's peak.  Networks that train as a stack share its steps on devices whose
rate says what a step of a stack takes; on others each is counted as if it trained alone.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from stages.datasets.rows import Rows, count_rows
from stages.evaluation.flops import CountFlops
from stages.params.budget import PlannedRun, plan_runs
from stages.params.experiment import DatasetSource, Params, Profile, Rate
from stages.run import Protocol, Replicate, canonical_json, steps_per_epoch, training_counts
from stages.scheduling.grouping import MAX_MODELS, is_worth_stacking


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The joint cost of some trainings, by kind of device: `seconds` one after the other, those of trainings whose
    steps are over sooner than started (`starting_seconds`), those if no network shared its steps with others
    (`alone_seconds`), and the time that their FLOPs alone would take at its peak.  `stacked`: runs that share steps.
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


def add_up(costs: Iterable[Cost], devices: Iterable[str]) -> Cost:
    """The sum; zero for no costs."""
    costs, devices = list(costs), list(devices)
    return Cost(
        runs=sum(cost.runs for cost in costs),
        epochs=sum(cost.epochs for cost in costs),
        steps=sum(cost.steps for cost in costs),
        flops=sum(cost.flops for cost in costs),
        stacked=sum(cost.stacked for cost in costs),
        seconds=_sum((cost.seconds for cost in costs), devices),
        starting_seconds=_sum((cost.starting_seconds for cost in costs), devices),
        alone_seconds=_sum((cost.alone_seconds for cost in costs), devices),
        limit_seconds=_sum((cost.limit_seconds for cost in costs), devices),
    )


def _sum(seconds: Iterable[Mapping[str, float]], devices: Iterable[str]) -> dict[str, float]:
    each = list(seconds)
    return {device: sum(one[device] for one in each) for device in devices}


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
                own.append(run)
        alike, placed = Counter(map(network_of, own)), Counter[str]()
        priced = []
        for run in own:
            network = network_of(run)
            full = placed[network] // MAX_MODELS * MAX_MODELS
            placed[network] += 1
            together = min(MAX_MODELS, alike[network] - full)
            scored = profile.test_rows or rows.test
            priced.append(cost_of_run(run, rows, source, params.rates, count, scored, together=together))
        costs[name] = add_up(priced, params.rates)
    return costs


def cost_of_run(
    run: PlannedRun,
    rows: Rows,
    source: DatasetSource,
    rates: Mapping[str, Rate],
    count: CountFlops,
    scored: int,
    *,
    together: int = 1,
) -> Cost:
    """Cost of one training on `rows` of `source`, of which `scored` test rows are measured at the end.

    `together`: replicates of its network that would train as one stack, itself included, if stacking is worth it.
    """
    protocol = run.protocol
    train, validation = training_counts(rows.train, protocol, run.replicate)
    steps = steps_per_epoch(train, protocol)
    epochs = expected_epochs(protocol)
    trained = epochs * min(train, steps * protocol.batch_size)
    measured = epochs * (validation + (rows.test if protocol.observe_test else 0)) + min(scored, rows.test)
    forward = count(run.model, rows.shape, source.classes if source.kind == "text" else None)
    steps, flops = epochs * steps, forward * (3 * trained + measured)
    is_stacked = is_worth_stacking(run.spec(), rows.train)
    seconds, starting, alone = dict[str, float](), dict[str, float](), dict[str, float]()
    for device, rate in rates.items():
        computing = flops / rate.flops_per_second[protocol.precision]
        a_step = rate.step_seconds
        if is_stacked and rate.stack_step_seconds is not None:
            a_step = rate.stack_step_seconds / together
        seconds[device] = max(computing, steps * a_step)
        starting[device] = seconds[device] if steps * a_step > computing else 0.0
        alone[device] = max(computing, steps * rate.step_seconds)
    return Cost(
        runs=1,
        epochs=epochs,
        steps=steps,
        flops=flops,
        stacked=int(is_stacked),
        seconds=seconds,
        starting_seconds=starting,
        alone_seconds=alone,
        limit_seconds={
            device: flops / rate.peak_flops_per_second[protocol.precision] for device, rate in rates.items()
        },
    )


def network_of(run: PlannedRun) -> str:
    """What the replicates of a run have in common."""
    return canonical_json(dataclasses.replace(run.spec(), replicate=Replicate(seed=0)).to_dict())


def expected_epochs(protocol: Protocol) -> int:
    """All epochs; where training stops early, twice the patience after the first epoch that counts."""
    if protocol.early_stop is None:
        return protocol.epochs
    return min(protocol.epochs, protocol.early_stop.from_epoch + 2 * protocol.early_stop.patience)


def what_counts(total: Cost, rates: Mapping[str, Rate]) -> Iterator[str]:
    """For each device, what the hours as printed are made of, and what would change them."""
    for kind, rate in rates.items():
        whole, starting = total.hours(kind), total.starting_seconds[kind] / 3600
        text = f"As printed it takes {two_digits(whole)} hours on {kind}: {two_digits(whole - starting)} to compute"
        yield f"{text}, {two_digits(starting)} to start the short steps of small networks (fewer kernels a step help)"
        if not total.stacked:
            continue
        words = "are counted as if each trained alone"
        if rate.stack_step_seconds is not None:
            alone = two_digits(total.alone_seconds[kind] / 3600)
            words = f"share the steps of their stack; if each trained alone, all would take {alone} hours"
        yield f"  {total.stacked:,} trainings of stacks {words}"


def in_other_profile(name: str, other: Cost, printed: Cost, rates: Mapping[str, Rate]) -> Iterator[str]:
    """For each device that is faster under the profile `name`, its hours and limit beside those as printed."""
    for kind in rates:
        if other.hours(kind) < printed.hours(kind):
            hours, limit = two_digits(other.hours(kind)), two_digits(other.limit_hours(kind))
            as_printed = f"as printed {two_digits(printed.hours(kind))} and {two_digits(printed.limit_hours(kind))}"
            yield f"Under {name} all would take {hours} hours on {kind}, {limit} at its peak; {as_printed}"


def two_digits(value: float) -> str:
    """Format an estimate: at least two digits, and no meaningless decimals."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
