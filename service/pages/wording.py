"""Claims and verdicts in a reader's words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from math import isclose
from typing import Any

from jinja2 import Environment

from service.database.observed import name_quantity
from service.pages import amounts
from service.pages.amounts import GAINS, SIDES_OF_A_SIZE, imply, in_its_way, in_terms_of, is_of_the_other, unit_of
from service.pages.formats import as_precise_as, exact, from_to, lower_first, percent, plain, points, value_in
from service.pages.legend import SIDES, address_of, by_ground, date_of, meaning_of
from stages.results import (
    METRICS,
    Claim,
    ClaimRecord,
    JudgedClaim,
    Metric,
    Status,
    Tally,
    VerdictRow,
    error_of,
    kind_of_run,
)

_WORDS = {
    "dataset.classes": "Classes",
    "dataset.images": "Images",
    "dataset.inputs": "Inputs",
    "dataset.response_max": "Largest response",
    "dataset.response_min": "Smallest response",
    "dataset.rows": "Rows",
    "dataset.size": "Side of the images as trained on",
    "dataset.test": "Test images",
    "dataset.train": "Training images",
    "error": "Test error, last epoch",
    "l2_coefficient": "Coefficient of the L2 penalty",
    "max(model.depth)": "Largest depth",
    "max(model.width)": "Largest width",
    "max(parameters)": "Most parameters",
    "min(model.depth)": "Smallest depth",
    "min(model.width)": "Smallest width",
    "min(parameters)": "Fewest parameters",
    "min_log_mse": "Log of the test mean squared error, its least of any epoch",
    "model.channel_dim": "Hidden width of channel mixing",
    "model.channels": "Hidden channels of the feed-forward",
    "model.depth": "Blocks",
    "model.dim": "Width of a token",
    "model.mlp_dim": "Hidden width of the MLP",
    "model.num_heads": "Attention heads",
    "model.patch_size": "Patch size",
    "model.token_dim": "Hidden width of token mixing",
    "protocol.batch_size": "Batch size",
    "protocol.early_stop.from_epoch": "First epoch that may stop early",
    "protocol.early_stop.min_delta": "Least improvement that puts off stopping",
    "protocol.early_stop.patience": "Patience of early stopping",
    "protocol.epochs": "Epochs",
    "protocol.optimizer.lr": "Learning rate",
    "protocol.optimizer.momentum": "Momentum",
    "protocol.schedule.factor": "Factor of the learning rate at a step",
    "protocol.schedule.milestones.0": "First drop of the learning rate, as a share of the steps",
    "protocol.schedule.milestones.1": "Second drop of the learning rate, as a share of the steps",
    "protocol.schedule.milestones.2": "Third drop of the learning rate, as a share of the steps",
    "protocol.schedule.warmup_steps": "Warm-up steps",
    "protocol.split.folds": "Folds",
    "protocol.split.test": "Share for testing",
    "protocol.split.train": "Share for training",
    "protocol.split.val": "Share for validation",
}
"""Metrics that are compared nowhere and whose own name is no phrase."""

_SIDES = {
    "for": (*SIDES["For the paper"], Status.AS_PRINTED),
    "against": SIDES["Against it"],
    "open": SIDES["Open"],
    "noted": (Status.DEVIATES, Status.SHOWN),
}


def install(environment: Environment) -> None:
    """Register the functions that take one claim or verdict as filters."""
    for function in (
        *(side_of, in_terms_of, unit_of, as_run, print_value, print_ours, print_metric, name_quantity, agreement),
        *(size_in_words, size_of, say_power, in_its_way, imply, amounts.by_reading),
    ):
        environment.filters[function.__name__] = function
    environment.filters["metric_name"] = name_metric
    environment.filters["for_readers"] = for_readers
    environment.filters["meaning"] = meaning_of
    environment.filters["kind_of_run"] = kind_of_run
    environment.filters["paper_address"] = address_of
    environment.filters["paper_date"] = date_of
    environment.globals.update(span_of=span_of, as_precise_as=as_precise_as)


def for_readers(explanation: str) -> str:
    """An explanation or a note, whose words the verdict's digest covers, in the words of the pages."""
    words = explanation.replace("stand-ins", "placeholder data").replace("too short runs", "shortened runs")
    return re.sub(r"\barm(s?)\b", r"model\1", re.sub(r"\b([Aa])n arm\b", r"\1 model", words))


