"""Claims with their verdicts: lists, and a single claim with everything behind it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from statistics import fmean
from typing import Annotated, Any, Literal

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.orm import Session, joinedload, selectinload

from stages.results.database import UnknownClaim
from stages.results.estimates import ArmVerdict, Measured, mark_of
from stages.results.tables import (
    ArmRow,
    Claim,
    ClaimChange,
    ClaimDeviation,
    ClaimExperiment,
    DeviationRow,
    ExperimentRow,
    Family,
    Metric,
    Paper,
    VerdictArm,
    VerdictRow,
    VerdictRun,
)
from stages.verdicts import WORD_OF, Observation, Sample, Status, Word
from stages.verdicts.difference import measure_gain
from stages.verdicts.intervals import half_width
from stages.verdicts.kinds import KINDS

TAIL = 0.025
"""Error on each side of a 95 % interval."""


@dataclass(frozen=True, kw_only=True)
class PairGain(Measured):
    """The gain of one pair, positive if the proposed arm is better; its 95 % interval ignores the other pairs.

    `n`: replicates of the arm that has fewer, or folds that both have.
    """

    experiment: str
    arm: str
    against: str
    low: float
    high: float

    @property
    def ours(self) -> Measured:
        return self


def pair_gains(claim: Claim, verdict: VerdictRow, arms: Iterable[ArmRow]) -> tuple[PairGain, ...]:
    """Return the pairs of a claim that averages over pairs, if both arms have two finished replicates.

    Other claims have no pairs.  Replicates that wait for the next interim analysis are left out here, too.  `arms` are
    those of the runs' experiments, in order.
    """
    if not claim.facts.over_pairs:
        return ()  # a count of orders has the runs of all of them
    runs = [run for run in verdict.runs if verdict.confidence is None or run.replicate < verdict.n]
    sides: dict[str, dict[tuple[str, str], dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        if run.value is not None:
            sides[run.side][run.result.experiment, run.arm][run.replicate] = run.value
    proposed, baseline = sides["proposed"], sides["baseline"]
    if len(proposed) < 2 or not baseline:
        return ()
    better: Literal["higher", "lower"] = "higher" if claim.better == "higher" else "lower"
    is_folded = bool(runs[0].result.spec["protocol"]["split"].get("folds"))
    found = []
    for arm in arms:
        ours, theirs = proposed.get((arm.experiment, arm.name)), baseline.get((arm.experiment, arm.against or ""))
        gain = gain_between(ours or {}, theirs or {}, better, is_folded=is_folded)
        if gain is not None and gain.low is not None:
            found.append(PairGain(experiment=arm.experiment, arm=arm.name, against=str(arm.against), **vars(gain)))
    return tuple(found)


Values = Mapping[int, float]
"""Values by replicate or fold."""


def gain_between(
    ours: Values, theirs: Values, better: Literal["higher", "lower"], *, is_folded: bool
) -> Measured | None:
    """Return proposed − baseline, better positive, with its 95 % interval; one replicate or fold has none.

    Return None unless each arm has a replicate, and both share a fold if replicates are folds.
    """
    shared = set(ours) & set(theirs)
    n = len(shared) if is_folded else min(len(ours), len(theirs))
    if n == 0:
        return None
    if n == 1:
        if is_folded:
            ours, theirs = ({fold: side[fold] for fold in shared} for side in (ours, theirs))
        lone = fmean(ours.values()) - fmean(theirs.values())
        return Measured(value=lone if better == "higher" else -lone, low=None, high=None, n=n)
    gain = measure_gain(_sample(ours), _sample(theirs), better, "fold" if is_folded else "none")
    half = float(half_width(*gain.at(gain.n), TAIL))
    return Measured(value=gain.mean, low=gain.mean - half, high=gain.mean + half, n=gain.n)


def _sample(values: Values) -> Sample:
    return Sample(tuple(Observation(index=index, value=value) for index, value in values.items()))


FOR_THE_PAPER = (Status.REPRODUCED, Status.SUPPORTED, Status.HOLDS, Status.HOLDS_UNDER_READING)
AGAINST_THE_PAPER = (Status.NOT_REPRODUCED, Status.REVERSED, Status.FAILS, Status.CONTRADICTED)
NOT_YET = (Status.NOT_TESTED,)
Standing = Literal["decided", "open", "waiting", "untestable", "setting"]


@dataclass(frozen=True, kw_only=True)
class ClaimFilter:
    """Filters of a list of claims; None filters nothing."""

    paper: str | None = None
    dataset: str | None = None
    experiment: str | None = None
    kind: str | None = None
    verdict: Status | None = None
    word: Word | None = None
    standing: Standing | None = None
    family: str | None = None


@dataclass(frozen=True, kw_only=True)
class JudgedClaim:
    """A claim, its verdict, and where it is tested.

    `choices` are our choices that its title names.  `sizes`: if networks of equal size were paired, the numbers of
    parameters of the proposed ones, in rising order.
    """

    claim: Claim
    verdict: VerdictRow
    experiments: tuple[str, ...]
    datasets: tuple[str, ...]
    choices: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()

    @property
    def standing(self) -> Standing:
        """Progress of the claim.  A setting of a training can neither hold nor fail."""
        status = Status(self.verdict.status)
        if self.claim.facts.by == "params":
            return "setting"
        if not self.verdict.is_decidable:
            return "untestable"
        if status in NOT_YET:
            return "waiting"
        return "decided" if status in (*FOR_THE_PAPER, *AGAINST_THE_PAPER) else "open"


@dataclass(frozen=True, kw_only=True)
class ClaimRecord(JudgedClaim):
    """One claim with everything behind its verdict; `family` is the sentence of its table.

    `pairs`: for a gain over a grid, the gain of each pair.  `arms`: for a metric that chooses an epoch, each arm's.
    `same_error`: other claims that are wrong because of the same error.
    """

    runs: tuple[VerdictRun, ...]
    arms: tuple[VerdictArm, ...]
    pairs: tuple[PairGain, ...]
    deviations: tuple[DeviationRow, ...]
    changes: tuple[ClaimChange, ...]
    family: Family | None
    same_error: tuple[str, ...]


CLAIMS = select(Claim, VerdictRow).join(VerdictRow, VerdictRow.claim == Claim.id).order_by(Claim.position)


def list_judged(
    session: Session, wanted: ClaimFilter, *, limit: int | None = None, offset: int = 0
) -> list[JudgedClaim]:
    """List the claims that match the filter, in the order of `data/claims.csv`."""
    return _judged(session, narrowed(CLAIMS, wanted).limit(limit).offset(offset))


def _judged(session: Session, query: Select[Claim, VerdictRow]) -> list[JudgedClaim]:
    rows = session.execute(query).all()
    within = query.with_only_columns(Claim.id)
    # results determine which networks are pairs
    paired = [claim.id for claim, verdict in rows if (scope := verdict.scope) and scope["planned_pairs"] is None]
    places = _by_claim(
        session,
        select(ClaimExperiment.claim, ExperimentRow.name, ExperimentRow.dataset)
        .join(ExperimentRow, ExperimentRow.name == ClaimExperiment.experiment)
        .where(ClaimExperiment.claim.in_(within))
        .order_by(ExperimentRow.position),
    )
    choices = _by_claim(
        session,
        select(ClaimDeviation.claim, DeviationRow.in_titles)
        .join(DeviationRow, DeviationRow.id == ClaimDeviation.deviation)
        .where(ClaimDeviation.claim.in_(within), DeviationRow.in_titles.is_not(None))
        .order_by(DeviationRow.position),
    )
    sizes = _by_claim(
        session,
        select(VerdictRun.claim, Metric.value)
        .join(Metric, Metric.result_id == VerdictRun.result_id)
        .where(VerdictRun.claim.in_(paired), VerdictRun.side == "proposed", Metric.metric == "parameters")
        .distinct()
        .order_by(VerdictRun.claim, Metric.value),
    )
    return [
        JudgedClaim(
            claim=claim,
            verdict=verdict,
            experiments=tuple(name for name, _ in places[claim.id]),
            datasets=tuple(dict.fromkeys(dataset for _, dataset in places[claim.id])),
            choices=tuple(choice for (choice,) in choices[claim.id]),
            sizes=tuple(round(size) for (size,) in sizes[claim.id]),
        )
        for claim, verdict in rows
    ]


def _by_claim(session: Session, query: Select[*tuple[Any, ...]]) -> dict[str, list[list[Any]]]:
    """Group the other columns of a query by the claim in its first one."""
    found: dict[str, list[list[Any]]] = defaultdict(list)
    for claim, *values in session.execute(query):
        found[claim].append(values)
    return found


def narrowed(query: Any, wanted: ClaimFilter) -> Any:
    """Restrict a query of claims to those that match the filter."""
    for name in ("paper", "kind", "family"):
        if (value := getattr(wanted, name)) is not None:
            query = query.where(getattr(Claim, name) == value)
    if wanted.verdict is not None:
        query = query.where(VerdictRow.status == str(wanted.verdict))
    if wanted.word is not None:
        query = query.where(VerdictRow.status.in_([str(key) for key, word in WORD_OF.items() if word is wanted.word]))
    if wanted.standing is not None:
        is_setting = Claim.kind.in_([name for name, facts in KINDS.items() if facts.by == "params"])
        can_be_decided = ~is_setting & VerdictRow.is_decidable
        waiting, decided = (
            VerdictRow.status.in_([str(status) for status in group])
            for group in (NOT_YET, (*FOR_THE_PAPER, *AGAINST_THE_PAPER))
        )
        conditions: dict[Standing, ColumnElement[bool]] = {  # as `JudgedClaim.standing`
            "setting": is_setting,
            "untestable": ~is_setting & ~VerdictRow.is_decidable,
            "waiting": can_be_decided & waiting,
            "decided": can_be_decided & decided,
            "open": can_be_decided & ~waiting & ~decided,
        }
        query = query.where(conditions[wanted.standing])
    if wanted.dataset is not None or wanted.experiment is not None:
        inside = select(ClaimExperiment.claim).join(ExperimentRow, ExperimentRow.name == ClaimExperiment.experiment)
        if wanted.dataset is not None:
            inside = inside.where(ExperimentRow.dataset == wanted.dataset)
        if wanted.experiment is not None:
            inside = inside.where(ExperimentRow.name == wanted.experiment)
        query = query.where(Claim.id.in_(inside))
    return query


def find_judged(session: Session, claim_id: str) -> ClaimRecord:
    """Return one claim with everything behind its verdict.

    Raises:
        UnknownClaim: there is no claim with this id.
    """
    options = selectinload(VerdictRow.runs).options(joinedload(VerdictRun.result)), selectinload(VerdictRow.arms)
    found = _judged(session, CLAIMS.where(Claim.id == claim_id).options(*options))
    if not found:
        name = claim_id[:120]
        nearest = get_close_matches(name, session.scalars(select(Claim.id)), 1)
        raise UnknownClaim(name, nearest=next(iter(nearest), None))
    claim, verdict = found[0].claim, found[0].verdict
    arms = select(ArmRow).where(ArmRow.experiment.in_(found[0].experiments))
    changes = select(ClaimChange).where(ClaimChange.claim == claim_id).order_by(ClaimChange.position)
    touching = select(ClaimDeviation.deviation).where(ClaimDeviation.claim == claim_id)
    deviations = select(DeviationRow).where(DeviationRow.id.in_(touching)).order_by(DeviationRow.position)
    same_error: tuple[str, ...] = ()
    if error := error_of(claim, verdict):
        of_paper = session.execute(CLAIMS.where(Claim.paper == claim.paper, Claim.id != claim.id)).all()
        same_error = tuple(row.Claim.id for row in of_paper if error_of(row.Claim, row.VerdictRow) == error)
    in_order = session.scalars(arms.order_by(ArmRow.experiment, ArmRow.position))
    return ClaimRecord(
        **vars(found[0]),
        runs=tuple(verdict.runs),
        arms=tuple(verdict.arms),
        pairs=pair_gains(claim, verdict, in_order) if claim.baseline_arm else (),
        deviations=tuple(session.scalars(deviations)),
        changes=tuple(session.scalars(changes)),
        family=session.get(Family, claim.family) if claim.family else None,
        same_error=same_error,
    )


def error_of(claim: Claim, verdict: VerdictRow) -> str | None:
    """Return the error behind the verdict if a finding shows one."""
    return claim.finding.get("error") if claim.finding and verdict.basis == "finding" else None


def rule_after(claim: Claim, verdict: VerdictRow) -> str | None:
    """Say that the rule is late, as "Judged by a rule written after 14 pairs had been seen"; None if it isn't."""
    seen = verdict.seen_before_rule
    if seen is None:
        return None
    return f"Judged by a rule written after {count_seen(seen, claim)} had been seen"


