"""Words of pages: verdicts and their reasons, the part of a grid that they cover, names of claims and numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cache
from math import isclose
from typing import Any, NamedTuple
from urllib.parse import urlencode

from jinja2 import Environment, Template
from sqlalchemy import select
from sqlalchemy.orm import Session

from service.database.comparing import name_quantity
from service.database.queries import list_datasets
from service.pages import formats
from service.pages.formats import listed, read_table
from service.pages.models import threads
from stages.results import (
    AGAINST_THE_PAPER,
    FOR_THE_PAPER,
    ICONS,
    KINDS,
    METRICS,
    WORD_OF,
    ArmRow,
    ArmVerdict,
    Claim,
    JudgedClaim,
    Metric,
    Paper,
    Status,
    Tally,
    VerdictRow,
    Word,
    error_of,
    kind_of_run,
)

WAITING = "waiting"
TO_BE_SHOWN = "waiting to be shown"
NEVER = "can’t be tested here"
NEVER_ON_HARDWARE = "can’t be tested here (hardware)"

_ROWS = {row["key"]: row for row in read_table("verdicts.csv")}
MEANINGS: Mapping[str, str] = {key: row["meaning"] for key, row in _ROWS.items()}
REASONS: Mapping[str, str] = {key: row["reason"] for key, row in _ROWS.items()}
"""Second line of a verdict, by key (see `key_of`), in the order of the legend."""
HEADLINES: Mapping[str, Word] = dict.fromkeys(REASONS, Word.NOT_TESTED) | {str(key): WORD_OF[key] for key in Status}


def headline_of(key: str) -> Word:
    """Return the word of a key; claims that wait or can never be decided are "not tested"."""
    return HEADLINES[key]


BY_WORD = {word: tuple(key for key in REASONS if headline_of(key) is word) for word in Word}
COLOURS = {Word.HOLDS: "for", Word.FAILS: "against", Word.OPEN: "open", Word.NOT_TESTED: "waiting"}
"""Colour names in the style sheet."""

_ARXIV = re.compile(r"arXiv[: ]\s*(\d{4}\.\d{4,5}(?:v\d+)?)")


def key_of(judged: JudgedClaim | ArmVerdict) -> str:
    """Return the verdict's key in `REASONS`: its status or, if it is "not tested", why."""
    verdict, claim = (judged.verdict, judged.claim) if isinstance(judged, JudgedClaim) else (judged, judged)
    if verdict.status == Status.OTHER_HARDWARE:
        return NEVER_ON_HARDWARE
    if verdict.status != Status.NOT_TESTED:
        return verdict.status
    if verdict.is_decidable:
        return WAITING
    is_run = isinstance(judged, ArmVerdict) or bool(judged.experiments)
    return TO_BE_SHOWN if KINDS[claim.kind].by == "nothing" and is_run else NEVER


def word_of(judged: JudgedClaim | ArmVerdict) -> Word:
    return headline_of(key_of(judged))


def has_word(judged: JudgedClaim, word: str | None) -> bool:
    """Return True if the verdict has this word or, in older links, this status; None matches all."""
    return word in (None, word_of(judged), key_of(judged), judged.verdict.status)


def known_word(text: str) -> str:
    """Return `text` if it is a verdict's word or, in older links, a status.

    Raises:
        ValueError: it is neither.
    """
    if text not in (*Word, *REASONS, *Status):
        raise ValueError(f"expected one of {', '.join(Word)}")
    return text


def data_query(word: str) -> str:
    """Return the query of `/api/v1/claims` that selects the claims with this word."""
    if word in list(Word):
        return urlencode({"word": word})
    if word == NEVER_ON_HARDWARE:
        return urlencode({"verdict": str(Status.OTHER_HARDWARE)})
    if word in (WAITING, TO_BE_SHOWN, NEVER):
        return urlencode(
            {"verdict": str(Status.NOT_TESTED), "standing": "waiting" if word == WAITING else "untestable"}
        )
    return urlencode({"verdict": word})


def meaning_of(word: str, kind: str | None = None, reading: str | None = None) -> str:
    """Explain a verdict's status, which may differ by kind of claim and if we chose a reading of its words."""
    own = "meaning for noise" if kind and KINDS[kind].is_spread else "meaning by reading" if reading else "meaning"
    return _ROWS[word][own] or MEANINGS[word]