def side_of(status: str) -> str:
    """The side that colours a verdict: for, against, open, noted or waiting."""
    return next((side for side, statuses in _SIDES.items() if status in statuses), "waiting")


def name_claim(judged: JudgedClaim, titles: Mapping[str, str], arms: Mapping[tuple[str, str], str]) -> str:
    """A claim as a short phrase: its own words if it has any.

    `titles` are the names of the data sets, `arms` those of each (experiment, arm).
    """
    claim = judged.claim
    if claim.statement:
        begins_with_a_word = re.match(r"(a|[a-z]{2,}([/-][a-z]+)?) ", claim.statement)  # and without a formula
        return claim.statement[0].upper() + claim.statement[1:] if begins_with_a_word else claim.statement
    metric = name_metric(claim.metric)
    arm, baseline = (_title(name, judged.experiments, arms) for name in (claim.arm, claim.baseline_arm))
    if is_of_the_other(claim):
        arm, baseline = baseline, arm
    if arm:
        metric = lower_first(metric)
        phrase = f"{arm} against {baseline}: {metric}" if baseline else f"{arm}: {metric}"
    else:
        phrase = metric
    many = len(judged.datasets) > 3
    places = f"{len(judged.datasets)} data sets" if many else ", ".join(titles[name] for name in judged.datasets)
    return f"{phrase} ({places})" if places else phrase


def name_metric(metric: str) -> str:
    """A metric, or a setting, as the heading of a column."""
    if metric in METRICS:
        return METRICS[metric].title
    return _WORDS.get(metric) or metric.replace("_", " ").capitalize()


def _title(arm: str | None, experiments: Sequence[str], arms: Mapping[tuple[str, str], str]) -> str | None:
    return next((arms[name, arm] for name in experiments if arm and (name, arm) in arms), arm)


def as_run(value: float, claim: Claim) -> str:
    """The claim as one run sees it: a number in its metric, whatever the claim derives from it."""
    return value_in(METRICS[claim.metric].unit if claim.metric in METRICS else claim.unit or "")(value)


def print_value(claim: Claim) -> str:
    """The paper's number with all the digits that it prints, – where it prints none."""
    return amounts.print_value(claim, exact)


def print_ours(verdict: VerdictRow, claim: Claim) -> str:
    """Our number, as precise as its interval where it has one; of several readings that hold, the first to the last."""
    if verdict.basis == "finding" and (found := amounts.by_reading(claim)):
        return from_to(found[0][1], found[-1][1])
    return in_its_way(verdict.ours, claim, as_precise_as(verdict.low, verdict.high))


def span_of(low: float, high: float, claim: Claim) -> str:
    """Both ends of an interval in the terms of `claim`, their unit once."""
    write = as_precise_as(low, high)
    return from_to(in_terms_of(low, claim, write), in_terms_of(high, claim, write))


def size_of(size: Mapping[str, Any] | None) -> str:
    """What is said of a difference's size beside its verdict, as "size open"; nothing where it isn't judged."""
    if size is None:
        return ""
    return "size open" if side_of(size["status"]) == "open" else f"size {size['status']}"


def say_claim(name: str, claim: Claim) -> str:
    """A claim by its name, with the paper's number unless the name holds it."""
    if claim.value is None or claim.kind in ("observed", "equivalence"):
        return name
    same = (claim.value, 100 * claim.value)  # 0.11 is 11 %
    told = (float(number) * (1000 if kilo else 1) for number, kilo in re.findall(r"(\d+(?:\.\d+)?)(k?)", name))
    is_told = claim.statement and any(isclose(number, value) for number in told for value in same)
    return name if is_told else f"{name}: {print_value(claim)}"


