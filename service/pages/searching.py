"""Full-text search for claims by their words, models, metrics and data sets, best match first.

SQLite's FTS5 with a Porter stemmer finds words in their forms, in memory, so that it works for every results database.
A name counts as one word in any spelling (`Local-ViT`, `local vit`); each line of `spellings.csv` has a term and its
synonyms.  A claim's score is the sum, over the words of the query, of their rarity times the weight of the column that
contains them.  A trigram index finds known words that are spelled like an unknown one.
"""

from __future__ import annotations

import csv
import difflib
import math
import re
import sqlite3
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from service.pages.formats import RELATIVE, print_value
from service.pages.wording import name_metric, ours_in_words, word_of
from stages.results import JudgedClaim, Word

ClaimColumn = Literal["claim", "paper", "ours", "verdict"]
STOP_WORDS = """
a about all an and any are as at base baseline be best by can claim data do does for from good has have how i in is it
its many model models more much my network networks of on or paper really than that the their then there these this to
was were what when which who why will with work you
"""
BETTER = ("order", "difference", "gap", "tally", "wins")
"""Kinds of claims that say, if their number is above 0, that one model is better than another."""
WEIGHTS = {"about": 1.0, "name": 2.0, "statement": 3.0, "models": 3.0}
"""Columns of the index with their weights; a claim's own words weigh as much as its models."""
COMPARING = ("against", "beat")
"""Words that most claims contain and that distinguish none."""
OF_BOTH = 4.0
"""Bonus for a claim about two of the requested models."""
NEARLY = 12
"""Number of claims to show if none has every word."""
ALIKE = 30
"""Number of similar words, by trigrams, to consider for a misspelled one."""
LONGEST = 4  # words of one name
SPELLINGS = Path(__file__).parent / "spellings.csv"

_WORD = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+\d*", re.UNICODE)


@dataclass(frozen=True)
class Found:
    """Matching claims, best first; `is_whole`: they have every word.

    `near`: known words similar to unknown ones.  `papers`: those with an unknown word in their title.
    """

    claims: list[JudgedClaim]
    is_whole: bool
    near: list[str]
    papers: list[str]


def _split(text: str) -> list[str]:
    """Split into words and numbers in lower case; "CIFAR-10" is one word."""
    return _WORD.findall(re.sub(r"(?<=[A-Za-z])-(?=\d)", "", text).lower())


class Words:
    """Splits text into words, one word for each name and for each meaning."""

    def __init__(self, names: Iterable[str]) -> None:
        with SPELLINGS.open(encoding="utf-8", newline="") as file:
            rows = [(row["term"], row["spellings"].split("; ")) for row in csv.DictReader(file)]
        parts = [part for name in names for part in (name.partition(",")[0], *name.split())]
        self._known = {joined: joined for joined in ("".join(_split(part)) for part in parts)}
        self._known |= {
            "".join(_split(text)): "".join(_split(term)) for term, spellings in rows for text in (term, *spellings)
        }
        self._starts = {joined[:end] for joined in self._known for end in range(1, len(joined) + 1)}

    def __call__(self, text: str) -> list[str]:
        return self.join(_split(text))

    def join(self, words: Sequence[str]) -> list[str]:
        """Replace the words of each name by one word."""
        found, start = [], 0
        while start < len(words):
            text, name, size = "", words[start], 1
            for number, word in enumerate(words[start : start + LONGEST], start=1):
                text += word
                if text in self._known:
                    name, size = self._known[text], number
                elif text not in self._starts:
                    break
            found.append(name)
            start += size
        return found


