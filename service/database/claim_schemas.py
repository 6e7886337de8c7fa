"""Types of answers about claims: verdicts, the runs behind them, deviations, counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from service.database.curves import ObservedPoint
from service.database.schemas import Out, RegistrationOut
from stages.results import ClaimRecord, Family, JudgedClaim, PairGain, Standing, Status, VerdictRun


class MeasuredOut(Out):
    """A number of ours, as in `/compare`."""

    value: float
    low: float | None = Field(description="95 % interval over replicates in `/compare`, the verdict's own in claims")
    high: float | None
    n: int | None = Field(description="replicates; null of what no training gives")


def _measured(value: Any) -> Any:
    """A bare number of a finding or a reading, which has no interval and no replicates."""
    return (
        value
        if value is None or isinstance(value, MeasuredOut)
        else MeasuredOut(value=value, low=None, high=None, n=None)
    )


def _as_ours(row: PairGain | Family, value: float | None, n: int | None) -> dict[str, Any]:
    """A row whose gain stands beside its interval, with both as `ours`."""
    ours = None if value is None else MeasuredOut(value=value, low=row.low, high=row.high, n=n)
    return {**vars(row), "ours": ours}


class ReadingOut(Out):
    """One way to read the claim, and whether it holds so."""

    name: str
    text: str = Field(description="what is taken to be meant, and why the words allow it")
    holds: bool
    ours: Annotated[MeasuredOut | None, BeforeValidator(_measured)] = Field(
        description="our number under this reading, in the claim's unit"
    )
    brief: str | None = Field(description="what comes out under it, in a few words, where it is no number of the claim")


class FindingOut(Out):
    """A result that was computed without training."""

    status: str = Field(examples=["contradicted"], description="holds, holds under a reading, fails or contradicted")
    computed: dict[str, float] = Field(examples=[{"relative_gain_percent": 4.992922}])
    explanation: str
    readings: list[ReadingOut] = Field(description="ways to read the claim; fails and contradicted are false under all")
    error: str | None = Field(description="findings with one error are one mistake at several places, counted once")


class StretchOut(Out):
    """The status by every margin from `start` on, up to the next stretch."""

    start: float = Field(examples=[0.0134], description="in the unit of the margin")
    status: Status


class SizeOut(Out):
    """The size of a difference, judged apart from its sign: our gain − the paper's."""

    status: Status
    explanation: str
    estimate: float | None
    low: float | None
    high: float | None
    confidence: float | None
    margin: float | None
    n: int
    replicates_expected: int | None
    by_margin: list[StretchOut] = Field(description="what it would be by any other margin; empty: the same")
    posterior: float | None = Field(description="chance, with a flat prior, that the true difference is in the margin")


class PowerOut(Out):
    """The power of a claim's plan, known before anything runs: how probable each verdict is at its end."""

    planned: int = Field(description="replicates")
    spread: float | None = Field(
        description="standard deviation of one replicate, of one difference for a gain; null: nobody says it"
    )
    spread_source: str | None = Field(
        examples=["printed"], description="measured, printed or assumed", validation_alias="source"
    )
    reproduced: float | None = Field(description="where the paper is right; of a gain's size")
    not_reproduced: float | None = Field(
        description="where the truth is two margins from the paper's number; of comparable arms: reversed, where one "
        "is worse by twice what the paper calls comparable"
    )
    supported: float | None = Field(description="where the gain is as printed, or comparable arms are alike")
    supported_at_half: float | None = Field(description="where the gain is half the printed one")
    needed: int | None = Field(
        description="replicates, the planned or more, that give 80 % of supported for a gain, else of reproduced"
    )
    needed_for_size: int | None = Field(description="that give 80 % of reproduced for a gain's size; null: none do")
    can_reproduce: bool = Field(description="false: no number of replicates can say reproduced")
    margin: float | None = Field(description="of the printed number, or of a gain's size")
    paper_error: float | None = Field(description="standard error of the paper's number, as printed or as of its runs")
    most: float | None = Field(description="the chance of reproduced with any number of replicates")
    explanation: str


