"""Tables of claims: a verdict for every claim, the runs behind it, deviations, and the tables' sentences."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column, relationship

from stages.results.tables import Base, JSONOf, Result
from stages.verdicts import Status


class Word(StrEnum):
    """A verdict as a headline."""

    HOLDS = "holds"
    FAILS = "fails"
    OPEN = "open"
    NOT_TESTED = "not tested"


ICONS: Mapping[Word, str] = {Word.HOLDS: "✓", Word.FAILS: "✗", Word.OPEN: "?", Word.NOT_TESTED: "○"}
WORD_OF: Mapping[Status, Word] = {
    Status.REPRODUCED: Word.HOLDS,
    Status.SUPPORTED: Word.HOLDS,
    Status.HOLDS: Word.HOLDS,
    Status.NOT_REPRODUCED: Word.FAILS,
    Status.REVERSED: Word.FAILS,
    Status.FAILS: Word.FAILS,
    Status.CONTRADICTED: Word.FAILS,
    Status.HOLDS_UNDER_READING: Word.OPEN,
    Status.INCONCLUSIVE: Word.OPEN,
    Status.UNRESOLVED: Word.OPEN,
    Status.UNDECIDABLE: Word.OPEN,
    Status.AGREES: Word.OPEN,
    Status.DISAGREES: Word.OPEN,
    Status.SHOWN: Word.NOT_TESTED,
    Status.AS_PRINTED: Word.NOT_TESTED,
    Status.DEVIATES: Word.NOT_TESTED,
    Status.OTHER_HARDWARE: Word.NOT_TESTED,
    Status.NOT_TESTED: Word.NOT_TESTED,
}
"""The only table from a status to its word: a claim that depends on how it is read neither holds nor fails."""


class VerdictRow(Base):
    """What the evidence says of a claim; every claim has one.

    `ours` is our number in the claim's unit, `estimate` with its interval what is compared to `margin`: ours − paper,
    or proposed − baseline with better positive.  `basis`: results, finding, params, or none.  `is_decidable`: something
    here can decide the claim, now or later.  `size` judges how large a difference is, apart from its sign.
    `false_discovery_rate`: among the paper's claims that training judged, of a verdict on a sign.  `by_margin`: the
    status by every other margin, `posterior` the chance of the margin or of the sign.  `rules` digests the numbers of
    the rules; `digest` those, the claim's row with its metric, and the code that judged it.  `variants`: what other
    defensible metrics would say.  `prediction_…`: the interval in which the paper's own rerun would lie, by our
    replicates, in the claim's unit; `is_predicted`: its number does.  `power`: that of the plan before anything runs
    (`stages.verdicts.Power`).  `scope`: the part of a grid that it is of (`stages.verdicts.Scope`).
    `seen_before_rule`: how many of the claim's own results (pairs, where it is of pairs) had been seen when the rule
    was written; None: none had.  `registration`: of a verdict by training, its mark and why
    (`stages.claims.history.RegistrationMark`).  The cost is that of all runs behind it, each counted once.
    """

    __tablename__ = "verdicts"
    claim: Mapped[str] = mapped_column(ForeignKey("claims.id"), primary_key=True)
    status: Mapped[str] = mapped_column(index=True)
    explanation: Mapped[str]
    basis: Mapped[str]
    is_decidable: Mapped[bool]
    ours: Mapped[float | None]
    estimate: Mapped[float | None]
    low: Mapped[float | None]
    high: Mapped[float | None]
    confidence: Mapped[float | None]
    margin: Mapped[float | None]
    n: Mapped[int]
    n_diverged: Mapped[int]
    replicates_expected: Mapped[int | None]
    p_value: Mapped[float | None]
    size: Mapped[dict[str, Any] | None] = mapped_column(JSONOf(dict, or_none=True))
    prediction_low: Mapped[float | None]
    prediction_high: Mapped[float | None]
    prediction_confidence: Mapped[float | None]
    is_predicted: Mapped[bool | None]
    power: Mapped[dict[str, Any] | None] = mapped_column(JSONOf(dict, or_none=True))
    scope: Mapped[dict[str, Any] | None] = mapped_column(JSONOf(dict, or_none=True))
    seen_before_rule: Mapped[int | None]
    registration: Mapped[dict[str, Any] | None] = mapped_column(JSONOf(dict, or_none=True))
    false_discovery_rate: Mapped[float | None]
    by_margin: Mapped[list[Any]]
    posterior: Mapped[float | None]
    rules: Mapped[str]
    digest: Mapped[str]
    variants: Mapped[list[Any]]
    device_seconds: Mapped[float | None]
    flops: Mapped[float | None]
    peak_memory_bytes: Mapped[int | None]
    energy_joules: Mapped[float | None]
    usd: Mapped[float | None]
    runs: Mapped[list[VerdictRun]] = relationship(order_by="VerdictRun.position")
    arms: Mapped[list[VerdictArm]] = relationship(order_by="VerdictArm.position")

    @property
    def mark(self) -> str:
        """`confirmatory`, `exploratory` or `unknown`; empty where no trained model was judged."""
        return mark_of(self.registration)

    @property
    def word(self) -> Word:
        return WORD_OF[Status(self.status)]

    @property
    def marked_status(self) -> str:
        """As "supported (exploratory)"."""
        return f"{self.status} ({self.mark})" if self.mark else self.status


def mark_of(registration: Mapping[str, Any] | None) -> str:
    mark = registration["mark"] if registration else ""
    return "registration unknown" if mark == "unknown" else mark


class VerdictRun(Base):
    """One run behind a verdict: its side and arm, its replicate, and its value.

    None: it diverged, or the claim counts how runs ended; its result says how.
    """

    __tablename__ = "verdict_runs"
    claim: Mapped[str] = mapped_column(ForeignKey("verdicts.claim"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    side: Mapped[str]
    arm: Mapped[str]
    replicate: Mapped[int]
    value: Mapped[float | None]
    result_id: Mapped[int] = mapped_column(ForeignKey("results.id"), index=True)
    result: Mapped[Result] = relationship()


class ClaimChange(Base):
    """A change of a claim's row, or of the rules or the code that judge it, from `data/claims-history.jsonl`.

    `changed`: old and new values by name.  `after_evidence`: results of its experiments were published before it.
    `alters`: it touched a rule, a metric, a statement or a verdict.  `seen`: of a rule, how many of the claim's own
    results (pairs, where it is of pairs) had been seen when the rule was written.
    """

    __tablename__ = "claim_changes"
    claim: Mapped[str] = mapped_column(ForeignKey("claims.id"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    date: Mapped[str]
    subject: Mapped[str]
    changed: Mapped[dict[str, Any]]
    after_evidence: Mapped[bool]
    alters: Mapped[bool]
    seen: Mapped[int | None]
    why: Mapped[str]


class VerdictArm(Base):
    """An arm of a claim whose metric chooses an epoch for all folds together: `epoch`, from 1, of `epochs`.

    `stderr` is as the paper computes it (DAC, Appendix B), `low` to `high` the 95 % interval of the mean over `n`
    folds, with the choice of the epoch in it.  `flops` are those of one forward pass of one image.
    """

    __tablename__ = "verdict_arms"
    claim: Mapped[str] = mapped_column(ForeignKey("verdicts.claim"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    experiment: Mapped[str] = mapped_column(ForeignKey("experiments.name"))
    arm: Mapped[str]
    role: Mapped[str]
    n: Mapped[int]
    value: Mapped[float]
    stderr: Mapped[float]
    low: Mapped[float]
    high: Mapped[float]
    epoch: Mapped[int]
    epochs: Mapped[int]
    flops: Mapped[float | None]
    parameters: Mapped[float | None]


class Deviation(Base):
    """A recorded difference between what a paper says and what we ran.  `id` is `<paper>.<name>`.

    `code`: what the authors' public code does, where there is any.  `departs`: ours is another than the paper's.
    `explains`: what it may explain of a comparison, as the arm `tested_by` shows.  `in_titles`: how the titles of the
    claims that it touches name it, as a choice of ours.
    """

    __tablename__ = "deviations"
    id: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int]
    paper: Mapped[str] = mapped_column(index=True)
    subject: Mapped[str]
    says: Mapped[str]
    code: Mapped[str | None]
    ours: Mapped[str]
    why: Mapped[str | None]
    departs: Mapped[bool]
    explains: Mapped[str | None]
    tested_by: Mapped[str | None]
    in_titles: Mapped[str | None]


class ClaimDeviation(Base):
    """A deviation that touches a claim."""

    __tablename__ = "claim_deviations"
    claim: Mapped[str] = mapped_column(ForeignKey("claims.id"), primary_key=True)
    deviation: Mapped[str] = mapped_column(ForeignKey("deviations.id"), primary_key=True)


class ClaimExperiment(Base):
    """An experiment that a claim is tested in; a claim with a `*` has several."""

    __tablename__ = "claim_experiments"
    claim: Mapped[str] = mapped_column(ForeignKey("claims.id"), primary_key=True)
    experiment: Mapped[str] = mapped_column(ForeignKey("experiments.name"), primary_key=True)


class Family(Base):
    """The sentence of a table: the mean gain of its orders, with its interval at `confidence`.

    `ahead` of the `tested` of all `orders` have a gain above 0.  `tau`: standard deviation between orders beyond
    chance, `p_heterogeneity` of there being none, `i2` its share.
    """

    __tablename__ = "families"
    name: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int]
    paper: Mapped[str] = mapped_column(index=True)
    text: Mapped[str]
    status: Mapped[str]
    gain: Mapped[float | None]
    low: Mapped[float | None]
    high: Mapped[float | None]
    confidence: Mapped[float | None]
    tau: Mapped[float | None]
    p_heterogeneity: Mapped[float | None]
    i2: Mapped[float | None]
    ahead: Mapped[int]
    tested: Mapped[int]
    orders: Mapped[int]