def address_of(paper: Paper) -> str | None:
    """Return the paper's address on arXiv if its title names one."""
    match = _ARXIV.search(paper.title)
    return f"https://arxiv.org/abs/{match[1]}" if match else None


def date_of(paper: Paper) -> str:
    """Write the date and number of a paper on arXiv, as ", 2024-03, arXiv 2403.02411"; "" for other papers."""
    match = _ARXIV.search(paper.title)
    return f", 20{match[1][:2]}-{match[1][2:4]}, arXiv {match[1]}" if match else ""


A_PART = (
    "part of a grid says nothing about the rest; claims about the whole grid are judged once, when all of it has run"
)
_LEVELS = {"depth": "layers", "width": "units"}
"""Units of the levels of a grid's factor."""
MAX_LISTED_SIZES = 5
"""If there are more sizes, only their range is shown."""


def is_part(verdict: VerdictRow) -> bool:
    """Return True if some planned models of the verdict's grid have not run."""
    scope = verdict.scope
    if scope is None:
        return False
    return (scope["planned_pairs"] or 0) > scope["pairs"] or (scope["planned_models"] or 0) > (scope["models"] or 0)


def part_of(judged: JudgedClaim) -> str:
    """Name the part that ran, as "at 5 and 8 layers" or "14 of 35 pairs"; "" for a whole grid or none."""
    scope = judged.verdict.scope
    if scope is None or not is_part(judged.verdict):
        return ""
    if scope["factor"]:
        return f"at {levels(scope['factor'], scope['ran'])}"
    if judged.sizes:
        return f"at {sizes(judged.sizes)}"
    if scope["planned_pairs"]:
        return f"{scope['pairs']} of {scope['planned_pairs']} pairs"
    return f"{scope['models']} of {scope['planned_models']} models"


def levels(factor: str, values: Iterable[Any]) -> str:
    """Write levels with their unit, as "5 and 8 layers"; a factor without a unit comes first, as in "rank 5 and 8"."""
    text = listed([f"{value}" for value in values])
    return f"{text} {_LEVELS[factor]}" if factor in _LEVELS else f"{factor} {text}"


def sizes(numbers: tuple[int, ...]) -> str:
    """Write rising numbers of parameters to three digits, as "144,000 and 164,000 parameters"."""
    texts = [f"{float(f'{number:.3g}'):,.0f}" for number in numbers]
    many = len(texts) > MAX_LISTED_SIZES
    return (f"{len(texts)} sizes from {texts[0]} to {texts[-1]}" if many else listed(texts)) + " parameters"


def describe_part(judged: JudgedClaim) -> str:
    """Explain why a part of a grid is enough for the verdict, or isn't; "" for a whole grid."""
    part, status = part_of(judged), judged.verdict.status
    if not part:
        return ""
    if status in (*FOR_THE_PAPER, *AGAINST_THE_PAPER):
        return f"So “{headline_of(status)}” applies only {part}: {A_PART}."
    return f"That is not enough for a verdict on the whole grid: {A_PART}."


_UNITS: Mapping[str, Callable[[float], str]] = {
    "FLOP": formats.flops,
    "percent": lambda number: f"{formats.plain(number)} %",
    "share": lambda number: f"{formats.plain(100 * number)} %",
}


class Caption(NamedTuple):
    """Caption of numbers whose whole name matches `pattern`; `text` takes the pattern's groups, in words.

    `paper`: the only paper that it applies to; "" for all papers.
    """

    paper: str
    pattern: re.Pattern[str]
    unit: str
    text: str


FORMATS = (
    *("percent", "as_confidence", "points", "count", "flops", "memory", "energy", "duration", "ratio", "as_cost"),
    *("plain", "prose", "lower_first", "upper_first", "is_web_address", "print_value", "in_terms_of", "unit_of"),
    *("format_signed_change", "expected_observation", "by_reading"),
)
"""Functions of `formats` that are filters of templates."""