class ScopeOut(Out):
    """The part of a grid that a verdict is of."""

    pairs: int = Field(description="of two models each, that ran")
    planned_pairs: int | None = Field(description="of the whole grid; null where results tell which models are pairs")
    factor: str | None = Field(examples=["depth"], description="what was varied, where whole slices of the grid ran")
    ran: list[Any] = Field(examples=[[5, 8]], description="its levels that ran")
    missing: list[Any] = Field(examples=[[6, 11, 16]], description="its levels that did not")
    whole_low: float | None = Field(
        description="interval of the whole grid's gain at `whole_confidence`, as if the levels that ran were drawn "
        "from it"
    )
    whole_high: float | None
    whole_confidence: float | None
    models: int | None = Field(description="of the grid that ran, where results tell which models are pairs")
    planned_models: int | None


class ClaimCostOut(Out):
    """Of all runs behind a verdict, each counted once."""

    device_seconds: float | None
    flops: float | None = Field(description="of the trainings, forward and backward")
    peak_memory_bytes: int | None
    energy_joules: float | None = Field(description="of the devices, where they report it")
    usd: float | None = Field(description="device-hours at the rates of params.yaml")


class VariantOut(Out):
    """The same claim in another metric."""

    metric: str
    status: Status
    size_status: Status | None = Field(
        description="how large a difference is, apart from its sign", validation_alias="size"
    )
    ours: MeasuredOut | None = Field(description="in the claim's unit")

    @model_validator(mode="before")
    @classmethod
    def _with_its_interval(cls, row: dict[str, Any]) -> dict[str, Any]:
        """As recorded, a variant's interval stands beside its number."""
        if not isinstance(row["ours"], float | int):
            return row
        return row | {"ours": {"value": row["ours"], "low": row["low"], "high": row["high"], "n": None}}


class ChangeOut(Out):
    """A change of a claim's row, or of the rules or the code that judge it."""

    date: str = Field(examples=["2026-11-22"])
    part: str = Field(
        description="what was changed: claim (its row), rules (their numbers), rule (the way it is judged) or code",
        validation_alias="subject",
    )
    changed: dict[str, tuple[str | float | None, str | float | None]] = Field(description="old and new, by column")
    after_evidence: bool = Field(description="results of its experiments had been published")
    alters: bool = Field(description="it touched a rule, a metric, a statement or a verdict")
    seen: int | None = Field(
        description="of a rule: how many of the claim's own results (pairs, where it is of pairs) had been seen before"
    )
    why: str