def size_in_words(verdict: VerdictRow) -> str:
    """Whether a difference is as large as printed, which is judged apart from who is ahead."""
    side = side_of(verdict.size["status"]) if verdict.size else ""
    known = {
        "for": "It is also as large as the paper prints, within the margin.",
        "against": "It is not as large as the paper prints.",
        "open": "Whether it is as large as the paper prints is still open.",
    }
    return known.get(side, "")


def print_metric(row: Metric) -> str:
    """A result's number in its metric's unit."""
    return value_in(METRICS[row.metric].unit)(row.value) if row.metric in METRICS else plain(row.value)


def summarise(tally: Tally) -> str:
    """Summarise a paper's results in a sentence; claims decided by training are counted separately."""
    words = []
    for basis, what in (
        ("results", "decided by training"),
        ("finding", "decided by computing"),
        ("params", "on sizes of data sets"),
    ):
        favour, against = (_count(tally, basis, side) for side in ("for", "against"))
        if favour + against:
            read = tally.by_basis[basis].get(Status.HOLDS_UNDER_READING, 0)
            how = f" ({read} of them under one reading only)" if read else ""
            words.append(f"{favour} of {favour + against} claims {what} hold{how}")
    words += [
        f"one error ({error}) stands at {places} places of the paper and counts once"
        for error, places in tally.errors.items()
    ]
    if tally.open:
        words.append(f"for {tally.open} the evidence is not enough yet")
    for ground in by_ground([tally]):
        if number := ground.counts.waiting:
            words.append(f"{number} {'is' if number == 1 else 'are'} {ground.waits}")
    if tally.unconfirmable:
        words.append(f"the planned runs can’t confirm {tally.unconfirmable} of these, even where the paper is right")
    return f"{'; '.join(words)}." if words else "Nothing here can decide its claims yet."


def _count(tally: Tally, basis: str, side: str) -> int:
    """Number of claims decided on one side; how an experiment is set up is not a claim that can hold."""
    return sum(
        number
        for status, number in tally.by_basis.get(basis, {}).items()
        if side_of(status) == side and Status(status).is_counted
    )


def conclude(record: ClaimRecord, titles: Mapping[str, str]) -> str | None:
    """The outcome in a sentence with its interval, None without one; `titles` are those of all planned arms."""
    claim, verdict = record.claim, record.verdict
    if verdict.basis != "results" or verdict.estimate is None or verdict.low is None or verdict.high is None:
        return None
    write = as_precise_as(verdict.low, verdict.high)
    ends = [in_terms_of(end, claim, write).removeprefix("+") for end in (verdict.low, verdict.high)]
    interval = f"{_confidence(verdict)} interval {from_to(*ends)}"
    size = in_terms_of(abs(verdict.estimate), claim, write).removeprefix("+")
    is_better = "better" if verdict.estimate >= 0 else "worse"
    if claim.kind in SIDES_OF_A_SIZE:
        ahead = f"the proposed ones are {is_better} than their baselines by {size}"
        as_said = ", as the paper says" if verdict.status == Status.SUPPORTED else ""
        return f"Among networks of this size {ahead}{as_said} ({interval})."
    if claim.kind == "uniform" and verdict.margin:
        alike = in_terms_of(verdict.margin, claim)
        over = f"Over {_among_planned(record, titles)} pairs the" if record.pairs else "The"
        apart = f"{over} largest and the smallest gain by {claim.factor} differ by {size}"
        return f"{apart} ({interval}); up to {alike} would count as alike."
    if claim.kind in GAINS:
        who = titles.get(claim.arm or "", "The proposed model")
        against = titles.get(claim.baseline_arm or "", "its baseline")
        among = f"; mean of {_among_planned(record, titles)} pairs" if record.pairs else ""
        return f"{who} is {is_better} than {against} by {size} ({interval}{among})."
    if claim.kind == "value" and claim.value is not None and verdict.ours is not None:
        way = "above" if verdict.estimate >= 0 else "below"
        ours, printed = print_ours(verdict, claim), print_value(claim)
        if unit_of(claim) == "fraction":
            size = points(abs(verdict.estimate)).removeprefix("+")
            interval = f"{_confidence(verdict)} interval {from_to(points(verdict.low), points(verdict.high))}"
        return f"We find {ours}, {size} {way} the paper’s {printed} (of the difference: {interval})."
    return None


