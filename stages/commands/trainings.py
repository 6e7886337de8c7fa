"""Subcommands about trainings: their cost, which are done, and the profile that selects them."""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from stages.commands.command import Answer, Column, Terminal, TextTable, UsageError, in_words
from stages.commands.priorities import PROFILE, Proposal, propose
from stages.datasets.packed import PackedDataError, read_info
from stages.evaluation.flops import FlopCounts
from stages.faults import stop_on_signals
from stages.params.callables import KINDS, find_plugins
from stages.params.experiment import Params, ParamsError, Rate, describe_cut, load_params
from stages.params.schema import nearest
from stages.runs.store import write_atomically
from stages.scheduling.display import progress_display
from stages.scheduling.groups import Group, form_groups
from stages.scheduling.planning import (
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
from stages.scheduling.runner import (
    Order,
    Outcomes,
    find_experiment,
    keyed_runs,
    read_packed,
    slot_devices,
    train_together,
)
from stages.verdicts.power import format_chance

PREFIXES = {1e21: "Z", 1e18: "E", 1e15: "P", 1e12: "T", 1e9: "G", 1e6: "M", 1e3: "k"}
PRINTED, IN_TF32 = "paper", "paper-tf32"


def list_plugins(_: argparse.Namespace) -> Answer:
    """The plugins of installed distributions, by kind and name."""
    found = find_plugins(*KINDS)
    rows = [
        [one.kind, one.name, f"{one.distribution} {one.version}", one.address or f"malformed: {one.fault}"]
        for one in found
    ]
    columns = [Column(heading, left=True) for heading in ("kind", "name", "distribution", "address")]
    none = f"no installed package offers any of {', '.join(KINDS)}"
    return Answer(document=[vars(one) for one in found], shown=[TextTable(columns, rows) if found else none])


def plan(options: argparse.Namespace) -> Answer:
    """Estimate the cost of each experiment under the current profile, and of each paper under every profile."""
    params = load_params()
    names = options.experiments or list(params.experiments)
    papers = {name: find_experiment(params, name).paper for name in names}
    counts, outcomes = FlopCounts(), Outcomes()
    planned = {name: plan_costs(params, profile, names, counts.count) for name, profile in params.profiles.items()}
    experiments = [
        {
            "experiment": name,
            "paper": papers[name],
            **_describe_cost(cost, params.rates),
            **_in_store(name, params, outcomes),
        }
        for name, cost in planned[params.profile_name].items()
    ]
    measured = _measure(names, params, options.device, counts, outcomes) if options.measure else None
    profiles, totals = [], {}
    for profile_name, costs in planned.items():
        for paper in dict.fromkeys(papers.values()):
            of_paper = add_up((cost for name, cost in costs.items() if papers[name] == paper), params.rates)
            profiles.append({"profile": profile_name, "paper": paper, **_describe_cost(of_paper, params.rates)})
        totals[profile_name] = add_up(costs.values(), params.rates)
        profiles.append({"profile": profile_name, "paper": None, **_describe_cost(totals[profile_name], params.rates)})
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
    as_printed = list(what_counts(totals[PRINTED], params.rates)) if PRINTED in totals else []
    if PRINTED in totals and IN_TF32 in totals:
        as_printed += in_other_profile(IN_TF32, totals[IN_TF32], totals[PRINTED], params.rates)
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
        "as_printed": as_printed,
    }
    return Answer(document=document, shown=list(_show_plan(document)))


