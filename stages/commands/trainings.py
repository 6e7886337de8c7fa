"""What trainings will cost and which are done, and the profile that decides which there are."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from stages.commands.command import Answer, Column, TextTable, UsageError
from stages.datasets.packed import PackedDataError, read_info
from stages.evaluation.flops import FlopCounts
from stages.faults import stop_on_signals
from stages.params.experiment import Params, ParamsError, Rate, describe_cut, load_params
from stages.params.schema import nearest
from stages.runs.store import write_atomically
from stages.scheduling.counting import ProgressDisplay
from stages.scheduling.engine.groups import Group, default_engine, form_groups
from stages.scheduling.planning import (
    Planned,
    PlannedCost,
    add_up,
    in_other_profile,
    longest_first,
    makespan,
    measured_seconds,
    plan_costs,
    two_digits,
    what_counts,
)
from stages.scheduling.runner import Outcomes, find_experiment, keyed_runs, read_packed, slot_devices, train_together

PREFIXES = {1e21: "Z", 1e18: "E", 1e15: "P", 1e12: "T", 1e9: "G", 1e6: "M", 1e3: "k"}
PRINTED, IN_TF32 = "paper", "paper-tf32"


def add_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--measure",
        action="store_true",
        help="train a few steps of each kind of missing network and estimate the total time here",
    )
    parser.add_argument(
        "--device",
        default=os.environ.get("CLAIMCHECK_DEVICE", "auto"),
        help="device for --measure, as for `run` (default: CLAIMCHECK_DEVICE, else auto)",
    )


def plan(options: argparse.Namespace) -> Answer:
    """Estimate the cost of each experiment under the current profile, and of each paper under every profile."""
    params = load_params()
    names = options.experiments or list(params.experiments)
    papers = {name: find_experiment(params, name).paper for name in names}
    counts, outcomes = FlopCounts(), Outcomes()
    costs = plan_costs(params, params.profile, names, counts.count)
    experiments = [
        {
            "experiment": name,
            "paper": papers[name],
            **_told(cost, params.rates),
            **_in_store(name, params, outcomes),
        }
        for name, cost in costs.items()
    ]
    measured = _measure(names, params, options.device, counts, outcomes) if options.measure else None
    profiles, totals = [], {}
    for profile_name, profile in params.profiles.items():
        costs = plan_costs(params, profile, names, counts.count)
        for paper in dict.fromkeys(papers.values()):
            of_paper = add_up((cost for name, cost in costs.items() if papers[name] == paper), params.rates)
            profiles.append({"profile": profile_name, "paper": paper, **_told(of_paper, params.rates)})
        totals[profile_name] = add_up(costs.values(), params.rates)
        profiles.append({"profile": profile_name, "paper": None, **_told(totals[profile_name], params.rates)})
    counts.save()
    goals = []
    if PRINTED in totals and names == list(params.experiments):
        goals = [
            {
                "device": kind,
                "hours": rate.goal_hours,
                "planned_hours": totals[PRINTED].hours(kind),
                "limit_hours": totals[PRINTED].limit_hours(kind),
            }
            for kind, rate in params.rates.items()
            if rate.goal_hours
        ]
    document = {
        "profile": params.profile_name,
        "experiments": experiments,
        "profiles": profiles,
        "devices": {
            kind: {"device": rate.device, "usd_per_hour": rate.usd_per_hour, "source": rate.source}
            for kind, rate in params.rates.items()
        },
        "goals": goals,
        "measured": measured,
        "as_printed": list(_say_what_counts(totals, params.rates)),
    }
    return Answer(document=document, shown=list(_show_plan(document)))


def _measure(
    names: Iterable[str], params: Params, device: str, counts: FlopCounts, outcomes: Outcomes
) -> dict[str, Any]:
    """Measure how many seconds the missing trainings of each experiment, and all together, take on this machine."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as `run` trains
    devices = slot_devices(device, params)
    planned: list[tuple[str, Planned]] = []
    seen, left_out = set[str](), list[str]()
    for name in names:
        experiment = params.experiments[name]
        try:
            info = read_packed(experiment, params, Path("data"))
        except (PackedDataError, ParamsError):
            left_out.append(name)
            continue
        runs = {run.spec.run_key: run.spec for run in keyed_runs(experiment, params, info.digest)}
        missing = [spec for key, spec in runs.items() if key not in seen and outcomes.find(spec) is None]
        seen |= runs.keys()
        for specs, is_stack in form_groups(missing, info.train_images, outcomes.store):
            data = Path("data/processed") / experiment.dataset
            group = Group(label=f"{name} {specs[0].model.path}", specs=specs, data=data, is_stack=is_stack)
            flops = counts.count(specs[0].model, info.shape, info.vocabulary)
            planned.append((name, Planned(group, info.train_images, info.test_images, flops)))
    started = time.monotonic()
    rate = params.rates["cuda" if devices[0].startswith("cuda") else "cpu"]
    seconds, start = measured_seconds(
        [one for _, one in planned], devices, rate, lambda text: print(text, file=sys.stderr)
    )
    each = [
        (name, len(one.group.specs), second)
        for (name, one), second in zip(planned, seconds, strict=True)
        if second is not None
    ]
    return {
        "devices": devices,
        "measuring_seconds": time.monotonic() - started,
        "experiments": {
            name: {
                "missing": sum(runs for other, runs, _ in each if other == name),
                "seconds": start + makespan([second for other, _, second in each if other == name], len(devices)),
            }
            for name in dict.fromkeys(name for name, _, _ in each)
        },
        "seconds": (start if each else 0) + makespan([second for _, _, second in each], len(devices)),
        "not_packed": left_out,
        "not_trained": sum(second is None for second in seconds),
    }


