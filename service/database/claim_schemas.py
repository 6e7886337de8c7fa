"""Response types for claims: verdicts, their runs, deviations, counts, and comparisons of two models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import AliasPath, Field, model_validator

from service.database.comparing import ObservedPointOut
from service.database.schemas import Out, RegistrationOut
from stages.results import (
    NOT_OF_SIZE,
    WORD_OF,
    Claim,
    ClaimChange,
    ClaimRecord,
    Counts,
    DeviationRow,
    Discoveries,
    Family,
    ImagePair,
    JudgedClaim,
    Outlook,
    Power,
    Scope,
    Standing,
    Status,
    Verdict,
    VerdictArm,
    VerdictRow,
    Versus,
    Word,
)


class MeasuredOut(Out):
    """Our number with its interval."""

    value: float
    low: float | None = Field(description="the verdict's interval in claims, elsewhere the 95 % interval")
    high: float | None
    n: int | None = Field(description="replicates; null without training")

    @model_validator(mode="before")
    @classmethod
    def _without_interval(cls, value: Any) -> Any:
        """Accept a bare number, as findings and readings have it."""
        return {"value": value, "low": None, "high": None, "n": None} if isinstance(value, float | int) else value


class ReadingOut(Out):
    """One reading of the claim, and whether it holds."""

    name: str
    text: str = Field(description="assumed meaning, and why the words allow it")
    holds: bool
    ours: MeasuredOut | None = Field(description="our number under this reading, in the claim's unit")
    brief: str | None = Field(description="result in a few words, if its number isn't the claim's")


class FindingOut(Out):
    """A result that was computed without training."""

    status: str = Field(examples=["contradicted"], description="holds, holds under a reading, fails or contradicted")
    computed: dict[str, float] = Field(examples=[{"relative_gain_percent": 4.992922}])
    explanation: str
    readings: list[ReadingOut] = Field(description="fails and contradicted mean false under all of them")
    error: str | None = Field(description="one mistake that several findings share, counted once")


class StretchOut(Out):
    """The status for margins from `start` to the next stretch."""

    start: float = Field(examples=[0.0134], description="start of the stretch, in the margin's unit")
    status: Status


class SizeOut(Out, of=Verdict, without=NOT_OF_SIZE):
    """Verdict on the size of a difference, apart from its sign: our gain − the paper's."""

    by_margin: list[StretchOut] = Field(description="verdict under other margins; empty if always the same")
    posterior: float | None = Field(description="chance that the true difference is within the margin (flat prior)")


class PowerOut(Out, of=Power):
    """The power of a claim's plan: the chance of each verdict, known before training."""

    spread_source: str | None = Field(
        examples=["printed"], description="measured, printed or assumed", validation_alias="source"
    )


class ScopeOut(Out, of=Scope):
    """The part of a grid that a verdict covers."""

    factor: str | None = Field(examples=["depth"], description="varied factor, if whole slices of the grid ran")
    ran: list[Any] = Field(examples=[[5, 8]], description="levels that ran")
    missing: list[Any] = Field(examples=[[6, 11, 16]], description="levels that didn't run")


class ClaimCostOut(Out):
    """Cost of all runs behind a verdict, each counted once."""

    device_seconds: float | None
    flops: float | None = Field(description="FLOPs of the trainings, forward and backward")
    peak_memory_bytes: int | None
    energy_joules: float | None = Field(description="energy reported by the devices")
    usd: float | None = Field(description="device-hours at the rates of params.yaml")


class VariantOut(Out):
    """Verdict on the same claim in another metric."""

    metric: str
    status: Status
    size_status: Status | None = Field(description="verdict on the size of the difference", validation_alias="size")
    ours: MeasuredOut | None = Field(description="in the claim's unit")

    @model_validator(mode="before")
    @classmethod
    def _with_its_interval(cls, row: dict[str, Any]) -> dict[str, Any]:
        """Read a variant as recorded: its interval next to its number."""
        if not isinstance(row["ours"], float | int):
            return row
        return row | {"ours": {"value": row["ours"], "low": row["low"], "high": row["high"], "n": None}}


