"""Counts of verdicts for a badge: what holds, what doesn't, what waits, and what the plan can show of that."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from stages.results.claim_tables import VerdictRow, Word
from stages.results.claims import AGAINST_THE_PAPER, CLAIMS, FOR_THE_PAPER, NOT_YET, ClaimFilter, error_of, narrowed
from stages.results.tables import Claim, Meta, Paper, damaged
from stages.rules import Margins, Rules
from stages.verdicts import Status
from stages.verdicts.intervals import level, looks_from, looks_of_plan

NO_BETTER_THAN_CHANCE = 0.05
"""A plan that confirms a right number no more often than its test may confirm a wrong one shows nothing."""
EVEN = 0.5
FALSE_DISCOVERIES = 0.05
"""The share of a paper's decided signs that may be wrong."""
Ground = Literal["trained", "computed", "data"]


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Claims that can be decided, now or later: `decidable`.

    `in_favour`: reproduced, supported, holds; `under_reading` of them only if their words are read in one way, the
    others `plainly`.  `against`: not reproduced, reversed, fails, contradicted.  `open`: there is evidence that doesn't
    decide yet.  `waiting`: not run yet.
    """

    decidable: int
    in_favour: int
    under_reading: int
    against: int
    open: int
    waiting: int

    @property
    def plainly(self) -> int:
        return self.in_favour - self.under_reading

    @property
    def by_word(self) -> dict[Word, int]:
        """Return the decidable claims by their word, as the pages and `claimcheck status` count them."""
        numbers = (self.plainly, self.against, self.open + self.under_reading, self.waiting)
        return dict(zip(Word, numbers, strict=True))

    @property
    def decided(self) -> int:
        return self.in_favour + self.against


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What the planned trainings can show of the `waiting` claims that training decides, if the paper is right.

    `hopeless`: confirmed with a chance below 5 %; `order_only`: the order may be, the size of the difference not;
    `unlikely`: of all others, confirmed with a chance below 50 %.  `unknown`: no size is printed or no spread is known.
    `assumed` of all these rest on a spread of the runs that is neither measured nor printed.
    """

    waiting: int
    hopeless: int
    order_only: int
    unlikely: int
    unknown: int
    assumed: int


@dataclass(frozen=True, kw_only=True)
class Discoveries:
    """Claims of a paper that training `decided` by a p-value, and those that `survive` a false discovery rate of 5 %.

    `tested` are the open ones as well; `without`: decided by training, but not by a p-value on a sign.
    """

    tested: int
    decided: int
    survive: int
    without: int


@dataclass(frozen=True, kw_only=True)
class Tally(Counts):
    """Verdict counts of a paper's claims: a badge.  Training, computing and facts of data are counted separately.

    An error that a finding shows in several places counts once, in the counts and in `by_basis`; `errors` are its
    places, while `claims`, `by_verdict` and `by_kind` count all of them.  `settings` can't hold or fail, `untestable`
    are other claims that nothing here can decide.
    """

    paper: str
    claims: int
    trained: Counts
    computed: Counts
    data: Counts
    outlook: Outlook
    discoveries: Discoveries
    settings: int
    untestable: int
    by_verdict: dict[str, int] = field(default_factory=dict)
    by_kind: dict[str, dict[str, int]] = field(default_factory=dict)
    by_basis: dict[str, dict[str, int]] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)


def tally(session: Session, wanted: ClaimFilter | None = None) -> list[Tally]:
    """Counts by verdict for each paper that has claims, in the order of the params file; other papers follow."""
    rows = session.execute(narrowed(CLAIMS, wanted or ClaimFilter())).all()
    return tally_rows(session, [(row.Claim, row.VerdictRow) for row in rows])


def tally_rows(session: Session, judged: Sequence[tuple[Claim, VerdictRow]]) -> list[Tally]:
    """The same of these claims."""
    order = list(session.scalars(select(Paper.name).order_by(Paper.position)))
    papers = [*order, *(paper for paper in dict.fromkeys(claim.paper for claim, _ in judged) if paper not in order)]
    return [_tally(paper, [row for row in judged if row[0].paper == paper]) for paper in papers]


def _tally(paper: str, rows: Sequence[tuple[Claim, VerdictRow]]) -> Tally:
    places = Counter(error for row in rows if (error := error_of(*row)))
    once = _count_once(rows)
    kinds: dict[str, Counter[str]] = {}
    bases: dict[str, Counter[str]] = {}
    for claim, verdict in rows:
        kinds.setdefault(claim.kind, Counter())[verdict.status] += 1
    for _, verdict in once:
        bases.setdefault(verdict.basis, Counter())[verdict.status] += 1
    grounds: dict[Ground, list[tuple[Claim, VerdictRow]]] = {"trained": [], "computed": [], "data": []}
    for row in once:
        grounds[ground_of(*row)].append(row)
    return Tally(
        paper=paper,
        claims=len(rows),
        **vars(_count(once)),
        trained=_count(grounds["trained"]),
        computed=_count(grounds["computed"]),
        data=_count(grounds["data"]),
        outlook=_foresee(
            [verdict.power for _, verdict in grounds["trained"] if (verdict.is_decidable and verdict.status in NOT_YET)]
        ),
        discoveries=_discover([verdict for _, verdict in once if verdict.basis == "results"]),
        settings=sum(claim.facts.by == "params" for claim, _ in once),
        untestable=sum(claim.facts.by != "params" and not verdict.is_decidable for claim, verdict in once),
        by_verdict=dict(sorted(Counter(verdict.status for _, verdict in rows).items())),
        by_kind={kind: dict(sorted(counts.items())) for kind, counts in kinds.items()},
        by_basis={basis: dict(sorted(counts.items())) for basis, counts in bases.items()},
        errors={error: number for error, number in places.items() if number > 1},
    )


