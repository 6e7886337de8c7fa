"""Text about one claim and the method: the outcome with its caveats, what the rules require, what runs can show."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from service.pages.formats import (
    as_confidence,
    as_precise_as,
    exact,
    from_to,
    in_terms_of,
    listed,
    lower_first,
    percent,
    points,
    print_value,
    unit_of,
    upper_first,
    value_in,
)
from service.pages.wording import (
    BY_WORD,
    COLOURS,
    MEANINGS,
    REASONS,
    describe_part,
    headline_of,
    is_part,
    levels,
    name_metric,
    print_ours,
    side_of,
    sizes,
    span_of,
)
from stages.results import (
    ICONS,
    INEXACT_SHARE,
    ArmRow,
    Claim,
    ClaimChange,
    ClaimRecord,
    JudgedClaim,
    PairGain,
    Rules,
    Status,
    VerdictRow,
    count_seen,
    levels_of,
    rule_after,
)

LEVEL = 0.05


@dataclass(frozen=True, kw_only=True)
class Trend:
    """Mean gain of the pairs at each level of a factor, lowest level first; a positive gain is better.

    `p_value` is that of Mann's two-sided test for a trend (1945), which counts inversions of the gains.
    """

    factor: str
    gains: dict[float, float]
    pairs: tuple[tuple[float, PairGain], ...]

    @property
    def p_value(self) -> float:
        falls = sum(one > other for one, other in combinations(self.gains.values(), 2))
        counts = [1]  # permutations of the gains that have 0, 1, 2, … inversions
        for size in range(2, len(self.gains) + 1):
            counts = [sum(counts[max(0, k - size + 1) : k + 1]) for k in range(len(counts) + size - 1)]
        return min(1.0, 2 * sum(counts[: 1 + min(falls, len(counts) - 1 - falls)]) / sum(counts))

    @property
    def rises(self) -> bool | None:
        """True if the gain rises with the factor, False if it falls, None if neither is significant."""
        values = list(self.gains.values())
        rising = sum(one < other for one, other in combinations(values, 2))
        return None if self.p_value > LEVEL else 2 * rising > len(values) * (len(values) - 1) / 2


def find_trend(record: ClaimRecord, arms: Iterable[ArmRow]) -> Trend | None:
    """Return the trend of a gain over the claim's factor; None without a factor or with fewer than two levels."""
    factor = record.claim.factor
    if factor is None:
        return None
    models = {(arm.experiment, arm.name): arm.model for arm in arms}
    pairs = sorted(
        ((models[pair.experiment, pair.arm][factor], pair) for pair in record.pairs), key=lambda item: item[0]
    )
    by_level: dict[float, list[float]] = defaultdict(list)
    for level, pair in pairs:
        by_level[level].append(pair.value)
    if len(by_level) < 2:
        return None
    gains = {level: fmean(values) for level, values in by_level.items()}
    return Trend(factor=factor, gains=gains, pairs=tuple(pairs))


def describe_trend(trend: Trend, claim: Claim) -> str:
    """Describe the trend, as "The gain grows with width, from 0.16 nats at 18 units to 0.31 …"; "" without one."""
    (first, least), *_, (last, most) = trend.gains.items()
    write = as_precise_as(min(trend.gains.values()), max(trend.gains.values()))
    ends = [
        f"{in_terms_of(gain, claim, write).removeprefix('+')} at {levels(trend.factor, [level])}"
        for level, gain in ((first, least), (last, most))
    ]
    if trend.rises is None:
        return ""
    verb = "grows" if trend.rises else "falls"
    return f"The gain {verb} with {trend.factor}, from {ends[0]} to {ends[1]}."


def describe_other_reading(trend: Trend) -> str:
    """Count the pairs that agree if "uniform" is read as "better at every level", which we don't judge."""
    ahead = sum(pair.low > 0 for _, pair in trend.pairs)
    better = sum(pair.value > 0 for _, pair in trend.pairs)
    many = f"all {len(trend.pairs)}" if better == len(trend.pairs) else f"{better} of the {len(trend.pairs)}"
    sure = f"{'each' if ahead == better else ahead} with an interval above 0"
    start = f"If “uniform” is read as “better at every {trend.factor}”, {many} trained pairs agree"
    return f"{start}, {sure}; we don’t judge that reading."


def range_of(trend: Trend, claim: Claim) -> str:
    """Write the smallest and the largest mean gain, as "0.13 to 0.31 nats"."""
    return span_of(min(trend.gains.values()), max(trend.gains.values()), claim).replace("+", "")