class ChangeOut(Out, of=ClaimChange, without=("claim", "position")):
    """A change to a claim's row, or to the rules or code that judge it."""

    date: str = Field(examples=["2026-11-22"])
    part: str = Field(description="claim (its row), rules (their numbers), rule or code", validation_alias="subject")
    changed: dict[str, tuple[str | float | None, str | float | None]] = Field(description="old and new value by column")


OF_COST = ("device_seconds", "flops", "peak_memory_bytes", "energy_joules", "usd")


class VerdictOut(Out, of=VerdictRow, without=("claim", "labs", "pooled", *OF_COST)):
    """The verdict on a claim."""

    status: Status = Field(examples=["reproduced"])
    word: Word = Field(description="the status in one of four words, as on the pages: holds, fails, open, not tested")
    basis: str = Field(examples=["results"], description="results, finding, params or none")
    standing: Standing = Field(description="decided, open (judged without a decision), waiting, untestable or setting")
    unit: str | None = Field(description="unit of `estimate`, its interval, `margin` and `by_margin`; null if none")
    ours: MeasuredOut | None = Field(description="our number, in the claim's unit")
    confidence: float | None = Field(examples=[0.96])
    size: SizeOut | None
    prediction_confidence: float | None = Field(examples=[0.95])
    power: PowerOut | None
    scope: ScopeOut | None = Field(description="null for a whole grid, and without a grid")
    registration: RegistrationOut | None = Field(description="null if no trained model was judged")
    by_margin: list[StretchOut] = Field(description="verdict under other margins; empty if always the same")
    variants: list[VariantOut] = Field(description="verdicts under other defensible metrics")
    cost: ClaimCostOut


class ClaimOut(Out, of=Claim, without=("position",)):
    """A statement of a paper, with its verdict."""

    id: str = Field(examples=["ninformer.table2.c100.vit"])
    title: str = Field(description="the claim as a sentence")
    experiment: str | None = Field(description="experiment, or a pattern with *")
    experiments: list[str] = Field(description="names of all matching experiments")
    datasets: list[str]
    finding: FindingOut | None
    verdict: VerdictOut


class VerdictRunOut(Out):
    """A run behind a verdict."""

    run_key: str
    experiment: str
    arm: str
    side: str = Field(description="proposed or baseline; proposed for a single value")
    replicate: int
    value: float | None = Field(description="null if the run diverged, or if the claim counts how runs ended")
    profile: str
    provenance: str
    source: str = Field(description="evidence (published) or local")
    changed_code: list[str]


class VerdictArmOut(Out, of=VerdictArm, without=("claim", "position")):
    """An arm of a claim whose metric chooses one epoch for all folds together (DAC, Appendix B)."""

    epoch: int = Field(examples=[187], description="chosen epoch, from 1; the middle one of a window")
    epochs: int = Field(examples=[256])
    flops_per_image: float | None = Field(description="FLOPs of one forward pass", validation_alias="flops")


class PairOut(Out):
    """One pair of a grid: the gain of the proposed arm (positive is better), with its 95 % interval."""

    experiment: str
    arm: str
    against: str = Field(description="baseline arm")
    ours: MeasuredOut = Field(description="in the claim's unit; `n` is that of the arm with fewer replicates")


class DeviationOut(Out, of=DeviationRow, without=("position", "explains", "tested_by", "in_titles")):
    """A recorded difference between what the paper says and what we ran."""

    id: str = Field(examples=["ninformer.dropout"])
    authors_code: str | None = Field(description="what its authors' public code does", validation_alias="code")
    done: str = Field(description="what we do", validation_alias="ours")


