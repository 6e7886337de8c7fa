"""Which claims answer what somebody asks: by the words of claims, their models, metrics and data sets, best first.

A claim's score is the sum over the asked words of their rarity times the weight of the place where the claim has them;
a handful of words that mean one thing count as one.  It runs over all claims in memory, on any database.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from service.pages.formats import RELATIVE
from service.pages.wording import name_metric, print_value
from stages.results import JudgedClaim

ONE_MEANING = {
    "beat": "beat beaten better exceed outperform superior surpass win ahead improve improvement gain",
    "against": "against versus vs compare comparison comparable alike similar",
    "time": "time speed fast faster slow slower latency duration second nanosecond",
    "parameter": "parameter param",
    "operation": "operation flop cost compute computation computational cheap expensive complexity",
    "memory": "memory ram",
    "accuracy": "accuracy accurate",
    "error": "error wrong mistake",
    "need": "need needed require required necessary",
}
"""Words of one meaning, each line under its first; plurals are singular."""
STOP_WORDS = """
a about all an and any are as at base baseline be best by can claim data do does for from good has have how i in is it
its many model more much my network of on or paper really than that the their then there these this to was were what
when which who why will with work you
"""
BETTER = ("order", "difference", "gap", "tally", "wins")
"""Kinds of claims that say of one model that it is better than another, where their number is above 0."""
MODEL, NAME, ABOUT = 3.0, 2.0, 1.0
"""Weights of places; a claim's own words, where it has any, weigh as much as its models."""
OF_BOTH = 4.0
"""What a claim gains that has two of the asked models."""
NEARLY = 12
"""Claims that are shown where none has every word."""

_SENSES = {word: sense for sense, words in ONE_MEANING.items() for word in words.split()}
_WORD = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+\d*", re.UNICODE)


@dataclass(frozen=True)
class Found:
    """Claims that match, the best first; `is_whole`: they have every word.

    `near`: known words like those that no claim has.  `papers`: whose titles have a word that no claim found has.
    """

    claims: list[JudgedClaim]
    is_whole: bool
    near: list[str]
    papers: list[str]


def words_of(text: str) -> list[str]:
    """Words and numbers in lower case, the plural's s left out, one word for one meaning; "CIFAR-10" is one, too."""
    found = []
    joined = re.sub(r"(?<=[A-Za-z])-(?=\d)", "", text)
    for word in _WORD.findall(joined.lower()):
        singular = word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
        found.append(_SENSES.get(singular, singular))
    return found


_STOPPED = frozenset(word for stopped in STOP_WORDS.split() for word in words_of(stopped))


def search(
    asked: str,
    judged: Sequence[JudgedClaim],
    names: Mapping[str, str],
    arms: Mapping[tuple[str, str], str],
    papers: Mapping[str, str],
) -> Found:
    """The claims that answer `asked`.

    `names` are the claims' phrases, `arms` the titles of each (experiment, arm), `papers` the papers' titles.
    """
    models = {word for title in arms.values() for word in words_of(title) if not word[0].isdigit()}
    documents = {row.claim.id: _weigh(row, names[row.claim.id], arms, models) for row in judged}
    spread = Counter(word for document in documents.values() for word in document)
    words = list(dict.fromkeys(words_of(asked)))
    words = [word for word in words if word not in _STOPPED] or words
    matches, scores = {}, {}
    for row in judged:
        document = documents[row.claim.id]
        weights = {word: document.get(word) or _instead(word, document) for word in words}
        matches[row.claim.id] = sum(weight > 0 for weight in weights.values())
        both = sum(weight >= MODEL for word, weight in weights.items() if word in models) > 1
        scores[row.claim.id] = OF_BOTH * both + sum(
            weight * math.log1p(len(judged) / (1 + spread[word])) for word, weight in weights.items()
        )
    most = max(matches.values(), default=0)
    ranked = sorted(judged, key=lambda row: -scores[row.claim.id])
    found = [row for row in ranked if matches[row.claim.id] == most] if most else []
    is_whole = most == len(words)
    unknown = [word for word in words if not spread[word]]
    return Found(
        claims=found if is_whole else found[:NEARLY],
        is_whole=is_whole,
        near=_like(unknown, spread),
        papers=[name for name, title in papers.items() if set(unknown) & set(words_of(title))],
    )


def _weigh(row: JudgedClaim, name: str, arms: Mapping[tuple[str, str], str], models: Iterable[str]) -> dict[str, float]:
    """`{word: weight}` of a claim: its models most, then its name, then all else that is known of it."""
    claim = row.claim
    titles = [arms.get((experiment, arm or "")) for experiment in row.experiments[:1] for arm in _arms(row)]
    of_models = {word for title in titles if title for word in words_of(title)}
    of_models |= set(words_of(name)) & set(models) if not claim.arm else set()
    own = claim.id.partition(".")[2].replace(".", " ")
    about = " ".join(
        part
        for part in (name_metric(claim.metric), claim.place, claim.note, own, row.verdict.status, print_value(claim))
        if part
    )
    weights: dict[str, float] = {}
    of_name = MODEL if claim.statement else NAME
    for weight, words in ((ABOUT, words_of(about)), (of_name, words_of(name)), (MODEL, of_models)):
        weights.update(dict.fromkeys(words, weight))
    if claim.baseline_arm:
        weights["against"] = NAME
    if (claim.kind in BETTER or claim.unit in RELATIVE) and (claim.value or 0) > 0:
        weights["beat"] = NAME
    return weights


def _arms(row: JudgedClaim) -> tuple[str | None, str | None]:
    return row.claim.arm, row.claim.baseline_arm


def _instead(word: str, document: Mapping[str, float]) -> float:
    """Who asks what is better is answered by what compares."""
    return document.get("against", 0.0) / 2 if word == "beat" else 0.0


def _like(unknown: Iterable[str], known: Iterable[str]) -> list[str]:
    """Known words that are spelled like an unknown one."""
    words = [word for word in known if len(word) > 2]
    found = (close for word in unknown for close in difflib.get_close_matches(word, words, n=3, cutoff=0.7))
    return list(dict.fromkeys(found))