def conclude(record: ClaimRecord, titles: Mapping[str, str], trend: Trend | None = None) -> str | None:
    """State the outcome and its interval for the part of the grid that ran; None without an interval.

    `titles` are those of all planned arms.  `trend` is needed only for a claim that a gain is uniform.
    """
    claim, verdict = record.claim, record.verdict
    if verdict.basis != "results" or verdict.estimate is None or verdict.low is None or verdict.high is None:
        return None
    write = as_precise_as(verdict.low, verdict.high)
    interval = f"{confidence(verdict)} interval {span_of(verdict.low, verdict.high, claim).replace('+', '')}"
    size = in_terms_of(abs(verdict.estimate), claim, write).removeprefix("+")
    is_better = "better" if verdict.estimate >= 0 else "worse"
    name = _common_title(titles, claim.arm) or "The proposed model"
    against = titles.get(claim.baseline_arm or "", "its baseline")
    scope, pairs = verdict.scope, _pairs(record)
    prefix = f"At {levels(scope['factor'], scope['ran'])}" if scope and scope["factor"] else ""
    if claim.facts.at_size:
        side = claim.facts.at_size.partition(" ")[2]
        bound = upper_first(side.format(value_in(claim.unit or "", exact)(claim.value)))
        agreement = ", as the paper says" if verdict.status == Status.SUPPORTED else ""
        compared = f", compared at {sizes(record.sizes)}," if record.sizes and is_part(verdict) else ""
        return f"{bound}{compared} {name} is {is_better} than its baseline by {size}{agreement} ({interval}{pairs})."
    if claim.factor and verdict.margin:
        limit = in_terms_of(verdict.margin, claim)
        subject = f"{prefix} the largest" if prefix else "The largest"
        difference = f"{subject} and the smallest gain by {claim.factor} differ by {size}"
        start = describe_trend(trend, claim) if trend else ""
        return f"{start} {difference} ({interval}{pairs}); up to {limit} would count as alike.".lstrip()
    if claim.facts.is_spread and claim.value is not None and verdict.ours is not None:
        ends = [in_terms_of(claim.value + end, claim, write) for end in (verdict.low, verdict.high)]
        return (
            f"The {claim.trials:g} printed numbers span {in_terms_of(claim.value, claim)}; as many seeds of ours "
            f"usually span {print_ours(verdict, claim)} at most ({confidence(verdict)} interval {from_to(*ends)})."
        )
    if claim.facts.is_gain:
        start = f"{prefix} {name}" if prefix else name
        return f"{start} is {is_better} than {against} by {size} ({interval}{pairs})."
    if claim.facts.number == "model" and claim.value is not None and verdict.ours is not None:
        side = "above" if verdict.estimate >= 0 else "below"
        ours, printed = print_ours(verdict, claim), print_value(claim)
        if unit_of(claim) == "fraction":
            size = points(abs(verdict.estimate)).removeprefix("+")
            interval = f"{confidence(verdict)} interval {from_to(points(verdict.low), points(verdict.high))}"
        return f"We find {ours}, {size} {side} the paper’s {printed} (difference: {interval})."
    return None


def qualify(record: ClaimRecord) -> list[str]:
    """List the outcome's caveats: missing parts of the grid, open size, other metrics, and a rule written late."""
    parts = [*_rest_of_grid(record), *_size(record), describe_part(record), *_metrics(record)]
    if late := rule_after(record.claim, record.verdict):
        whys = [change.why for change in record.changes if change.seen == record.verdict.seen_before_rule]
        parts.append(f"{late} ({lower_first(whys[-1]).rstrip('.')})." if whys else f"{late}.")
    return [part for part in parts if part]


def confidence(verdict: VerdictRow) -> str:
    """Write the confidence of the verdict's interval, as "96.7 %"."""
    return as_confidence(verdict.confidence or 0.0)


def _common_title(titles: Mapping[str, str], pattern: str | None) -> str | None:
    """Return the arm's title, or the common beginning of a grid's titles: "DAC" of "DAC, 5 layers of 18 units"."""
    if pattern is not None and pattern in titles:
        return titles[pattern]
    own = [title for name, title in titles.items() if fnmatchcase(name, pattern or "")]
    beginnings = {title.partition(", ")[0] for title in own}
    return beginnings.pop() if len(beginnings) == 1 and len(own) > 1 else None