class FamilyOut(Out, of=Family, without=("position", "gain", "low", "high")):
    """Summary of a table: the mean gain of its orders."""

    name: str = Field(examples=["ninformer.table2"])
    status: str = Field(description="supported: the interval of the gain is on the printed side of 0")
    ours: MeasuredOut | None = Field(description="mean gain (positive is better), with its interval at `confidence`")


class LabOut(Out):
    """The verdict by one lab's results alone, or by the means of several labs."""

    lab: str | None = Field(None, examples=["uni-oslo"], description="empty for this project, null for several labs")
    status: Status
    holds: bool
    ours: float | None = Field(description="in the claim's unit")
    estimate: float | None = Field(description="as in `verdict`")
    low: float | None = Field(description="interval of the estimate at `confidence`; null before the first analysis")
    high: float | None
    confidence: float | None
    n: int = Field(description="replicates, or labs that completed the plan")
    explanation: str


class ClaimDetailOut(ClaimOut):
    """One claim with everything behind its verdict."""

    labs: list[LabOut] = Field(description="each lab's verdict, if another lab has results")
    pooled: LabOut | None = Field(
        description="verdict by the means of the labs, in place of replicates; its interval holds at any number of labs"
    )
    runs: list[VerdictRunOut]
    arms: list[VerdictArmOut] = Field(description="each arm's number and epoch, if the metric chooses an epoch")
    pairs: list[PairOut] = Field(description="for a gain over a grid: each proposed arm against its baseline")
    observations: list[ObservedPointOut] = Field(description="measured inside the networks, on real data only")
    deviations: list[DeviationOut]
    changes: list[ChangeOut] = Field(description="changes of the claim and its rules, oldest first")
    table: FamilyOut | None = Field(description="summary of the claim's family")
    same_error: list[str] = Field(description="other claims with the same error, which counts once")


def describe_claim(judged: JudgedClaim, title: str, unit: str) -> ClaimOut:
    """Describe a claim with the title and unit that its page shows."""
    return ClaimOut.model_validate(_claim(judged, title, unit))


def describe_record(record: ClaimRecord, observed: Sequence[ObservedPointOut], title: str, unit: str) -> ClaimDetailOut:
    own = {name: getattr(record, name) for name in ("arms", "pairs", "deviations", "changes", "same_error")}
    of_run = ("arm", "side", "replicate", "value")  # the others are those of its result
    own["runs"] = [
        {name: getattr(run if name in of_run else run.result, name) for name in VerdictRunOut.model_fields}
        for run in record.runs
    ]
    own |= {"observations": observed, "table": record.family}
    own |= {"labs": record.verdict.labs, "pooled": record.verdict.pooled}
    return ClaimDetailOut.model_validate(_claim(record, title, unit) | own)


def _claim(judged: JudgedClaim, title: str, unit: str) -> dict[str, object]:
    verdict = judged.verdict
    derived = {"cost", "ours", "standing", "unit"}
    own = {name: getattr(verdict, name) for name in VerdictOut.model_fields.keys() - derived}
    names = ClaimOut.model_fields.keys() - {"title", "experiments", "datasets", "verdict"}
    return {name: getattr(judged.claim, name) for name in names} | {
        "title": title,
        "experiments": judged.experiments,
        "datasets": judged.datasets,
        "verdict": own | {"cost": verdict, "ours": _ours(judged), "standing": judged.standing, "unit": unit or None},
    }


def _ours(judged: JudgedClaim) -> MeasuredOut | None:
    """Return our number, with the verdict's interval if that describes this number or its distance from the paper's."""
    verdict = judged.verdict
    if verdict.ours is None:
        return None
    is_own = judged.claim.facts.number == "model" or verdict.estimate == verdict.ours
    ends = [
        None if end is None or verdict.estimate is None or not is_own else verdict.ours + (end - verdict.estimate)
        for end in (verdict.low, verdict.high)
    ]
    return MeasuredOut(value=verdict.ours, low=ends[0], high=ends[1], n=verdict.n or None)