def read_terms(*kinds: str) -> dict[str, str]:
    """Read the words for names of some kinds (data, network, word, metric) from `terms.csv`."""
    return {row["name"]: row["text"] for row in formats.read_table("terms.csv") if row["kind"] in kinds}


_METRICS = read_terms("metric")
"""Titles of metrics and settings that `METRICS` lacks and whose own name would mislead."""
_GROUPS = read_terms("data", "network", "word")
"""Words for the groups of a caption's pattern."""


@cache
def captions() -> tuple[Caption, ...]:
    """Read `captions.csv`: in a name, DATA and NET match any data set and network; a prefix `dac:` names the paper."""
    names = {"DATA": "|".join(read_terms("data")), "NET": "|".join(read_terms("network"))}
    return tuple(
        Caption(paper, re.compile(re.sub("DATA|NET", lambda found: names[found[0]], name)), row["unit"], row["caption"])
        for row in formats.read_table("captions.csv")
        for paper, _, name in [row["name"].rpartition(":")]
    )


def find_caption(paper: str, name: str) -> tuple[str, Callable[[float], str]] | None:
    """Return the caption of a finding's number and the function that formats it; None without a caption."""
    for row in captions():
        if row.paper in ("", paper) and (match := row.pattern.fullmatch(name)):
            groups = [_GROUPS.get(group, group) for group in match.groups()]
            return row.text.format(*groups, name=name), _UNITS.get(row.unit) or formats.value_in(row.unit)
    return None


def caption_all(computed: Mapping[str, float], paper: str) -> list[tuple[str, str]]:
    """Return the numbers of a finding as table rows; names without a caption are shown without underscores."""
    rows = []
    for name, number in computed.items():
        text, write = find_caption(paper, name) or (name.replace("_", " "), formats.plain)
        rows.append((text, write(number)))
    return rows


def install(environment: Environment, root_path: str = "") -> None:
    """Register the functions that templates use as filters, and prefix the service's own links with `root_path`."""
    own = re.compile(rf'\b(href|src|action|formaction)="(?=/)(?!//|{re.escape(root_path)}["/?#])')

    class RootedTemplate(Template):
        def render(self, *args: Any, **kwargs: Any) -> str:
            return own.sub(rf'\1="{root_path}', super().render(*args, **kwargs))

    if root_path:
        environment.template_class = RootedTemplate
    for function in (
        *(side_of, as_run, print_ours, print_metric, name_quantity, agreement, size_of, verdict_in_words, name_reading),
        *(ours_is, ours_in_words, name_metric, speaker, threads, caption_all, kind_of_run),
        *(getattr(formats, name) for name in FORMATS),
        *(part_of, meaning_of, word_of, key_of, headline_of, data_query),
        *(address_of, date_of),
    ):
        environment.filters[function.__name__] = function
    environment.filters |= {"zip": zip, "in_unit": lambda number, unit: formats.value_in(unit or "")(number)}
    environment.globals |= {"icons": ICONS, "reasons": REASONS, "span": formats.span, "span_of": span_of}
    environment.globals |= {"value_with": formats.value_with, "as_precise_as": formats.as_precise_as}
    environment.trim_blocks = environment.lstrip_blocks = True


def side_of(status: str) -> str:
    """Return the colour of a verdict: for, against, open or waiting."""
    return COLOURS[headline_of(status)]


def is_decided(status: str) -> bool:
    """Return True if the verdict is "holds" or "fails"."""
    return headline_of(status) in (Word.HOLDS, Word.FAILS)


def name_claim(judged: JudgedClaim, titles: Mapping[str, str], arms: Mapping[tuple[str, str], str]) -> str:
    """Name a claim by its statement or else by its models, metric, data sets and our choices.

    `titles` are the names of the data sets, `arms` those of each (experiment, arm).
    """
    claim = judged.claim
    if claim.statement:
        begins_with_a_word = re.match(r"(a|[a-z]{2,}([/-][a-z]+)?) ", claim.statement)  # not with a formula
        return claim.statement[0].upper() + claim.statement[1:] if begins_with_a_word else claim.statement
    metric = name_metric(claim.metric)
    arm, baseline = (
        next((arms[where, name] for where in judged.experiments if name and (where, name) in arms), name)
        for name in (claim.arm, claim.baseline_arm)
    )
    if formats.names_baseline_first(claim):
        arm, baseline = baseline, arm
    if arm:
        metric = formats.lower_first(metric)
        phrase = f"{arm} against {baseline}: {metric}" if baseline else f"{arm}: {metric}"
    else:
        phrase = metric
    many = len(judged.datasets) > 3
    datasets = f"{len(judged.datasets)} data sets" if many else ", ".join(titles[name] for name in judged.datasets)
    details = "; ".join(filter(None, (datasets, *judged.choices)))
    return f"{phrase} ({details})" if details else phrase