def _pairs(record: ClaimRecord) -> str:
    scope = record.verdict.scope
    if scope is None:
        return f"; mean of {len(record.pairs)} pairs" if record.pairs else ""
    if scope["planned_pairs"] is not None:
        return f"; {scope['pairs']} of {scope['planned_pairs']} pairs"
    ran = f"; {scope['models']} of the {scope['planned_models']} models of the grid ran" if scope["models"] else ""
    return f"; mean of {scope['pairs']} pair{'s' if scope['pairs'] != 1 else ''} of equal size{ran}"


def _rest_of_grid(record: ClaimRecord) -> list[str]:
    """Name the levels that didn't run."""
    verdict, scope = record.verdict, record.verdict.scope
    if scope and scope["planned_models"] and is_part(verdict):
        left = scope["planned_models"] - scope["models"]
        return [
            f"{left} of the {scope['planned_models']} models were not trained; the verdict doesn’t cover other sizes."
        ]
    if not scope or not scope["factor"]:
        return []
    missing = levels(scope["factor"], scope["missing"])
    return [f"{missing} are not all trained and may differ by any amount, so the whole grid isn’t judged."]


def _size(record: ClaimRecord) -> list[str]:
    """Say whether the size agrees with the paper and, if that is open, why."""
    claim, verdict = record.claim, record.verdict
    if verdict.size:
        side = side_of(verdict.size["status"])
        if side == "for":
            return ["It is also as large as the paper prints, within the margin."]
        if side == "against":
            return ["It is not as large as the paper prints."]
        low, high, margin = (verdict.size[name] for name in ("low", "high", "margin"))
        printed = in_terms_of(claim.value, claim, exact).removeprefix("+")
        what = f"Whether it is as large as the paper’s {printed} is open"
        is_within = None not in (low, high, margin) and -margin <= low and high <= margin
    elif claim.factor and verdict.status == Status.INCONCLUSIVE and verdict.margin:
        what, is_within = "Whether the gains are alike is open", (verdict.high or 0.0) <= verdict.margin
    else:
        return []
    scope = verdict.scope
    missing = (scope["planned_pairs"] or 0) - scope["pairs"] if scope else 0
    if missing > 0:
        start = "within the margin so far, but " if is_within else ""
        return [
            f"{what}: {start}{missing} of {scope['planned_pairs']} pairs are not included yet." if scope else f"{what}."
        ]
    return [f"{what}: the interval lies neither within the margin nor wholly outside."]


def _metrics(record: ClaimRecord) -> list[str]:
    """Name the claim's original metric if it was changed, and the metrics under which the verdict would differ."""
    claim, verdict = record.claim, record.verdict
    variants = {row["metric"]: row for row in verdict.variants or ()}
    sentences = []
    metrics = (change for change in record.changes if change.changed and "metric" in change.changed)
    changed = next((change for change in metrics if change.changed["metric"][0]), None)
    if changed is not None:
        first = changed.changed["metric"][0]
        sentence = f"The claim was first listed under another metric, “{lower_first(name_metric(first))}”"
        if variant := variants.pop(first, None):
            sentence += f": under that metric it is {headline_of(variant['status'])}{_ends(variant, claim)}"
        rules = (row for row in record.changes if row.seen is not None and row.date == changed.date)
        rule = next(rules, None)
        seen = "after results had been published" if changed.after_evidence else "before any result"
        if rule is not None:
            seen = f"after {count_seen(rule.seen or 0, claim)} had been seen"
        why = lower_first(rule.why if rule else changed.why.partition(";")[0]).rstrip(".")
        sentences.append(f"{sentence}. The metric was changed on {changed.date}, {seen} ({why}).")
    sentences += [
        f"Under “{lower_first(name_metric(name))}” it is {headline_of(variant['status'])}{_ends(variant, claim)}."
        for name, variant in variants.items()
        if variant["status"] != verdict.status
    ]
    return sentences


def _ends(variant: Mapping[str, Any], claim: Claim) -> str:
    low, high = variant["low"], variant["high"]
    return "" if low is None or high is None else f" ({span_of(low, high, claim)})"


REMARKS = ("note", "place")
"""Columns that comment on a claim and don't affect its verdict."""


