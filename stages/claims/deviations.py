"""Recorded differences between what a paper says and what we ran: `stages/papers/<paper>/deviations.yaml`.

They are data beside the paper's models, so that reading them loads no model.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import TypeAdapter

from stages.claims.lines import ClaimLine
from stages.params.schema import read_yaml, validate
from stages.run import STRICT
from stages.runs.fingerprint import source_path


@dataclass(frozen=True, kw_only=True)
class RecordedDeviation:
    """One deviation.  `claims` are patterns of the claim ids it touches; the rest are sentences for a reviewer.

    `paper` is what the paper says, `code` what its authors' public code does, `ours` what we do, `why` the reason.
    `departs`: ours is not what the paper has or, where that is silent, its authors' code.  `explains` says what it may
    explain of the paper's comparison, in a sentence; the arm `tested_by` shows whether it does.  `in_titles`: a choice
    of ours that the titles of these claims name, in a few words that say so.
    """

    __pydantic_config__: ClassVar = STRICT
    subject: str
    claims: tuple[str, ...]
    paper: str
    ours: str
    why: str | None = None
    code: str | None = None
    departs: bool = True
    explains: str | None = None
    tested_by: str | None = None
    in_titles: str | None = None


@dataclass(frozen=True, kw_only=True)
class MainQuestion:
    """The question that a reader comes with; the claims whose ids match a pattern of `claims` answer it."""

    __pydantic_config__: ClassVar = STRICT
    asks: str
    claims: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PaperDeviations:
    """`device`: what the paper timed on, as part of the name that torch gives it; None where the paper doesn't say.

    `repository`: the address of its authors' public code; None where there is none.  `before_use`: what whoever uses
    the paper's comparison must know first, in sentences.  `argument`: patterns of the ids of the claims that are about
    what the paper proposes, the weightiest first.  `called`: a short name of the paper; `question`: its main question.
    """

    __pydantic_config__: ClassVar = STRICT
    paper: str
    called: str | None = None
    question: MainQuestion | None = None
    device: str | None = None
    repository: str | None = None
    before_use: tuple[str, ...] = ()
    argument: tuple[str, ...] = ()
    deviations: Mapping[str, RecordedDeviation]


def read_deviations(papers: Collection[str]) -> list[PaperDeviations]:
    """The deviations of each paper that has a file, ordered by paper name.

    Raises:
        ParamsError: a file can't be read, or has an unknown key.
    """
    found = []
    for paper in sorted(papers):
        package = source_path(f"stages.papers.{paper}")
        path = package.parent / "deviations.yaml" if package else None
        if path is not None and path.is_file():
            found.append(validate(TypeAdapter(PaperDeviations), {"paper": paper, **read_yaml(path)}, path))
    return found


def touched(deviation: RecordedDeviation, claims: Sequence[ClaimLine]) -> list[str]:
    """Ids of the claims that the deviation touches, in their order."""
    return [claim.id for claim in claims if any(fnmatch.fnmatchcase(claim.id, pattern) for pattern in deviation.claims)]