def _show_measured(measured: Mapping[str, Any]) -> Iterable[RenderableType]:
    yield ""
    yield TextTable(
        [Column(f"measured, {len(measured['devices'])} at a time", left=True), Column("missing"), Column("time here")],
        [
            [name, f"{line['missing']:,}", _time(line["seconds"] / 3600)]
            for name, line in measured["experiments"].items()
        ]
        + [["all together", "", _time(measured["seconds"] / 3600)]],
    )
    if measured["not_packed"]:
        yield Text(f"Not packed, so not measured: {', '.join(measured['not_packed'])}", style="dim")
    if measured["not_trained"]:
        yield Text(f"{measured['not_trained']} networks can't be trained here and aren't included", style="dim")


def _say_what_counts(totals: Mapping[str, PlannedCost], rates: Mapping[str, Rate]) -> Iterator[str]:
    """Explain how the hours as printed are made up, and how many there would be in TF32."""
    if PRINTED in totals:
        yield from what_counts(totals[PRINTED], rates)
        if IN_TF32 in totals:
            yield from in_other_profile(IN_TF32, totals[IN_TF32], totals[PRINTED], rates)


def _told(cost: PlannedCost, rates: Mapping[str, Rate]) -> dict[str, Any]:
    return {
        "runs": cost.runs,
        "epochs": cost.epochs,
        "steps": cost.steps,
        "flops": cost.flops,
        "hours": {
            kind: cost.hours(kind) + (rate.load_seconds / 3600 if cost.runs else 0) for kind, rate in rates.items()
        },
        "usd": {kind: cost.hours(kind) * rate.usd_per_hour for kind, rate in rates.items()},
        "limit_hours": {kind: cost.limit_hours(kind) for kind in rates},
    }


def _in_store(name: str, params: Params, outcomes: Outcomes) -> dict[str, Any]:
    """Return how many trainings of the experiment are done (None if its data aren't packed) and the profile's cut."""
    experiment = params.experiments[name]
    cut = {"cut": describe_cut(experiment, params.profile, params.datasets[experiment.dataset]) or None}
    try:
        digest = read_info(Path("data/processed") / experiment.dataset).digest
    except PackedDataError:
        return {"in_store": None, **cut}
    done = sum(outcomes.find(run.spec) is not None for run in keyed_runs(experiment, params, digest))
    return {"in_store": done, **cut}


def _show_plan(plan: Mapping[str, Any]) -> Iterable[RenderableType]:
    devices = list(plan["devices"])
    numbers = [Column("runs"), Column("epochs", 5), Column("steps", 3), Column("FLOPs", 2)]
    numbers += [Column(f"time on\n{kind}", min(1, place)) for place, kind in enumerate(devices)]
    numbers += [Column(f"{kind}\nUSD", 4) for kind in devices]
    yield TextTable(
        [Column(f"profile {plan['profile']}", left=True), Column("in\nstore"), *numbers],
        [
            [line["experiment"], "–" if line["in_store"] is None else f"{line['in_store']:,}", *_cells(line)]
            for line in plan["experiments"]
        ],
    )
    if any(line["in_store"] is None for line in plan["experiments"]):
        yield Text("–: unknown until its data are packed", style="dim")
    cuts: dict[str, list[str]] = {}
    for line in plan["experiments"]:
        cuts.setdefault(line["cut"] or "as printed", []).append(line["experiment"])
    for cut, names in cuts.items():
        yield ""
        yield Text(cut)
        yield Padding(Text(", ".join(names)), (0, 0, 0, 2), expand=False)
    if plan["measured"]:
        yield from _show_measured(plan["measured"])
    yield ""
    yield TextTable(
        [Column("profile, paper", left=True), *numbers, *(Column(f"{kind}\nlimit", 6) for kind in devices)],
        [
            [
                f"{line['profile']}, {line['paper'] or 'all'}",
                *_cells(line),
                *map(_time, line["limit_hours"].values()),
            ]
            for line in plan["profiles"]
        ],
    )
    yield ""
    yield Text(
        "A training that two experiments share counts for the first.  Times are for one group of runs at a time:"
    )
    for kind, rate in plan["devices"].items():
        price = f"{rate['usd_per_hour']:.2f} USD an hour"
        yield Text(f"  {kind}: {rate['device']}, {price}; its speed is {rate['source']} (params.yaml, rates)")
    yield Text("The limit is the time that the FLOPs alone take at the device's peak.")
    yield from map(Text, plan["as_printed"])
    for goal in plan["goals"]:
        device = plan["devices"][goal["device"]]["device"]
        yield Text(
            f"Goal: everything as printed within {goal['hours']:g} hours of {device}; "
            f"the plan takes {two_digits(goal['planned_hours'])}, {goal['planned_hours'] / goal['hours']:.1f} times as "
            f"many, and at least {two_digits(goal['limit_hours'])} at the device's peak."
        )