def sort_changes(changes: Iterable[ClaimChange]) -> tuple[list[ClaimChange], list[ClaimChange]]:
    """Split changes into those of this claim's row or rule that affect its verdict, and the others; sort by date.

    The others include changes of shared numbers and code, most of which concern other claims.  Adding a claim's row
    doesn't count as a change.
    """
    real = [change for change in changes if change.subject != "claim" or change.changed]
    real.sort(key=lambda change: change.date)
    own = [change for change in real if _affects_verdict(change)]
    return own, [change for change in real if not _affects_verdict(change)]


def _affects_verdict(change: ClaimChange) -> bool:
    if change.subject != "claim":
        return change.subject == "rule"
    changed = (pair for column, pair in change.changed.items() if column not in REMARKS)
    return any(len({"".join(str(value).split()) for value in pair}) > 1 for pair in changed)


Lacking = Mapping[str, tuple[int, int]]


def describe_counted(judged: JudgedClaim, lacking: Lacking) -> str:
    """Name the source of a data set's size and the number of test images scored here; "" for other claims."""
    claim = judged.claim
    if judged.verdict.basis != "params" or claim.facts.by != "data" or not claim.metric.startswith("dataset."):
        return ""
    text = "The number comes from the publisher’s files, and we reject data sets with another number."
    if claim.metric != "dataset.test" or len(judged.datasets) != 1 or judged.datasets[0] not in lacking:
        return text
    images, lost = lacking[judged.datasets[0]]
    scored = f"Results here are scored on {images - lost:,} of the {images:,}"
    return f"{text} {scored}, because our source lacks the exact pixels of {lost}."


def describe_whole(lacking: Lacking, titles: Mapping[str, str]) -> str:
    """Explain how complete a data set must be to decide claims, and name those that lack some test images."""
    text = (
        "A data set counts as complete if every training image is official and at most "
        f"{percent(INEXACT_SHARE, 1)} of the test images are missing."
    )
    some = [f"{titles[name]} without {lost} of {images:,} test images" for name, (images, lost) in lacking.items()]
    if not some:
        return text
    wider = "their intervals are widened by the most that these images could change"
    return f"{text} So results on {listed(some)} count, although our source lacks their exact pixels; {wider}."


WANTED = 0.8
"""Chance for which `stages.verdicts.power` computes the `needed` replicates."""


def plan_in_words(claim: Claim, verdict: VerdictRow) -> tuple[str, list[str]] | None:
    """Return a conclusion and further sentences on the plan's power; None if no chance is known."""
    power = verdict.power
    if power is None or (power["supported"] is None and power["reproduced"] is None and power["can_reproduce"]):
        return None
    runs = f"the {power['planned']} planned runs" + ("" if claim.baseline_arm is None else " of each model")
    is_assumed = power["source"] == "assumed"
    if power["supported"] is None:
        return _of_number(claim, power, runs)
    if claim.facts.is_alike:
        what = "confirm that they are comparable"
        said = _sentence("the models are alike", runs, what, power["supported"], is_assumed=is_assumed)
        return said, _needed(power["supported"], power["needed"])
    chance = "the gain is as printed" if not claim.facts.is_of_failures else "the failure rates are as printed"
    what = "confirm which model " + ("fails less often" if claim.facts.is_of_failures else "is better")
    conclusion = _sentence(chance, runs, what, power["supported"], is_assumed=is_assumed)
    more = _needed(power["supported"], power["needed"]) if not claim.facts.is_of_failures else []
    if power["supported_at_half"] is not None:
        at_half = _chance(power["supported_at_half"], is_assumed=is_assumed)
        more.insert(0, f"If the gain is half as large, that chance is {at_half}.")
    if power["reproduced"] is None and power["can_reproduce"]:
        return conclusion, more
    _, of_size = _of_number(claim, power, runs)
    size = f"They confirm its size with a chance of {_chance(power['reproduced'] or 0.0, is_assumed=is_assumed)}."
    if not power["can_reproduce"]:
        size = "No number of runs can confirm its size."
    return conclusion, [*more, size, *of_size]