class ClaimIndex:
    """Index of the words of all claims, for one content of the database.

    `names` are the claims' phrases, `arms` the titles of each (experiment, arm), `papers` the papers' titles,
    `datasets` those of the data sets.
    """

    def __init__(
        self,
        judged: Sequence[JudgedClaim],
        names: Mapping[str, str],
        arms: Mapping[tuple[str, str], str],
        papers: Mapping[str, str],
        datasets: Mapping[str, str],
    ) -> None:
        self._lock = threading.Lock()
        self._words = Words([*arms.values(), *datasets.values()])
        self._papers = {name: set(self._words(title)) for name, title in papers.items()}
        self._stopped = set(self._words(STOP_WORDS))
        words = {word for title in arms.values() for word in self._words(title) if not word[0].isdigit()}
        self._models = words.difference(COMPARING)
        self._index = sqlite3.connect(":memory:", check_same_thread=False)
        columns = ", ".join(reversed(WEIGHTS))
        self._index.execute(
            f"CREATE VIRTUAL TABLE claims USING fts5(id UNINDEXED, {columns}, tokenize='porter unicode61')"
        )
        rows = [(row.claim.id, *self._columns(row, names[row.claim.id], arms, datasets)) for row in judged]
        self._index.execute("CREATE VIRTUAL TABLE words USING fts5(word, tokenize='trigram')")
        known = sorted({word for row in rows for text in row[1:] for word in text.split()})
        self._index.executemany("INSERT INTO words VALUES (?)", ((f"_{word}_",) for word in known))
        self._many = len(rows)
        self._index.executemany("INSERT INTO claims VALUES (?, ?, ?, ?, ?)", rows)

    def _columns(
        self, row: JudgedClaim, name: str, arms: Mapping[tuple[str, str], str], datasets: Mapping[str, str]
    ) -> list[str]:
        """Return the words of a claim's models, statement, name and other fields, in both spellings."""
        claim = row.claim
        titles = [
            arms.get((first, arm or ""), "") for first in row.experiments[:1] for arm in (claim.arm, claim.baseline_arm)
        ]
        said = name if claim.statement else " ".join(word for word in self._words(name) if word in self._models)
        own = claim.id.partition(".")[2].replace(".", " ")
        parts = [name_metric(claim.metric), claim.metric.replace("_", " "), claim.place, claim.note, own]
        parts += [row.verdict.status, print_value(claim), *(datasets[item] for item in row.datasets)]
        if claim.baseline_arm:
            name = f"{name} against"
        if (claim.kind in BETTER or claim.unit in RELATIVE) and (claim.value or 0) > 0:
            name, parts = (f"{name} beat", parts) if claim.baseline_arm else (name, [*parts, "beat"])
        columns = (
            " ".join(titles),
            said if claim.statement or not claim.arm else "",
            name,
            " ".join(filter(None, parts)),
        )
        return [" ".join(dict.fromkeys([*self._words.join(words), *words])) for words in map(_split, columns)]

    def find(self, asked: str, judged: Sequence[JudgedClaim]) -> Found:
        """Select the claims of `judged` that match the query `asked`."""
        words = list(dict.fromkeys(self._words(asked)))
        words = [word for word in words if word not in self._stopped] or words
        scores, matches, of_models = defaultdict[str, float](float), Counter[str](), Counter[str]()
        unknown, near = list[str](), list[str]()
        for word in words:
            if not (found := self._weigh(word)):
                unknown.append(word)
                near += (like := self._like(word))
                found = self._weigh(like[0]) if like else {}
            rarity = math.log1p(self._many / (1 + len(found)))
            instead = {claim: weight / 2 for claim, weight in self._weigh("against").items()} if word == "beat" else {}
            for claim, weight in {**instead, **found}.items():
                matches[claim] += 1
                scores[claim] += weight * rarity
                of_models[claim] += weight >= WEIGHTS["statement"] and word in self._models
        for claim, many in of_models.items():
            scores[claim] += OF_BOTH * (many > 1)
        here = [row for row in judged if row.claim.id in scores]
        most = max((matches[row.claim.id] for row in here), default=0)
        ranked = sorted(here, key=lambda row: -scores[row.claim.id])
        best = [row for row in ranked if matches[row.claim.id] == most]
        is_whole = most == len(words) and not unknown
        return Found(
            claims=best if is_whole else best[:NEARLY],
            is_whole=is_whole,
            near=list(dict.fromkeys(near)),
            papers=[name for name, title in self._papers.items() if set(unknown) & title],
        )

    def _like(self, word: str) -> list[str]:
        """Return known words similar to an unknown one, most similar first; [] for a word of a title or a number."""
        if word[0].isdigit() or any(word in title for title in self._papers.values()):
            return []
        parts = " OR ".join(f'"{part}"' for part in (f"_{word}_"[at : at + 3] for at in range(len(word))))
        query = "SELECT trim(word, '_') FROM words WHERE word MATCH ? ORDER BY rank LIMIT ?"
        with self._lock:
            alike = [row for (row,) in self._index.execute(query, (parts, ALIKE))]
        return difflib.get_close_matches(word, alike, n=3, cutoff=0.7)

    def _weigh(self, word: str) -> dict[str, float]:
        """Return for each claim with the word, in any form, the weight of its best column."""
        found: dict[str, float] = {}
        with self._lock:
            for column, weight in WEIGHTS.items():
                ids = self._index.execute(f"SELECT id FROM claims WHERE {column} MATCH ?", (f'"{word}"',))
                most = min(weight, WEIGHTS["name"]) if word in COMPARING else weight
                found |= dict.fromkeys((claim for (claim,) in ids), most)
        return found


def sort_claims(
    rows: Sequence[JudgedClaim], column: ClaimColumn, names: Mapping[str, str], *, is_reversed: bool
) -> list[JudgedClaim]:
    """Sort by a column of the table, numbers unit by unit; claims without a number come last."""

    def key(row: JudgedClaim) -> tuple[str, str | float | None]:
        if column == "claim":
            return "", names[row.claim.id].casefold()
        if column == "verdict":
            return "", list(Word).index(word_of(row))
        if column == "paper":
            return row.claim.unit or "", None if print_value(row.claim) == "–" else row.claim.value
        own = row.verdict.ours if row.verdict.estimate is None else row.verdict.estimate
        return row.claim.unit or "", own if ours_in_words(row) else None

    ordered = sorted((row for row in rows if key(row)[1] is not None), key=key, reverse=is_reversed)
    return ordered + [row for row in rows if key(row)[1] is None]