def count_seen(seen: int, claim: Claim) -> str:
    """Format a count as "14 pairs" for a claim that compares models, else "1 result"."""
    what = "pair" if claim.baseline_arm else "result"
    return f"{seen} {what}{'s' if seen != 1 else ''}"


def arm_verdicts(session: Session, experiments: Sequence[str]) -> dict[tuple[str, str], tuple[ArmVerdict, ...]]:
    """Return `{(experiment, arm): verdicts}` of the claims that name an arm, in the order of the claims."""
    of_verdict = VerdictRow.status, VerdictRow.registration, VerdictRow.is_decidable, VerdictRow.explanation
    query = (
        select(ClaimExperiment.experiment, Claim.arm, Claim.id, Claim.kind, Claim.metric, *of_verdict)
        .join(Claim, Claim.id == ClaimExperiment.claim)
        .join(VerdictRow, VerdictRow.claim == Claim.id)
        .where(ClaimExperiment.experiment.in_(experiments), Claim.arm.is_not(None))
        .order_by(Claim.position)
    )
    found: dict[tuple[str, str], tuple[ArmVerdict, ...]] = {}
    for row in session.execute(query):
        own = {name: getattr(row, name) for name in ("kind", "metric", "status", "is_decidable", "explanation")}
        verdict = ArmVerdict(claim=row.id, mark=mark_of(row.registration), **own)
        found[row.experiment, row.arm] = (*found.get((row.experiment, row.arm), ()), verdict)
    return found