def _measure(
    names: Iterable[str], params: Params, device: str, counts: FlopCounts, outcomes: Outcomes
) -> dict[str, Any]:
    """Measure how many seconds the missing trainings of each experiment, and all together, take on this machine."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as `run` trains
    devices = slot_devices(device, params)
    groups: list[Group] = []
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
            groups.append(Group(label=f"{name} {specs[0].model.path}", specs=specs, data=data, is_stack=is_stack))
    started = time.monotonic()
    rate = params.rates["cuda" if devices[0].startswith("cuda") else "cpu"]
    seconds, start = measured_seconds(groups, counts.count, devices, rate, lambda text: print(text, file=sys.stderr))
    each = [
        (group.label.partition(" ")[0], len(group.specs), second)
        for group, second in zip(groups, seconds, strict=True)
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


def _describe_cost(cost: PlannedCost, rates: Mapping[str, Rate]) -> dict[str, Any]:
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
    number = line["flops"]
    size, prefix = next(((size, prefix) for size, prefix in PREFIXES.items() if number >= size), (1.0, ""))
    cells = [f"{line['runs']:,}", f"{line['epochs']:,}", f"{line['steps']:,}"]
    cells.append(f"{two_digits(number / size)} {prefix}".rstrip())  # 850 M, 85 G
    cells += [_time(hours) for hours in line["hours"].values()]
    return cells + [f"{usd:,.2f}" if usd < 10 else f"{usd:,.0f}" for usd in line["usd"].values()]


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
    params = load_params()
    if name not in params.profiles:
        raise ParamsError(f"no profile {name!r}{nearest(name, params.profiles)}")
    path = Path("params.yaml")
    text, count = re.subn(r"(?m)^profile:.*$", f"profile: {name}", path.read_text(encoding="utf-8"))
    assert count == 1, "load_params has read the line"
    write_atomically(path, text.encode())


def run(options: argparse.Namespace) -> Answer:
    """Train the missing runs of the named experiments, or of all, the longest first."""
    if options.all == bool(options.experiments):
        raise UsageError("claimcheck run: name experiments, or say --all (see claimcheck run --help)")
    if options.profile:
        write_profile(options.profile)
    params = load_params()
    names = [find_experiment(params, name).name for name in options.experiments or params.experiments]
    counts = FlopCounts()
    order = longest_first(params, options.device, counts.count)
    missing, left = _train(dict.fromkeys(names), params, options, options.device, order)
    counts.save()
    shown = f"{missing - left} of {missing} missing runs trained"
    document = {"missing": missing, "trained": missing - left}
    if left:
        return Answer(document=document, shown=[f"{shown}; run the same command again to train the rest"], code=1)
    return Answer(document=document, shown=[f"{shown}; `make repro` evaluates and records them"])


def _train(
    chosen: Mapping[str, Collection[str] | None], params: Params, options: argparse.Namespace, device: str, order: Order
) -> tuple[int, int]:
    """Train as `train_together` does, with progress; Ctrl-C saves all states, from which the next call resumes."""
    # Waiting threads sleep: if they spun, they would stall all work where several trainings share the cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is loaded, which is later
    out = sys.stderr if options.json else sys.stdout  # nothing but the document goes to standard output
    with redirect_stdout(out), stop_on_signals() as stop, progress_display(out) as report:
        return train_together(
            chosen,
            params,
            devices=slot_devices(device, params, options.engine),
            report=report,
            stop=stop,
            engine=options.engine,
            order=order,
        )


_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_CHANCES = ("supported", "reproduced", "not_reproduced")
"""Fields of `stages.verdicts.Power`."""


def seconds_of(text: str) -> float:
    """A duration such as `90min`, `2h` or `1.5d`, in seconds.

    Raises:
        ArgumentTypeError: the text is not a duration.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h|d)", text)
    if match is None or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} isn't a duration; expected a number with s, min, h or d, as in 2h")
    return float(match[1]) * _UNITS[match[2]]


def next_trainings(options: argparse.Namespace) -> Answer:
    """Suggest trainings within the budget; with `--run`, train them."""
    params = load_params()
    names = [find_experiment(params, name).name for name in options.experiments]
    if options.run and params.profile_name != PROFILE:
        raise ParamsError(f"params.yaml has the profile {params.profile_name}; first: claimcheck profile {PROFILE}")
    found = propose(Path(), params, options.device, budget=options.budget, experiments=names)
    document = _describe(found, params, options.device, options.budget)
    if not options.run or not found.steps:
        return Answer(document=document, shown=list(_show(document, params)))
    if not options.json:
        for part in _show(document, params):
            Terminal().print(part, soft_wrap=isinstance(part, str))
    _, left = _train(found.chosen, params, options, os.environ.get("CLAIMCHECK_DEVICE", "auto"), found.order)
    document["is_trained"] = is_complete = left == 0
    said = "trained; `make repro` evaluates and judges them" if is_complete else "some of it was not trained; see above"
    return Answer(document=document, shown=[said], code=0 if is_complete else 1)


