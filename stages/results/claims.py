"""Claims with their verdicts: lists, a single claim with everything behind it, and counts for a badge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal

from sqlalchemy import Select, select
from sqlalchemy.orm import Session, joinedload, selectinload

from stages.results.claim_tables import (
    ClaimChange,
    ClaimDeviation,
    ClaimExperiment,
    Deviation,
    Family,
    VerdictArm,
    VerdictRow,
    VerdictRun,
)
from stages.results.database import UnknownClaim
from stages.results.estimates import ArmVerdict
from stages.results.outlook import Outlook, foresee_waiting
from stages.results.pairs import PairGain, pair_gains
from stages.results.tables import Arm, Claim, Experiment, Metric, Paper
from stages.verdicts import Status

FOR_THE_PAPER = (Status.REPRODUCED, Status.SUPPORTED, Status.HOLDS, Status.HOLDS_UNDER_READING)
AGAINST_THE_PAPER = (Status.NOT_REPRODUCED, Status.REVERSED, Status.FAILS, Status.CONTRADICTED)
NOT_YET = (Status.NOT_TESTED,)
Ground = Literal["trained", "computed", "data"]


@dataclass(frozen=True, kw_only=True)
class ClaimFilter:
    """Filters of a list of claims; None filters nothing."""

    paper: str | None = None
    dataset: str | None = None
    experiment: str | None = None
    kind: str | None = None
    verdict: Status | None = None
    family: str | None = None


@dataclass(frozen=True, kw_only=True)
class JudgedClaim:
    """A claim, its verdict, and where it is tested.

    `sizes`: where networks of equal size were paired, the numbers of parameters of the proposed ones, rising.
    """

    claim: Claim
    verdict: VerdictRow
    experiments: tuple[str, ...]
    datasets: tuple[str, ...]
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ClaimRecord(JudgedClaim):
    """One claim with everything behind its verdict; `family` is the sentence of its table.

    `pairs`: for a gain over a grid, the gain of each pair.  `arms`: for a metric that chooses an epoch, each arm's.
    `same_error`: other claims that are wrong because of the same error.
    """

    runs: tuple[VerdictRun, ...]
    arms: tuple[VerdictArm, ...]
    pairs: tuple[PairGain, ...]
    deviations: tuple[Deviation, ...]
    changes: tuple[ClaimChange, ...]
    family: Family | None
    same_error: tuple[str, ...]


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
    def decided(self) -> int:
        return self.in_favour + self.against


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
    settings: int
    untestable: int
    by_verdict: dict[str, int] = field(default_factory=dict)
    by_kind: dict[str, dict[str, int]] = field(default_factory=dict)
    by_basis: dict[str, dict[str, int]] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)


_CLAIMS = select(Claim, VerdictRow).join(VerdictRow, VerdictRow.claim == Claim.id).order_by(Claim.position)


def list_judged(
    session: Session, wanted: ClaimFilter, *, limit: int | None = None, offset: int = 0
) -> list[JudgedClaim]:
    """Claims that match the filter, in their order."""
    return _judged(session, _cut(_CLAIMS, wanted).limit(limit).offset(offset))


def list_decided(session: Session) -> list[JudgedClaim]:
    """Claims that hold or don't, by what was computed or trained; counts of data sets are left out."""
    is_decided = VerdictRow.status.in_([str(status) for status in (*FOR_THE_PAPER, *AGAINST_THE_PAPER)])
    return _judged(session, _CLAIMS.where(is_decided, VerdictRow.basis.in_(["finding", "results"])))


def _judged(session: Session, query: Select[Claim, VerdictRow]) -> list[JudgedClaim]:
    rows = session.execute(query).all()
    places = _places(session, [row.Claim.id for row in rows])
    sizes = _sizes(session, [row.VerdictRow for row in rows])
    return [
        JudgedClaim(
            claim=row.Claim,
            verdict=row.VerdictRow,
            experiments=names,
            datasets=datasets,
            sizes=sizes.get(row.Claim.id, ()),
        )
        for row in rows
        for names, datasets in [places.get(row.Claim.id, ((), ()))]
    ]