class VerdictOut(Out):
    """The judgement of a claim by its evidence."""

    status: Status = Field(examples=["reproduced"])
    explanation: str = Field(description="the verdict as a sentence, with its numbers, or why there is none")
    basis: str = Field(examples=["results"], description="results, finding, params or none")
    standing: Standing = Field(
        description="decided, open (evidence, and no decision), waiting, untestable here, or a training's setting"
    )
    unit: str | None = Field(
        description="of `estimate`, its interval, `margin` and `by_margin`; null: a number without a unit"
    )
    is_decidable: bool = Field(description="something here can decide the claim, now or later; a badge counts these")
    ours: MeasuredOut | None = Field(description="our number, in the claim's unit")
    estimate: float | None = Field(description="ours − paper, or proposed − baseline with better positive")
    low: float | None = Field(description="interval of the estimate at `confidence`")
    high: float | None
    confidence: float | None = Field(examples=[0.96])
    margin: float | None = Field(description="within ± this of the paper's number is the same number")
    n: int = Field(description="replicates judged, the diverged among them")
    n_diverged: int
    replicates_expected: int | None = Field(description="at which the present estimate would decide")
    p_value: float | None = Field(description="two-sided, not adjusted for other claims")
    size: SizeOut | None
    prediction_low: float | None = Field(description="by our replicates, the paper's own rerun would lie from here")
    prediction_high: float | None = Field(description="to here, in the claim's unit")
    prediction_confidence: float | None = Field(examples=[0.95])
    is_predicted: bool | None = Field(description="whether the paper's number lies there")
    power: PowerOut | None
    scope: ScopeOut | None = Field(description="null of a whole grid, and where there is none")
    seen_before_rule: int | None = Field(description="results (or pairs) seen before its rule; null: none")
    registration: RegistrationOut | None = Field(description="null where no trained model was judged")
    false_discovery_rate: float | None = Field(
        description="q-value: of the paper's claims that training judged on a sign with a p-value no larger, the "
        "share that is expected to be wrong (Benjamini, Hochberg 1995); null without a p-value on a sign"
    )
    by_margin: list[StretchOut] = Field(description="what the verdict would be by any other margin; empty: the same")
    posterior: float | None = Field(
        description="chance, with a flat prior, that the truth is in the margin or, of an order, that the gain has the "
        "claimed sign; it decides nothing"
    )
    rules: str = Field(description="sha256 of the numbers of the rules in params.yaml")
    digest: str = Field(description="sha256 of rules, the claim's row with its metric, judging code, and finding")
    variants: list[VariantOut] = Field(description="what other defensible metrics would say")
    cost: ClaimCostOut


class ClaimOut(Out):
    """A statement of a paper, with its verdict."""

    id: str = Field(examples=["ninformer.table2.c100.vit"])
    title: str = Field(description="what is claimed, as on the pages")
    paper: str
    place: str
    experiment: str | None = Field(description="where it is tested; * stands for any text")
    experiments: list[str] = Field(description="the same, written out")
    datasets: list[str]
    arm: str | None
    metric: str
    kind: str
    value: float | None
    unit: str | None
    precision: float | None
    stderr: float | None
    n: int | None
    baseline_arm: str | None
    better: str | None
    note: str | None
    high: float | None = Field(description="a range ends here")
    trials: int | None = Field(description="a count is value of these")
    factor: str | None = Field(description="a uniform gain is alike over its levels")
    family: str | None = Field(description="the claims that are judged together with this one")
    statement: str | None = Field(description="what is stated where there is no number")
    reason: str | None = Field(description="why nothing here can test it")
    reading: str | None = Field(description="our reading of an experiment that the text leaves open: no refutation")
    finding: FindingOut | None
    verdict: VerdictOut


class VerdictRunOut(Out):
    """A run behind a verdict."""

    run_key: str
    experiment: str
    arm: str
    side: str = Field(description="proposed or baseline; a single value's arm is proposed")
    replicate: int
    value: float | None = Field(description="null: the run diverged, or the claim counts how runs ended")
    profile: str
    provenance: str
    source: str = Field(description="evidence (published) or local")
    changed_code: list[str]


class VerdictArmOut(Out):
    """An arm of a claim whose metric chooses one epoch for all folds together (DAC, Appendix B)."""

    experiment: str
    arm: str
    role: str
    n: int = Field(description="folds")
    value: float = Field(description="in the claim's metric, at the chosen epoch")
    stderr: float = Field(description="as the paper computes it")
    low: float = Field(description="95 % interval of the mean, the choice of the epoch in it")
    high: float
    epoch: int = Field(examples=[187], description="chosen, from 1; the middle one of a window")
    epochs: int = Field(examples=[256])
    flops_per_image: float | None = Field(description="of one forward pass", validation_alias="flops")
    parameters: float | None


class PairOut(Out):
    """One pair of a grid: the gain of the proposed arm, better positive, with its own 95 % interval."""

    experiment: str
    arm: str
    against: str = Field(description="the arm that it is compared with")
    ours: MeasuredOut = Field(description="in the claim's unit; `n` is of the arm that has fewer replicates")

    @model_validator(mode="before")
    @classmethod
    def _in_one_shape(cls, pair: Any) -> Any:
        return _as_ours(pair, pair.gain, pair.n) if isinstance(pair, PairGain) else pair