def ground_of(claim: Claim, verdict: VerdictRow) -> Ground:
    """The kind of evidence that decides a claim: trained models, a computation, or facts about the data."""
    if verdict.basis == "params" or (claim.facts.by == "data" and claim.experiment):
        return "data"
    if verdict.basis == "finding" or (claim.experiment is None and claim.family is None):
        return "computed"
    return "trained"


def _count(rows: Sequence[tuple[Claim, VerdictRow]]) -> Counts:
    decidable = [verdict.status for _, verdict in rows if verdict.is_decidable]
    favour, against, waiting = (
        sum(status in words for status in decidable) for words in (FOR_THE_PAPER, AGAINST_THE_PAPER, NOT_YET)
    )
    return Counts(
        decidable=len(decidable),
        in_favour=favour,
        under_reading=decidable.count(Status.HOLDS_UNDER_READING),
        against=against,
        open=len(decidable) - favour - against - waiting,
        waiting=waiting,
    )


def _discover(verdicts: Sequence[VerdictRow]) -> Discoveries:
    decided = [verdict for verdict in verdicts if verdict.status in (*FOR_THE_PAPER, *AGAINST_THE_PAPER)]
    rates = [verdict.false_discovery_rate for verdict in decided if verdict.false_discovery_rate is not None]
    return Discoveries(
        tested=sum(verdict.false_discovery_rate is not None for verdict in verdicts),
        decided=len(rates),
        survive=sum(rate <= FALSE_DISCOVERIES for rate in rates),
        without=len(decided) - len(rates),
    )


def _foresee(powers: Sequence[dict[str, Any] | None]) -> Outlook:
    """Sort waiting claims by the chance that the plan confirms them, an order apart from its size."""
    counts = Counter(map(_prospect, powers))
    kinds = ("hopeless", "order_only", "unlikely", "unknown")
    assumed = sum(
        power is not None and _prospect(power) != "unknown" and power["source"] == "assumed" for power in powers
    )
    return Outlook(waiting=len(powers), **{kind: counts[kind] for kind in kinds}, assumed=assumed)


def _prospect(power: dict[str, Any] | None) -> str:
    if power is None:
        return "unknown"
    size = power["reproduced"] if power["can_reproduce"] else 0.0
    chance = size if power["supported"] is None else power["supported"]
    if chance is None:
        return "unknown"
    if chance < NO_BETTER_THAN_CHANCE:
        return "hopeless"
    if power["supported"] is not None and size is not None and size < NO_BETTER_THAN_CHANCE:
        return "order_only"
    return "unlikely" if chance < EVEN else "likely"


def _count_once(rows: Sequence[tuple[Claim, VerdictRow]]) -> list[tuple[Claim, VerdictRow]]:
    """The rows without the further places of an error."""
    first: dict[tuple[str, str], tuple[Claim, VerdictRow]] = {}
    for row in rows:
        error = error_of(*row)
        first.setdefault(("error", error) if error else ("claim", row[0].id), row)
    return list(first.values())


@dataclass(frozen=True, kw_only=True)
class Levels:
    """`{look: confidence of its interval}` for each question that a plan's replicates answer.

    `order`: which of two models is better.  `same` and `other`: whether a number, or the size of a difference, is the
    paper's or another; `with_error` is the first of these where the paper prints its own error.
    """

    planned: int
    order: dict[int, float]
    same: dict[int, float]
    with_error: dict[int, float]
    other: dict[int, float]


def read_rules(session: Session) -> Rules:
    """The numbers of the rules by which the verdicts were reached.

    Raises:
        ResultsUnavailable: the database doesn't say.
    """
    found = session.scalar(select(Meta.value).where(Meta.name == "rules"))
    if found is None:
        raise damaged("it doesn't hold the numbers of the rules")
    numbers = json.loads(found)
    looks = {int(n): share for n, share in numbers["looks"].items()}
    return Rules(**{**numbers, "margins": Margins(**numbers["margins"]), "looks": looks})


def levels_of(rules: Rules, planned: int) -> Levels:
    """The confidence of every question at each look of a plan of so many replicates, as `stages.verdicts` asks it."""
    orders = looks_of_plan(rules.looks, planned)
    values, printed = (
        looks_of_plan(looks_from(rules.looks, minimum), planned)
        for minimum in (rules.minimum, rules.minimum_with_error)
    )

    def confidence(looks: dict[int, float], alpha: float) -> dict[int, float]:
        return {n: 1 - level(looks, n, alpha) for n in looks}

    return Levels(
        planned=planned,
        order=confidence(orders, rules.alpha_outside),
        same=confidence(values, 2 * rules.alpha_within),
        with_error=confidence(printed, 2 * rules.alpha_within),
        other=confidence(values, rules.alpha_outside),
    )
