"""Explains the method: what the rules require, and what planned and finished runs can show about a claim."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from service.pages.formats import as_confidence, in_terms_of, percent, unit_of, upper_first
from service.pages.legend import BY_WORD, COLOURS, MEANINGS, REASONS, headline_of
from service.pages.wording import side_of
from stages.results import ICONS, Claim, JudgedClaim, Rules, Status, VerdictRow, levels_of

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