def _cells(line: Mapping[str, Any]) -> list[str]:
    cells = [f"{line['runs']:,}", f"{line['epochs']:,}", f"{line['steps']:,}", _prefixed(line["flops"])]
    cells += [_time(hours) for hours in line["hours"].values()]
    return cells + [f"{usd:,.2f}" if usd < 10 else f"{usd:,.0f}" for usd in line["usd"].values()]


def _prefixed(number: float) -> str:
    """850 M, 85 G, 290 P: two digits at least, since these are estimates."""
    size, prefix = next(((size, prefix) for size, prefix in PREFIXES.items() if number >= size), (1.0, ""))
    return f"{two_digits(number / size)} {prefix}".rstrip()


def _time(hours: float) -> str:
    """0.9 s, 25 min, 4.1 h, 1,253 h"""
    for size, unit in ((1.0, "h"), (1 / 60, "min")):
        if hours >= 1.5 * size:
            return f"{two_digits(hours / size)} {unit}"
    return f"{two_digits(3600 * hours)} s"


def set_profile(options: argparse.Namespace) -> Answer:
    """Rewrite the `profile:` line of params.yaml and nothing else."""
    write_profile(options.name)
    return Answer(document={"profile": options.name}, shown=[f"params.yaml: profile {options.name}"])


def write_profile(name: str) -> None:
    """Write the profile into params.yaml.

    Raises:
        ParamsError: there is no profile of that name.
    """
    params = load_params()
    if name not in params.profiles:
        raise ParamsError(f"no profile {name!r}{nearest(name, params.profiles)}")
    path = Path("params.yaml")
    text, count = re.subn(r"(?m)^profile:.*$", f"profile: {name}", path.read_text(encoding="utf-8"))
    assert count == 1, "load_params has read the line"
    write_atomically(path, text.encode())


def add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="all experiments in params.yaml")
    parser.add_argument(
        "--engine", default=default_engine(), help="local or ray (default: CLAIMCHECK_ENGINE, else local)"
    )
    parser.add_argument(
        "--device",
        default=os.environ.get("CLAIMCHECK_DEVICE", "auto"),
        help="auto, cpu, cuda, or one per slot: cuda:0,cuda:1 (default: CLAIMCHECK_DEVICE, else auto)",
    )
    parser.add_argument("--profile", help="profile to set in params.yaml first, as `claimcheck profile` does")


def run(options: argparse.Namespace) -> Answer:
    """Train the missing runs of the named experiments, or of all, the longest first."""
    if options.all == bool(options.experiments):
        raise UsageError("claimcheck run: name experiments, or say --all (see claimcheck run --help)")
    if options.profile:
        write_profile(options.profile)
    params = load_params()
    names = [find_experiment(params, name).name for name in options.experiments or params.experiments]
    # Waiting threads sleep: if they spun, they would stall all work where several trainings share the cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is loaded, which is later
    counts = FlopCounts()
    out = sys.stderr if options.json else sys.stdout  # the document stands alone
    with redirect_stdout(out), stop_on_signals() as stop, ProgressDisplay(out) as display:
        missing, left = train_together(
            dict.fromkeys(names),
            params,
            data=Path("data"),
            devices=slot_devices(options.device, params, options.engine),
            report=display.report,
            stop=stop,
            engine=options.engine,
            order=longest_first(params, options.device, counts.count),
        )
    counts.save()
    shown = f"{missing - left} of {missing} missing runs trained"
    document = {"missing": missing, "trained": missing - left}
    if left:
        return Answer(document=document, shown=[f"{shown}; run the same command again to train the rest"], code=1)
    return Answer(document=document, shown=[f"{shown}; `make repro` evaluates and records them"])