def _sizes(session: Session, verdicts: Iterable[VerdictRow]) -> dict[str, tuple[int, ...]]:
    """`{claim: numbers of parameters}` of those whose results told which networks are pairs."""
    paired = [verdict.claim for verdict in verdicts if verdict.scope and verdict.scope["planned_pairs"] is None]
    if not paired:
        return {}
    query = (
        select(VerdictRun.claim, Metric.value)
        .join(Metric, Metric.result_id == VerdictRun.result_id)
        .where(VerdictRun.claim.in_(paired), VerdictRun.side == "proposed", Metric.metric == "parameters")
        .distinct()
        .order_by(VerdictRun.claim, Metric.value)
    )
    found: dict[str, tuple[int, ...]] = {}
    for row in session.execute(query):
        found[row.claim] = (*found.get(row.claim, ()), round(row.value))
    return found


def _cut(query: Any, wanted: ClaimFilter) -> Any:
    if wanted.paper is not None:
        query = query.where(Claim.paper == wanted.paper)
    if wanted.kind is not None:
        query = query.where(Claim.kind == wanted.kind)
    if wanted.family is not None:
        query = query.where(Claim.family == wanted.family)
    if wanted.verdict is not None:
        query = query.where(VerdictRow.status == str(wanted.verdict))
    if wanted.dataset is not None or wanted.experiment is not None:
        inside = select(ClaimExperiment.claim).join(Experiment, Experiment.name == ClaimExperiment.experiment)
        if wanted.dataset is not None:
            inside = inside.where(Experiment.dataset == wanted.dataset)
        if wanted.experiment is not None:
            inside = inside.where(Experiment.name == wanted.experiment)
        query = query.where(Claim.id.in_(inside))
    return query


def _places(session: Session, claims: Sequence[str]) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """`{claim: (experiments, data sets)}`, each in the order of the params file."""
    query = (
        select(ClaimExperiment.claim, Experiment.name, Experiment.dataset)
        .join(Experiment, Experiment.name == ClaimExperiment.experiment)
        .where(ClaimExperiment.claim.in_(claims))
        .order_by(Experiment.position)
    )
    found: dict[str, tuple[list[str], list[str]]] = {}
    for row in session.execute(query):
        names, datasets = found.setdefault(row.claim, ([], []))
        names.append(row.name)
        datasets.append(row.dataset)
    return {claim: (tuple(names), tuple(dict.fromkeys(datasets))) for claim, (names, datasets) in found.items()}


def find_judged(session: Session, claim_id: str) -> ClaimRecord:
    """One claim with its runs, its deviations and the sentence of its table.

    Raises:
        UnknownClaim: there is no such claim.
    """
    claim = session.get(Claim, claim_id)
    if claim is None:
        name = claim_id[:120]
        raise UnknownClaim(
            name, nearest=next(iter(get_close_matches(name, session.scalars(select(Claim.id)), 1)), None)
        )
    verdict = session.get_one(
        VerdictRow,
        claim_id,
        options=[
            selectinload(VerdictRow.runs).options(joinedload(VerdictRun.result)),
            selectinload(VerdictRow.arms),
        ],
    )
    names, datasets = _places(session, [claim_id]).get(claim_id, ((), ()))
    arms = select(Arm).where(Arm.experiment.in_(names)).order_by(Arm.experiment, Arm.position)
    changes = select(ClaimChange).where(ClaimChange.claim == claim_id).order_by(ClaimChange.position)
    return ClaimRecord(
        claim=claim,
        verdict=verdict,
        experiments=names,
        datasets=datasets,
        sizes=_sizes(session, [verdict]).get(claim_id, ()),
        runs=tuple(verdict.runs),
        arms=tuple(verdict.arms),
        pairs=pair_gains(claim, verdict, session.scalars(arms)) if claim.baseline_arm else (),
        deviations=tuple(deviations_of(session, claim_id)),
        changes=tuple(session.scalars(changes)),
        family=session.get(Family, claim.family) if claim.family else None,
        same_error=_same_error(session, claim, verdict),
    )


def error_of(claim: Claim, verdict: VerdictRow) -> str | None:
    """The error behind the verdict, where a finding shows one."""
    return claim.finding.get("error") if claim.finding and verdict.basis == "finding" else None