class DeviationOut(Out):
    """A recorded difference between what the paper says and what we ran."""

    id: str = Field(examples=["ninformer.dropout"])
    paper: str
    subject: str
    says: str = Field(description="what the paper says")
    authors_code: str | None = Field(description="what its authors' public code does", validation_alias="code")
    done: str = Field(description="what we do", validation_alias="ours")
    why: str | None
    departs: bool = Field(description="ours is not the paper's or, where it is silent, not its authors' code's")


class ObservedPointOut(Out):
    """A quantity inside an arm's networks, in one block: over heads and replicates."""

    experiment: str
    arm: str
    quantity: str = Field(examples=["attention_sigma"])
    moment: str = Field(description="start (the initial weights) or trained")
    block: int = Field(description="from 1")
    replicates: int
    mean: float
    low: float = Field(description="of all heads and replicates the lowest")
    high: float


class FamilyOut(Out):
    """The sentence of a table: the mean gain of its orders, which says nothing of others."""

    name: str = Field(examples=["ninformer.table2"])
    paper: str
    text: str
    status: str = Field(description="supported: the interval of the gain is on the printed side of 0")
    ours: MeasuredOut | None = Field(
        description="mean gain of these orders, better positive, its interval at `confidence`; "
        "replicates, and not orders, are what it is uncertain by"
    )
    confidence: float | None
    tau: float | None = Field(description="standard deviation between orders beyond their own chance")
    p_heterogeneity: float | None = Field(description="of orders that don't differ")
    i2: float | None = Field(description="share of tau² in what orders differ by")
    ahead: int = Field(description="of those tested, orders with a gain above 0")
    tested: int
    orders: int

    @model_validator(mode="before")
    @classmethod
    def _in_one_shape(cls, family: Any) -> Any:
        return _as_ours(family, family.gain, None) if isinstance(family, Family) else family


class ClaimDetailOut(ClaimOut):
    """One claim with everything behind its verdict."""

    runs: list[VerdictRunOut]
    arms: list[VerdictArmOut] = Field(description="of a metric that chooses an epoch: each arm's number and epoch")
    pairs: list[PairOut] = Field(description="of a gain over a grid: each proposed arm against its own baseline")
    observations: list[ObservedPointOut] = Field(
        description="from inside the networks that it is about, real data only"
    )
    deviations: list[DeviationOut]
    changes: list[ChangeOut] = Field(description="how the claim and its judging came to be, oldest first")
    table: FamilyOut | None = Field(description="the sentence of the claim's family")
    same_error: list[str] = Field(description="other claims that are wrong by the same error, which counts once")


def describe_claim(judged: JudgedClaim, title: str, unit: str) -> ClaimOut:
    """`title` and `unit` are those of the pages."""
    return ClaimOut.model_validate(_claim(judged, title, unit))


def describe_record(record: ClaimRecord, observed: Sequence[ObservedPoint], title: str, unit: str) -> ClaimDetailOut:
    own = {
        "runs": [_run(run) for run in record.runs],
        "arms": [VerdictArmOut.model_validate(arm) for arm in record.arms],
        "pairs": [PairOut.model_validate(pair) for pair in record.pairs],
        "observations": [ObservedPointOut.model_validate(point) for point in observed],
        "deviations": [DeviationOut.model_validate(deviation) for deviation in record.deviations],
        "changes": [ChangeOut.model_validate(change) for change in record.changes],
        "table": FamilyOut.model_validate(record.family) if record.family else None,
        "same_error": record.same_error,
    }
    return ClaimDetailOut.model_validate(_claim(record, title, unit) | own)