def name_metric(metric: str) -> str:
    """Return the title of a metric or setting."""
    if metric in METRICS:
        return METRICS[metric].title
    return _METRICS.get(metric) or metric.rpartition(".")[2].replace("_", " ").capitalize()


def as_run(value: float, claim: Claim) -> str:
    """Write one run's number in the claim's metric, even if the claim is about a difference."""
    return formats.value_in(METRICS[claim.metric].unit if claim.metric in METRICS else claim.unit or "")(value)


def speaker(claim: Claim) -> str:
    """Return who makes the claim: the paper, or its authors on their web pages."""
    return "the authors’ web pages" if claim.place == "authors' web pages" else "the paper"


def print_ours(verdict: VerdictRow, claim: Claim) -> str:
    """Write our number as precisely as its interval; if several readings hold, their range."""
    readings = formats.by_reading(claim) if verdict.basis == "finding" else []
    if readings and (claim.finding or {})["status"] == Status.HOLDS:
        return formats.from_to(readings[0][1], readings[-1][1])
    return formats.format_signed_change(verdict.ours, claim, formats.as_precise_as(verdict.low, verdict.high))


def ours_in_words(judged: JudgedClaim) -> str:
    """Return our outcome as a table shows it: our number, a short text, or "" if there is none."""
    claim, verdict = judged.claim, judged.verdict
    if verdict.status == Status.HOLDS_UNDER_READING and (readings := formats.by_reading(claim)):
        return "; ".join(f"{text} ({name})" for name, text in readings)
    if verdict.ours is not None:
        return print_ours(verdict, claim)
    if verdict.basis == "results" and verdict.estimate is not None:
        write = formats.as_precise_as(verdict.low, verdict.high)
        size = formats.in_terms_of(abs(verdict.estimate), claim, write).removeprefix("+")
        if claim.factor:
            return f"gains differ by {size} over {claim.factor}"
        if claim.facts.at_size:
            return f"{size} {'better' if verdict.estimate >= 0 else 'worse'}"
    return ""


def span_of(low: float, high: float, claim: Claim) -> str:
    """Write an interval in the terms of `claim`, with its unit once."""
    write = formats.as_precise_as(low, high)
    return formats.from_to(formats.in_terms_of(low, claim, write), formats.in_terms_of(high, claim, write))


def size_of(size: Mapping[str, Any] | None) -> str:
    """Write the verdict on a difference's size, as "size open"; "" if it isn't judged."""
    return "" if size is None else f"size {headline_of(size['status'])}"


def name_with_value(name: str, claim: Claim) -> str:
    """Return a claim's name, followed by the paper's number unless the name contains it."""
    if claim.value is None or claim.facts.is_implied or claim.facts.is_alike:
        return name
    same = (claim.value, 100 * claim.value)  # 0.11 is 11 %
    numbers = (float(number) * (1000 if kilo else 1) for number, kilo in re.findall(r"(\d+(?:\.\d+)?)(k?)", name))
    is_named = claim.statement and any(isclose(number, value) for number in numbers for value in same)
    return name if is_named else f"{name}: {formats.print_value(claim)}"


def print_metric(row: Metric) -> str:
    """Write a result's number in its metric's unit."""
    return formats.value_in(METRICS[row.metric].unit)(row.value) if row.metric in METRICS else formats.plain(row.value)


def ours_is(verdict: VerdictRow, claim: Claim) -> str:
    """Say how we got our number: by training, counting, computing, or from the paper's other numbers."""
    if verdict.basis == "finding":
        return "from its other numbers" if claim.kind == "inconsistent" else "we compute"
    if verdict.basis == "params":
        return "we count" if claim.facts.by == "data" else "we set"
    return "we find"