def list_families(session: Session, *, paper: str | None = None) -> Sequence[Family]:
    """Return the sentences of the tables, in the order of the rules."""
    query = select(Family).order_by(Family.position)
    return session.scalars(query if paper is None else query.where(Family.paper == paper)).all()


NO_BETTER_THAN_CHANCE = 0.05
"""Below this chance of confirming a right number a plan shows nothing, because it confirms a wrong one as often."""
FALSE_DISCOVERIES = 0.05
"""The share of a paper's decided signs that may be wrong."""
Ground = Literal["trained", "computed", "data"]


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Claims that can be decided, now or later, by the words of `FOR_THE_PAPER`, `AGAINST_THE_PAPER` and `NOT_YET`."""

    decidable: int
    in_favour: int
    under_reading: Annotated[int, "those in favour that depend on the reading"]
    against: int
    open: Annotated[int, "evidence doesn't decide yet"]
    waiting: Annotated[int, "not run yet"]

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
    """Expected outcome of planned trainings for claims that training decides."""

    waiting: Annotated[int, "claims waiting for training"]
    hopeless: Annotated[int, "confirmed with a chance below 5 % even if the paper is right"]
    order_only: Annotated[int, "claims whose order can be confirmed, but not the size of the difference"]
    unlikely: Annotated[int, "of the others, confirmed with a chance below 50 % if the paper is right"]
    unknown: Annotated[int, "chance unknown, because no size is printed or no spread is known"]
    assumed: Annotated[int, "claims whose spread is neither measured nor printed, but assumed"]


@dataclass(frozen=True, kw_only=True)
class Discoveries:
    """Claims of a paper that training decided by a p-value, and their false discovery rate."""

    tested: Annotated[int, "claims judged by training with a p-value on a sign, including open ones"]
    decided: Annotated[int, "those that are decided"]
    survive: Annotated[int, "decided claims with a false discovery rate of at most 5 %"]
    without: Annotated[int, "decided by training without a p-value on a sign, counted apart"]


@dataclass(frozen=True, kw_only=True)
class Tally(Counts):
    """Verdict counts of a paper's claims: a badge.  Training, computation and facts about data are counted separately.

    An error that a finding shows in several places counts once, in the counts and in `by_basis`; `errors` counts its
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
    """Count the verdicts of each paper that has claims, in the order of the params file; other papers follow."""
    rows = session.execute(narrowed(CLAIMS, wanted or ClaimFilter())).all()
    return tally_rows(session, [(row.Claim, row.VerdictRow) for row in rows])