def _confidence(verdict: VerdictRow) -> str:
    """95 %, 96.7 %"""
    return percent(verdict.confidence, 1).replace(".0 %", " %")


def _among_planned(record: ClaimRecord, arms: Iterable[str]) -> str:
    """How many pairs of a grid ran, and of how many where that is not all: one pair for each proposed arm."""
    planned = sum(fnmatchcase(arm, record.claim.arm or "") for arm in arms)
    return f"{len(record.pairs)} of {planned}" if planned > len(record.pairs) else f"{len(record.pairs)}"


def say_power(power: Mapping[str, Any]) -> str:
    """What the planned runs can show, in chances; nothing where these depend on what nobody knows before a run."""
    said = []
    if power["supported"] is not None:
        said.append(
            f"If the paper is right, the planned runs support it with a chance of {_chance(power['supported'])}."
        )
    what = "the size that it prints" if said else "it"
    if power["reproduced"] is not None:
        if power["can_reproduce"]:
            said.append(f"If the paper is right, they confirm {what} with a chance of {_chance(power['reproduced'])}.")
        else:
            said.append(f"The planned runs can’t confirm {what}, even if the paper is right.")
    if said and power["not_reproduced"] is not None:
        chance = _chance(power["not_reproduced"])
        said.append(
            f"If the truth is two margins away from the paper’s number, they show that with a chance of {chance}."
        )
    return " ".join(said)


def _chance(probability: float) -> str:
    if not 0.01 <= probability <= 0.99:
        return "less than 1 %" if probability < 0.5 else "more than 99 %"
    return percent(probability, 0)


def of_a_part(record: ClaimRecord, arms: Iterable[str]) -> str | None:
    """What a verdict on part of a grid leaves out, in a sentence; None of a whole one.  `arms` are all planned ones."""
    ran, _, planned = _among_planned(record, arms).partition(" of ")
    if not record.pairs or not planned:
        return None
    missing = int(planned) - int(ran)
    have = "has" if missing == 1 else "have"
    return f"{missing} of the {planned} pairs {have} not been trained; the verdict is on those that were."


def highlights(judged: Iterable[JudgedClaim]) -> dict[str, JudgedClaim]:
    """The strongest finding against the paper and the strongest for it, by `side_of`.

    Trained before computed, those with a number of ours before those without, then those read in several ways.
    """
    found: dict[str, JudgedClaim] = {}
    for row in sorted(judged, key=_weight):
        found.setdefault(side_of(row.verdict.status), row)
    return {side: found[side] for side in ("against", "for") if side in found}


def _weight(row: JudgedClaim) -> tuple[bool, bool, bool]:
    is_read = bool(row.claim.finding and row.claim.finding.get("readings"))
    return row.verdict.basis != "results", row.verdict.ours is None, not is_read


def shared_errors(judged: Iterable[JudgedClaim], tally: Tally) -> dict[str, JudgedClaim]:
    """The errors that stand at several places of a paper, each with the first of these claims that has it."""
    found: dict[str, JudgedClaim] = {}
    for row in judged:
        if (error := error_of(row.claim, row.verdict)) in tally.errors:
            found.setdefault(error, row)
    return found


def group_by_place(judged: Sequence[JudgedClaim]) -> dict[str, list[JudgedClaim]]:
    """Claims grouped by the table, figure or section where they appear, both in the paper's order."""
    groups: dict[str, list[JudgedClaim]] = {}
    for row in judged:
        groups.setdefault(row.claim.place, []).append(row)
    return groups


def agreement(answers: Sequence[str], provenances: Sequence[str]) -> str:
    """The agreement of models in words; `answers` are their likeliest classes, and stand-ins' don't count."""
    said = [answer for answer, provenance in zip(answers, provenances, strict=True) if provenance != "embedded"]
    if len(said) < 2:
        return "–"
    (likeliest, count), *others = Counter(said).most_common()
    if not others:
        return f"both say {likeliest}" if count == 2 else f"all {count} say {likeliest}"
    return f"{count} of {len(said)} say {likeliest}" if count > others[0][1] else "they differ"
