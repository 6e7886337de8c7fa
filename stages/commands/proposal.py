"""Suggests the trainings that are expected to decide most claims within a budget."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from stages.commands.command import Answer, Column, Terminal, TextTable, in_words
from stages.faults import stop_on_signals
from stages.params.experiment import Params, ParamsError, PlannedRun, RunName, load_params
from stages.priorities.proposal import PROFILE, Proposal, Prospect, Step, propose
from stages.scheduling.counting import ProgressDisplay
from stages.scheduling.planning import two_digits
from stages.scheduling.runner import find_experiment, slot_devices, train_together
from stages.verdicts.power import in_percent

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
    steps, prospects, lacking, seconds = found.steps, found.prospects, found.lacking, found.seconds
    reached = {prospects[name].look.claim.id for step in steps for name in step.completed}
    waiting = {name for name, runs in lacking.items() if not runs}
    first = {one.look.claim.id: name for name, one in reversed(list(prospects.items())) if name not in waiting}
    costs = [sum(seconds[run] for run in lacking[name]) for claim, name in first.items() if claim not in reached]
    spent = sum(step.seconds for step in steps)
    document = {
        "device": options.device,
        "budget_seconds": options.budget,
        "seconds": spent,
        "usd": spent / 3600 * params.rates[options.device].usd_per_hour,
        "steps": [_step(step, prospects) for step in steps],
        "trained": list(dict.fromkeys(prospects[name].look.claim.id for name in prospects if name in waiting)),
        "left": {"claims": len(costs), "cheapest_seconds": min(costs, default=None)},
    }
    if not options.run or not steps:
        return Answer(document=document, shown=list(_show(document, params)))
    if not options.json:
        for part in _show(document, params):
            Terminal().print(part, soft_wrap=isinstance(part, str))
    is_complete = _train(found, params, options)
    document["is_trained"] = is_complete
    said = "trained; `make repro` evaluates and judges them" if is_complete else "some of it was not trained; see above"
    return Answer(document=document, shown=[said], code=0 if is_complete else 1)


def _train(proposal: Proposal, params: Params, options: argparse.Namespace) -> bool:
    """Train the proposed runs in order; Ctrl-C saves their states, from which the next call resumes."""
    places = {run: number for number, step in enumerate(proposal.steps) for run in step.items}
    chosen: dict[str, list[str]] = defaultdict(list)
    for run in places:
        chosen[run.experiment].append(run.cell)

    def place(runs: Sequence[PlannedRun], together: int) -> float:
        return min(places.get(run.name, len(places)) for run in runs)

    with stop_on_signals() as stop, ProgressDisplay(sys.stderr if options.json else sys.stdout) as display:
        _, left = train_together(
            chosen,
            params,
            data=Path("data"),
            devices=slot_devices(os.environ.get("CLAIMCHECK_DEVICE", "auto"), params, options.engine),
            report=display.report,
            stop=stop,
            engine=options.engine,
            order=place,
        )
    return left == 0


def _step(step: Step[RunName], prospects: Mapping[str, Prospect]) -> dict[str, Any]:
    """The step with the last interim analysis that it completes of each claim."""
    last = {prospects[name].look.claim.id: prospects[name] for name in step.completed}
    return {
        "seconds": step.seconds,
        "runs": [run.label for run in step.items],
        "claims": [_claim(one) for one in last.values()],
    }


def _claim(one: Prospect) -> dict[str, Any]:
    power = {name: getattr(one.power, name) for name in _CHANCES} if one.power else None
    look = {"claim": one.look.claim.id, "look": one.look.at, "planned": one.look.planned}
    return {**look, "power": power, "chance": one.chance, "weight": one.weight}


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
    rows = [
        [name, patterns, two_digits(step["seconds"] / 3600), str(len(step["claims"]))]
        for step in steps
        for name, patterns in _by_experiment(step["runs"])
    ]
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
            in_percent(one["chance"]),
            two_digits(one["weight"]),
            *_chances(one["power"]),
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


def _by_experiment(labels: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Experiments with patterns as `--runs` of `stages.train` takes them: `resnet20.[012]`."""
    replicates: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for label in labels:
        arm, _, replicate = label.rpartition(".")
        experiment, _, arm = arm.partition(".")
        replicates[experiment][arm].append(replicate)
    for experiment, arms in replicates.items():
        yield experiment, " ".join(_pattern(arm, which) for arm, which in arms.items())


def _pattern(arm: str, replicates: Sequence[str]) -> str:
    digits = "".join(which for which in replicates if len(which) == 1)
    longer = [f"{arm}.{which}" for which in replicates if len(which) > 1]
    return " ".join([f"{arm}.[{digits}]" if len(digits) > 1 else f"{arm}.{digits}"] * bool(digits) + longer)


def _chances(power: Mapping[str, float | None] | None) -> list[str]:
    known = (power or {}).get
    return ["" if (chance := known(name)) is None else in_percent(chance) for name in _CHANCES]