def _of_number(claim: Claim, power: Mapping[str, Any], runs: str) -> tuple[str, list[str]]:
    """Describe a printed number's plan: the chance of confirming it, what more runs would bring, the margin."""
    chance = power["reproduced"] or 0.0
    is_lost, needed = not power["can_reproduce"], power["needed" if power["supported"] is None else "needed_for_size"]
    is_uniform = bool(claim.factor)
    where, what = ("the gains are alike", "confirm it") if is_uniform else ("the paper is right", "confirm its number")
    is_assumed = power["source"] == "assumed"
    conclusion = _sentence(where, runs, what, chance, is_assumed=is_assumed)
    if is_lost:
        conclusion = "No number of runs can confirm this number."
    more = []
    margin = None if power["margin"] is None else distance(power["margin"], claim)
    error = None if power["paper_error"] is None else distance(power["paper_error"], claim)
    of_runs = f"of {claim.n} runs" if (claim.n or 1) > 1 else "assumed to be of one run"  # few papers say how many
    if is_lost and power["reproduced"] is None:
        more.append(f"It is no larger than the margin of {margin}, so no gain at all would also count as this gain.")
    elif is_lost and error:
        more.append(f"The paper’s own number, {of_runs}, is itself uncertain by {error}, and the margin is {margin}.")
    elif needed is None and power["most"] is not None and chance < WANTED and error:
        uncertain = f"since the paper’s own number, {of_runs}, is itself uncertain by {error}"
        most = _chance(power["most"], is_assumed=is_assumed)
        more.append(f"More runs would raise that to {most} at most, {uncertain}.")
    elif chance < WANTED and needed:
        more += _needed(chance, needed)
    if margin and not is_lost:
        allows = ""
        if (claim.facts.is_gain or claim.kind == "ratio") and claim.value:
            share = power["margin"] / abs(claim.value)
            least, most = (percent(end, 0) for end in (1 - share, 1 + share))
            allows = f", {name_share(share)} of the paper’s number: ours may be {least} to {most} of it"
        more.append(f"The margin is ± {margin}{allows}.")
    if margin and power["not_reproduced"] is not None:
        off = _chance(power["not_reproduced"], is_assumed=is_assumed)
        more.append(
            f"If the truth is two margins away from the paper’s number, the runs refute it with a chance of {off}."
        )
    return conclusion, more


def _sentence(where: str, runs: str, what: str, chance: float, *, is_assumed: bool) -> str:
    """Start the sentence "If the paper is right and our set-up is the paper’s, the 5 planned runs will …"."""
    said = f"If {where} and our set-up matches the paper’s, {runs} will {what} with a chance of"
    by = ", if runs vary as we assume" if is_assumed else ""
    return f"{said} {_chance(chance, is_assumed=is_assumed)}{by}."


def _needed(chance: float, needed: int | None) -> list[str]:
    if chance >= WANTED:
        return []
    wanted = percent(WANTED, 0)
    return [f"A chance of {wanted} takes {needed} runs." if needed else f"No number of runs makes that {wanted}."]


def _chance(chance: float, *, is_assumed: bool) -> str:
    """Write a chance in percent; with an assumed spread, never closer to certainty than 95 %."""
    most = 0.95 if is_assumed else 0.995
    if chance < 1 - most:
        return "less than 5 %" if is_assumed else "less than 1 %"
    if chance > most:
        return "more than 95 %" if is_assumed else "more than 99 %"
    return percent(chance, 0)


def distance(value: float, claim: Claim) -> str:
    """Write a difference in the claim's unit, fractions in percentage points."""
    if unit_of(claim) == "fraction":
        digits = 2 if value >= 0.001 else 3
        return f"{100 * value:.{digits}f} pp"
    return in_terms_of(float(f"{value:.3g}"), claim)


def name_share(share: float) -> str:
    """Write a share as half, a quarter, a tenth or in percent."""
    return {0.5: "half", 0.25: "a quarter", 0.1: "a tenth"}.get(share, percent(share, 0))


WIDTH = 360
"""Width of the strip in the drawing's units."""
CLEAR = 44
"""Smallest distance between two labels."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A range of margins with one status, in its colour; `label` is its start."""

    status: str
    side: str
    x: float
    width: float
    label: str


@dataclass(frozen=True, kw_only=True)
class MarginStrip:
    """An axis of margins with the verdict under each; `at` and `in_use` are position and label of the one in use."""

    parts: tuple[Part, ...]
    at: float
    in_use: str
    sentence: str

    @property
    def legend(self) -> dict[str, str]:
        """`{status: colour}`, each once."""
        return {part.status: part.side for part in self.parts}