def _claim(judged: JudgedClaim, title: str, unit: str) -> dict[str, object]:
    verdict = judged.verdict
    cost = ClaimCostOut.model_validate(verdict)
    derived = {"cost", "ours", "standing", "unit"}
    own = {name: getattr(verdict, name) for name in VerdictOut.model_fields.keys() - derived}
    names = ClaimOut.model_fields.keys() - {"title", "experiments", "datasets", "verdict"}
    return {name: getattr(judged.claim, name) for name in names} | {
        "title": title,
        "experiments": judged.experiments,
        "datasets": judged.datasets,
        "verdict": own | {"cost": cost, "ours": _ours(judged), "standing": judged.standing, "unit": unit or None},
    }


def _ours(judged: JudgedClaim) -> MeasuredOut | None:
    """Our number; with the verdict's interval where that is of this number, or of its distance to the printed one."""
    verdict = judged.verdict
    if verdict.ours is None:
        return None
    is_own = judged.claim.kind == "value" or verdict.estimate == verdict.ours
    ends = [
        None if end is None or verdict.estimate is None or not is_own else verdict.ours + (end - verdict.estimate)
        for end in (verdict.low, verdict.high)
    ]
    return MeasuredOut(value=verdict.ours, low=ends[0], high=ends[1], n=verdict.n or None)


def _run(run: VerdictRun) -> VerdictRunOut:
    own = ("arm", "side", "replicate", "value")
    behind = ("run_key", "experiment", "profile", "provenance", "source", "changed_code")
    return VerdictRunOut.model_validate(
        {name: getattr(run, name) for name in own} | {name: getattr(run.result, name) for name in behind}
    )


class CountsOut(Out):
    """Verdicts of claims that can be decided here, now or later."""

    decidable: int
    in_favour: int = Field(description="reproduced, supported, holds, if only under a reading")
    plainly: int = Field(description="of those in favour: without a reading; the pages say of these that they hold")
    under_reading: int = Field(description="of those in favour: true only if the words are read in one way")
    opposed: int = Field(validation_alias="against", description="not reproduced, reversed, fails, contradicted")
    open: int = Field(description="there is evidence that doesn't decide yet")
    waiting: int = Field(description="not run yet")


class OutlookOut(Out):
    """What the planned trainings can show of the waiting claims, by the power of their plans."""

    waiting: int = Field(description="claims that wait for training")
    hopeless: int = Field(description="even if the paper is right, confirmed with probability below 5 %")
    order_only: int = Field(description="the order can be confirmed, the size of the difference can't")
    unlikely: int = Field(description="of the others, confirmed with probability below 50 % if the paper is right")
    unknown: int = Field(description="no size is printed or no spread is known, so nothing can be reckoned")
    assumed: int = Field(description="of all but the unknown: the spread of a run is neither measured nor printed")


class DiscoveriesOut(Out):
    """Decided claims of a paper that survive a false discovery rate of 5 % (Benjamini, Hochberg 1995)."""

    tested: int = Field(description="claims judged by training with a p-value on a sign, open ones as well")
    decided: int = Field(description="of these")
    survive: int = Field(description="of the decided, with a false discovery rate of at most 5 %")
    without: int = Field(description="decided by training without a p-value on a sign, counted apart")


class TallyOut(CountsOut):
    """Verdicts of a paper's claims; the badge is in_favour of decidable.  An error at several places counts once."""

    paper: str
    claims: int
    trained: CountsOut = Field(description="those that trained models decide")
    computed: CountsOut = Field(description="those that are computed without training")
    data: CountsOut = Field(description="sizes and ranges of data sets")
    outlook: OutlookOut = Field(description="of the claims that wait for training")
    discoveries: DiscoveriesOut
    settings: int = Field(description="settings of trainings, which can't hold or fail")
    untestable: int = Field(description="other claims that nothing planned here can decide")
    by_verdict: dict[str, int]
    by_kind: dict[str, dict[str, int]]
    errors: dict[str, int] = Field(examples=[{"inference times in nanoseconds": 12}], description="places of each")


class VerdictsOut(Out):
    papers: list[TallyOut]
    tables: list[FamilyOut]