def rule_after(claim: Claim, verdict: VerdictRow) -> str | None:
    """As "Judged by a rule written after 14 pairs had been seen"; None where none of the claim's results had been."""
    seen = verdict.seen_before_rule
    if seen is None:
        return None
    what = "pair" if claim.baseline_arm and "*" in (claim.arm or "") else "result"
    return f"Judged by a rule written after {seen} {what}{'s' if seen != 1 else ''} had been seen"


def _same_error(session: Session, claim: Claim, verdict: VerdictRow) -> tuple[str, ...]:
    error = error_of(claim, verdict)
    if error is None:
        return ()
    of_paper = session.execute(_CLAIMS.where(Claim.paper == claim.paper, Claim.id != claim.id)).all()
    return tuple(row.Claim.id for row in of_paper if error_of(row.Claim, row.VerdictRow) == error)


def arm_verdicts(session: Session, experiments: Sequence[str]) -> dict[tuple[str, str], tuple[ArmVerdict, ...]]:
    """`{(experiment, arm): verdicts}` of the claims that name one arm, in the claims' order."""
    query = (
        select(ClaimExperiment.experiment, Claim, VerdictRow.status, VerdictRow.explanation)
        .join(Claim, Claim.id == ClaimExperiment.claim)
        .join(VerdictRow, VerdictRow.claim == Claim.id)
        .where(ClaimExperiment.experiment.in_(experiments), Claim.arm.is_not(None))
        .order_by(Claim.position)
    )
    found: dict[tuple[str, str], list[ArmVerdict]] = {}
    for row in session.execute(query):
        claim = row.Claim
        verdict = ArmVerdict(
            claim=claim.id, kind=claim.kind, metric=claim.metric, status=row.status, explanation=row.explanation
        )
        found.setdefault((row.experiment, claim.arm), []).append(verdict)
    return {place: tuple(verdicts) for place, verdicts in found.items()}


def deviations_of(session: Session, claim_id: str) -> Sequence[Deviation]:
    query = (
        select(Deviation)
        .join(ClaimDeviation, ClaimDeviation.deviation == Deviation.id)
        .where(ClaimDeviation.claim == claim_id)
        .order_by(Deviation.position)
    )
    return session.scalars(query).all()


def list_families(session: Session, *, paper: str | None = None) -> Sequence[Family]:
    """The sentences of the tables, in the order of the rules."""
    query = select(Family).order_by(Family.position)
    return session.scalars(query if paper is None else query.where(Family.paper == paper)).all()


def tally(session: Session, wanted: ClaimFilter | None = None) -> list[Tally]:
    """Counts by verdict for each paper that has claims, in the order of the params file; other papers follow."""
    rows = session.execute(_cut(_CLAIMS, wanted or ClaimFilter())).all()
    judged = [(row.Claim, row.VerdictRow) for row in rows]
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
        outlook=foresee_waiting([verdict.power for _, verdict in grounds["trained"] if _waits(verdict)]),
        settings=sum(claim.kind == "setup" for claim, _ in once),
        untestable=sum(claim.kind != "setup" and not verdict.is_decidable for claim, verdict in once),
        by_verdict=dict(sorted(Counter(verdict.status for _, verdict in rows).items())),
        by_kind={kind: dict(sorted(counts.items())) for kind, counts in kinds.items()},
        by_basis={basis: dict(sorted(counts.items())) for basis, counts in bases.items()},
        errors={error: number for error, number in places.items() if number > 1},
    )


def ground_of(claim: Claim, verdict: VerdictRow) -> Ground:
    """The kind of evidence that decides a claim: trained models, a computation, or facts about the data."""
    if verdict.basis == "params" or (claim.kind == "count" and claim.experiment):
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


def _waits(verdict: VerdictRow) -> bool:
    return verdict.is_decidable and verdict.status in NOT_YET


def _count_once(rows: Sequence[tuple[Claim, VerdictRow]]) -> list[tuple[Claim, VerdictRow]]:
    """The rows without the further places of an error."""
    first: dict[tuple[str, str], tuple[Claim, VerdictRow]] = {}
    for row in rows:
        error = error_of(*row)
        first.setdefault(("error", error) if error else ("claim", row[0].id), row)
    return list(first.values())