def strip_of(judged: JudgedClaim) -> MarginStrip | None:
    """Draw the verdict, or that on a gain's size, by margin; None if no margin would change it."""
    claim, verdict = judged.claim, judged.verdict
    size = verdict.size or {}
    stretches, margin = verdict.by_margin or size.get("by_margin"), verdict.margin or size.get("margin")
    if not stretches or not margin:
        return None
    starts = [stretch["start"] for stretch in stretches]
    scale = WIDTH / (1.25 * max(starts[-1], margin))
    parts, free, ranges = [], 0.0, []
    for stretch, (start, end) in zip(stretches, itertools.pairwise([*starts, None]), strict=True):
        x = scale * start
        label = distance(start, claim) if start and x >= free else ""
        free = x + CLEAR if label else free
        status = headline_of(stretch["status"])
        side = "waiting" if stretch["status"] == Status.UNDECIDABLE else side_of(stretch["status"])
        width = (WIDTH if end is None else scale * end) - x
        parts.append(Part(status=status, side=side, x=round(x, 1), width=round(width, 1), label=label))
        upto = "on" if end is None else f"to {distance(end, claim)}"
        ends = f"from {distance(start, claim)} {upto}" if start else f"below {distance(end, claim)}"
        ranges.append(f"{status} {ends}")
    of = "Its size, by margin" if verdict.size and not verdict.by_margin else "By margin"
    in_use = distance(margin, claim)
    return MarginStrip(
        parts=tuple(parts),
        at=round(scale * margin, 1),
        in_use=in_use,
        sentence=f"{of}: {', '.join(ranges)}. The margin in use is {in_use}.",
    )


def describe_chance_of_truth(judged: JudgedClaim) -> str:
    """State the posterior chance that the claim is true; "" without one."""
    claim, verdict = judged.claim, judged.verdict
    size = (verdict.size or {}).get("posterior")
    chances = []
    if verdict.posterior is not None:
        event = "the truth lies within the margin" if verdict.margin else "the truth is on the claimed side"
        if claim.facts.is_alike:
            event = "the model is worse by no more than the margin"
        elif claim.factor:
            event = f"no two gains by {claim.factor} are further apart than the margin"
        chances.append(f"that {event} is {_chance_of_margin(verdict.posterior)}")
    if size is not None:
        chances.append(f"that the gain is as large as printed, within the margin, is {_chance_of_margin(size)}")
    if not chances:
        return ""
    return f"By our replicates and a flat prior, the chance {' and '.join(chances)}. This decides nothing."


def _chance_of_margin(chance: float) -> str:
    if chance > 0.999:
        return "more than 99.9 %"
    return "less than 0.1 %" if chance < 0.001 else percent(chance, 0 if 0.01 <= chance <= 0.99 else 1)


DOCS, TEMPLATES = Path(__file__).resolve().parents[2] / "docs", Path(__file__).resolve().parents[1] / "templates"
_SPECIAL = re.compile(r"([\\`*_\[\]<>|])")


def describe_method(rules: Rules, whole: str, later: Iterable[tuple[str, str, str]]) -> str:
    """Return the method as Markdown; `whole` describes incomplete data, `later` lists late rules with their claims."""
    text = fill_tables((DOCS / "verdicts.md").read_text(encoding="utf-8"), rules)
    late = "\n".join(f"- {quote(what)}: [{quote(name)}]({address})" for what, address, name in later)
    return text.replace("<!-- whole -->", quote(whole)).replace("<!-- later -->", late)


def quote(text: str) -> str:
    """Escape text for Markdown."""
    return _SPECIAL.sub(r"\\\1", text)


def fill_tables(text: str, rules: Rules) -> str:
    """Replace the placeholders of the tables of words, margins and levels (`method_tables.md.jinja`)."""
    environment = Environment(loader=FileSystemLoader(TEMPLATES), trim_blocks=True, lstrip_blocks=True)
    for function in (percent, upper_first, as_confidence, name_share):
        environment.filters[function.__name__] = function
    shown = {"by_word": BY_WORD, "icons": ICONS, "reasons": REASONS, "meanings": MEANINGS, "rules": rules}
    plans = {planned: levels_of(rules, planned) for planned in (3, 5, 10)}
    tables = environment.get_template("method_tables.md.jinja").make_module({**shown, "plans": plans})
    for name in ("words", "margins", "levels"):
        text = text.replace(f"<!-- {name} -->", str(getattr(tables, name)).strip())
    return text


def add_badges(page: Markup) -> Markup:
    """Show the page's verdicts as badges."""
    html = str(page)
    for word in BY_WORD:
        html = html.replace(
            f"<td>{ICONS[word]} {word}</td>", f'<td><span class="badge verdict {COLOURS[word]}">{word}</span></td>'
        )
    return Markup(html)