def verdict_in_words(judged: JudgedClaim) -> str:
    """Summarise a verdict for use outside its page: word, reason if undecided, size, part and mark."""
    verdict, word = judged.verdict, word_of(judged)
    text = str(word) if is_decided(verdict.status) else f"{word}: {REASONS[key_of(judged)]}"
    return ", ".join(filter(None, (text, size_of(verdict.size), part_of(judged), verdict.mark)))


def name_reading(judged: JudgedClaim) -> str | None:
    """Name the readings under which a claim is true, as "only if read as growth with the tokens"."""
    if judged.verdict.status != Status.HOLDS_UNDER_READING:
        return None
    readings = (judged.claim.finding or {}).get("readings", [])
    true, false = ([item["name"] for item in readings if item["holds"] == holds] for holds in (True, False))
    if not true:
        return None
    also = f", not {' or '.join(false)}" if false else ""
    return f"only if read {' or '.join(true)}{also}"


def describe_verdicts(judged: Sequence[JudgedClaim], looks: Container[str] = ()) -> str:
    """Count the claims of one table or section by word; `looks` are those with a first indication."""
    counts = Counter(word_of(row) for row in judged)
    decided = {word: counts[word] for word in (Word.HOLDS, Word.FAILS) if counts[word]}
    others = {word: counts[word] for word in (Word.OPEN, Word.NOT_TESTED) if counts[word]}
    seen = sum(row.claim.id in looks for row in judged)
    of_looks = f" For {seen} there is an early indication, which decides nothing." if seen else ""
    if not decided:
        return f"None of these {len(judged)} claims is decided yet ({_list_counts(others)}).{of_looks}"
    if not others:
        return f"All {len(judged)} claims are decided ({_list_counts(decided)})."
    are = "is" if sum(decided.values()) == 1 else "are"
    return (
        f"{sum(decided.values())} of these {len(judged)} claims {are} decided ({_list_counts(decided)}), "
        f"the others are not ({_list_counts(others)}).{of_looks}"
    )


def count_verdicts(judged: Sequence[JudgedClaim]) -> str:
    """List reasons with counts, as "a setting, and ours is the same: 26; not trained or computed yet: 2"."""
    return "; ".join(f"{REASONS[key]}: {n}" for key, n in Counter(key_of(row) for row in judged).items())


def _list_counts(counts: Mapping[Word, int]) -> str:
    return ", ".join(f"{number} {word}" for word, number in counts.items())


def shared_errors(judged: Iterable[JudgedClaim], tally: Tally) -> dict[str, JudgedClaim]:
    """Return the errors that appear in several places of a paper, each with the first of these claims that has it."""
    errors: dict[str, JudgedClaim] = {}
    for row in judged:
        if (error := error_of(row.claim, row.verdict)) in tally.errors:
            errors.setdefault(error, row)
    return errors


def agreement(answers: Sequence[str], provenances: Sequence[str]) -> str:
    """Describe how far models agree; `answers` are their likeliest classes, and placeholder models don't count."""
    pairs = zip(answers, provenances, strict=bool(answers))  # an unreadable image has no answers
    real = [answer for answer, provenance in pairs if provenance != "embedded"]
    if len(real) < 2:
        return "–"
    (likeliest, count), *others = Counter(real).most_common()
    if not others:
        return f"both say {likeliest}" if count == 2 else f"all {count} say {likeliest}"
    return f"{count} of {len(real)} say {likeliest}" if count > others[0][1] else "they differ"


def name_claims(session: Session, judged: Iterable[JudgedClaim]) -> dict[str, str]:
    """Return the name of each claim by its id."""
    titles, arms = titles_of(session)
    return {row.claim.id: name_claim(row, titles, arms) for row in judged}


def titles_of(session: Session) -> tuple[dict[str, str], dict[tuple[str, str], str]]:
    """Return the titles of the data sets and of each (experiment, arm), for `name_claim`."""
    arms = session.execute(select(ArmRow.experiment, ArmRow.name, ArmRow.title))
    return (
        {item.name: item.title for item in list_datasets(session)},
        {(experiment, name): title for experiment, name, title in arms},
    )