class CountsOut(Out, of=Counts):
    """Verdicts of claims that can be decided here, now or later."""

    in_favour: int = Field(description="reproduced, supported or holds, also under one reading only")
    plainly: int = Field(description="those in favour that don't depend on the reading")
    opposed: int = Field(validation_alias="against", description="not reproduced, reversed, fails, contradicted")


class OutlookOut(Out, of=Outlook):
    """Chances of the waiting claims, by the power of the planned trainings."""


class DiscoveriesOut(Out, of=Discoveries):
    """Decided claims of a paper that survive a false discovery rate of 5 % (Benjamini, Hochberg 1995)."""


class TallyOut(CountsOut):
    """Verdicts of a paper's claims; the badge is in_favour of decidable.  An error at several places counts once."""

    paper: str
    claims: int
    trained: CountsOut = Field(description="claims decided by training")
    computed: CountsOut = Field(description="claims decided by computing")
    data: CountsOut = Field(description="claims about sizes and ranges of data sets")
    outlook: OutlookOut = Field(description="outlook of the claims waiting for training")
    discoveries: DiscoveriesOut
    settings: int = Field(description="training settings, which can't hold or fail")
    untestable: int = Field(description="other claims that can't be decided here")
    by_verdict: dict[str, int]
    by_kind: dict[str, dict[str, int]]
    errors: dict[str, int] = Field(
        examples=[{"inference times in nanoseconds": 12}], description="number of places of each error"
    )


class VerdictsOut(Out):
    papers: list[TallyOut]
    tables: list[FamilyOut]


class VersusSideOut(Out):
    """One of the two models; `ours` may come from shortened runs."""

    experiment: str = Field(validation_alias=AliasPath("experiment", "name"))
    arm: str = Field(validation_alias=AliasPath("arm", "name"))
    title: str = Field(validation_alias=AliasPath("arm", "title"))
    ours: MeasuredOut | None = Field(description="mean in the metric; null without a result on real data")
    trained: int = Field(description="replicates trained as printed, on all official data")
    planned: int


class ImagePairOut(Out, of=ImagePair):
    """McNemar's exact test of two networks of one replicate on the same test images."""


class VersusOut(Out):
    """Answer to the question whether one model beats another."""

    dataset: str
    metric: str
    sentence: str = Field(description="the answer, with interval, power and cost")
    word: Word = Field(description="holds: a beats b; fails: b beats a; open; not tested")
    status: Status = Field(description='status of the order "a beats b", as for claims')
    explanation: str
    a: VersusSideOut
    b: VersusSideOut
    gain: MeasuredOut | None = Field(description="gain of a over b (positive is better), with the verdict's interval")
    confidence: float | None
    p_value: float | None = Field(description="two-sided, from Welch's or the paired t test")
    cut: str = Field(description="how the runs were shortened; empty for full-length runs")
    detectable: float | None = Field(description="difference that the plan detects with a chance of 80 %")
    spread_source: str | None = Field(description="source of the spread: measured, printed or assumed")
    missing: int = Field(description="number of missing trainings")
    hours: dict[str, float] | None = Field(description="their duration by device; null if unknown")
    images: list[ImagePairOut]
    claims: list[str] = Field(description="ids of the paper's claims about this pair")


def describe_versus(found: Versus, sentence: str) -> VersusOut:
    verdict = found.verdict
    gain = {"value": verdict.estimate, "low": verdict.low, "high": verdict.high, "n": verdict.n}
    of_plan = ("a", "b", "cut", "spread_source", "missing", "hours", "images", "claims")
    return VersusOut.model_validate(
        {name: getattr(found, name) for name in of_plan}
        | {name: getattr(verdict, name) for name in ("status", "explanation", "confidence", "p_value")}
        | {"dataset": found.dataset.name, "metric": found.metric.name, "sentence": sentence}
        | {"word": WORD_OF[verdict.status], "gain": None if verdict.estimate is None else gain}
        | {"detectable": found.least}
    )
