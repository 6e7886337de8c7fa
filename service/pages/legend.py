"""Verdict words, their reasons in plain English, and the part of a grid that a verdict covers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlencode

from service.pages.formats import listed, read_table
from stages.results import (
    AGAINST_THE_PAPER,
    FOR_THE_PAPER,
    KINDS,
    WORD_OF,
    ArmVerdict,
    JudgedClaim,
    Paper,
    Status,
    VerdictRow,
    Word,
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