def tally_rows(session: Session, judged: Sequence[tuple[Claim, VerdictRow]]) -> list[Tally]:
    """Count the verdicts of these claims by paper, as `tally` does."""
    order = list(session.scalars(select(Paper.name).order_by(Paper.position)))
    papers = [*order, *(paper for paper in dict.fromkeys(claim.paper for claim, _ in judged) if paper not in order)]
    return [_tally(paper, [row for row in judged if row[0].paper == paper]) for paper in papers]


def _tally(paper: str, rows: Sequence[tuple[Claim, VerdictRow]]) -> Tally:
    places = Counter(error for row in rows if (error := error_of(*row)))
    first: dict[tuple[str, str], tuple[Claim, VerdictRow]] = {}  # without the further places of an error
    for row in rows:
        error = error_of(*row)
        first.setdefault(("error", error) if error else ("claim", row[0].id), row)
    once = list(first.values())
    kinds: dict[str, Counter[str]] = {}
    bases: dict[str, Counter[str]] = {}
    for claim, verdict in rows:
        kinds.setdefault(claim.kind, Counter())[verdict.status] += 1
    for _, verdict in once:
        bases.setdefault(verdict.basis, Counter())[verdict.status] += 1
    grounds: dict[Ground, list[tuple[Claim, VerdictRow]]] = {"trained": [], "computed": [], "data": []}
    for row in once:
        grounds[ground_of(*row)].append(row)
    by_results = [verdict for _, verdict in once if verdict.basis == "results"]
    decided = [verdict for verdict in by_results if verdict.status in (*FOR_THE_PAPER, *AGAINST_THE_PAPER)]
    rates = [verdict.false_discovery_rate for verdict in decided if verdict.false_discovery_rate is not None]
    powers = [verdict.power for _, verdict in grounds["trained"] if verdict.is_decidable and verdict.status in NOT_YET]
    prospects = [_prospect(power) for power in powers]
    return Tally(
        paper=paper,
        claims=len(rows),
        **vars(_count(once)),
        trained=_count(grounds["trained"]),
        computed=_count(grounds["computed"]),
        data=_count(grounds["data"]),
        outlook=Outlook(
            waiting=len(powers),
            **{kind: prospects.count(kind) for kind in ("hopeless", "order_only", "unlikely", "unknown")},
            assumed=sum(
                power is not None and prospect != "unknown" and power["source"] == "assumed"
                for power, prospect in zip(powers, prospects, strict=True)
            ),
        ),
        discoveries=Discoveries(
            tested=sum(verdict.false_discovery_rate is not None for verdict in by_results),
            decided=len(rates),
            survive=sum(rate <= FALSE_DISCOVERIES for rate in rates),
            without=len(decided) - len(rates),
        ),
        settings=sum(claim.facts.by == "params" for claim, _ in once),
        untestable=sum(claim.facts.by != "params" and not verdict.is_decidable for claim, verdict in once),
        by_verdict=dict(sorted(Counter(verdict.status for _, verdict in rows).items())),
        by_kind={kind: dict(sorted(counts.items())) for kind, counts in kinds.items()},
        by_basis={basis: dict(sorted(counts.items())) for basis, counts in bases.items()},
        errors={error: number for error, number in places.items() if number > 1},
    )


def ground_of(claim: Claim, verdict: VerdictRow) -> Ground:
    """Return the kind of evidence that decides a claim: trained models, a computation, or facts about the data."""
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
    return "unlikely" if chance < 0.5 else "likely"