def _describe(found: Proposal, params: Params, device: str, budget: float) -> dict[str, Any]:
    steps, prospects, lacking, seconds = found.steps, found.prospects, found.lacking, found.seconds
    reached = {prospects[name].look.claim.id for step in steps for name in step.completed}
    waiting = {name for name, runs in lacking.items() if not runs}
    first = {one.look.claim.id: name for name, one in reversed(list(prospects.items())) if name not in waiting}
    costs = [math.fsum(seconds[run] for run in lacking[name]) for claim, name in first.items() if claim not in reached]
    spent, documented = sum(step.seconds for step in steps), []
    for step in steps:
        last = {prospects[name].look.claim.id: prospects[name] for name in step.completed}  # analysis of each claim
        completed = [
            {
                "claim": claim,
                "look": one.look.at,
                "planned": one.look.planned,
                "power": {name: getattr(one.power, name) for name in _CHANCES} if one.power else None,
                "chance": one.chance,
                "weight": one.weight,
            }
            for claim, one in last.items()
        ]
        documented.append({"seconds": step.seconds, "runs": [run.label for run in step.items], "claims": completed})
    return {
        "device": device,
        "budget_seconds": budget,
        "seconds": spent,
        "usd": spent / 3600 * params.rates[device].usd_per_hour,
        "steps": documented,
        "trained": list(dict.fromkeys(prospects[name].look.claim.id for name in prospects if name in waiting)),
        "left": {"claims": len(costs), "cheapest_seconds": min(costs, default=None)},
    }


def _show(document: Mapping[str, Any], params: Params) -> Iterator[RenderableType]:
    device, steps = document["device"], document["steps"]
    budget = f"{in_words(document['budget_seconds'])} of {params.rates[device].device}"
    if trained := document["trained"]:
        yield f"{_claims(len(trained))} at an interim analysis with complete trainings: run `make repro` to judge them"
    left = document["left"]
    if not steps:
        cheapest = left["cheapest_seconds"]
        yield (
            f"nothing fits in {budget}: the cheapest interim analysis takes {two_digits(cheapest / 3600)} h"
            if cheapest is not None
            else "no claim needs a training"
        )
        return
    runs, claims = ([one for step in steps for one in step[part]] for part in ("runs", "claims"))
    claims = list({one["claim"]: one for one in claims}.values())
    expected = sum(one["chance"] for one in claims)
    yield (
        f"{budget}: {len(runs)} trainings bring {_claims(len(claims))} to an interim analysis and are expected to "
        f"decide {expected:.1f} of them; they take {in_words(document['seconds'])} and {document['usd']:.2f} USD"
    )
    yield ""
    rows = []
    for step in steps:
        arms: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for label in step["runs"]:
            name, _, cell = label.partition(".")
            arm, _, replicate = cell.rpartition(".")
            arms[name][arm].append(replicate)
        for name, cells in arms.items():  # with patterns as `--runs` of `stages.train` takes them: `resnet20.[012]`
            patterns = []
            for arm, replicates in cells.items():
                digits = "".join(which for which in replicates if len(which) == 1)
                patterns += [f"{arm}.[{digits}]" if len(digits) > 1 else f"{arm}.{digits}"] * bool(digits)
                patterns += [f"{arm}.{which}" for which in replicates if len(which) > 1]
            rows.append([name, " ".join(patterns), two_digits(step["seconds"] / 3600), str(len(step["claims"]))])
    yield TextTable(
        [Column("experiment", left=True), Column("runs", left=True), Column("hours"), Column("claims")], rows
    )
    yield ""
    columns = [Column("claim", left=True), Column("analysis", left=True)]
    columns += [Column("decided"), Column("weight", 1), Column("supported", 2), Column("reproduced", 3)]
    columns += [Column("not\nreproduced", 4)]
    rows = [
        [
            one["claim"],
            f"at {one['look']}, final" if one["look"] == one["planned"] else f"at {one['look']} of {one['planned']}",
            format_chance(one["chance"]),
            two_digits(one["weight"]),
            *("" if (chance := (one["power"] or {}).get(name)) is None else format_chance(chance) for name in _CHANCES),
        ]
        for one in claims
    ]
    yield TextTable(columns, rows)
    yield "Chances are for this analysis if the paper is right; for “not reproduced”, if the truth is two margins off."
    if left["claims"]:
        yield ""
        yield f"{_claims(left['claims'])} would take longer"


def _claims(number: int) -> str:
    return "1 claim" if number == 1 else f"{number} claims"
