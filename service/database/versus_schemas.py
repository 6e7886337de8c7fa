"""Types of the answer to "does one model beat another?"."""

from __future__ import annotations

from pydantic import Field

from service.database.claim_schemas import MeasuredOut
from service.database.schemas import Out
from stages.results import WORD_OF, Status, Versus, Word


class VersusSideOut(Out):
    """One of the two models; `ours` may be of shortened runs."""

    experiment: str
    arm: str
    title: str
    ours: MeasuredOut | None = Field(description="mean in the metric; null without a result on real data")
    trained: int = Field(description="replicates trained as printed on all official data")
    planned: int


class ImagePairOut(Out):
    """Two networks of one replicate on the same test images, by McNemar's exact test of their right answers."""

    replicate: int
    images: int
    a_alone: int = Field(description="images that only a's network gets right")
    b_alone: int
    p_value: float = Field(description="two-sided; about these two networks, not about their kinds")


class VersusOut(Out):
    """The answer to "does a beat b?"."""

    dataset: str
    metric: str
    sentence: str = Field(description="the answer, with interval, power and cost")
    word: Word = Field(description="holds: a beats b; fails: b beats a; open; not tested")
    status: Status = Field(description="of an order that a beats b, as for claims")
    explanation: str
    a: VersusSideOut
    b: VersusSideOut
    gain: MeasuredOut | None = Field(description="of a over b, better positive, with the verdict's own interval")
    confidence: float | None
    p_value: float | None = Field(description="two-sided, of Welch's or the paired t test")
    cut: str = Field(description="how the runs were shortened; empty of full-length ones and of none")
    detectable: float | None = Field(description="difference that the plan detects with a chance of 80 %")
    spread_source: str | None = Field(description="of the spread behind it: measured, printed or assumed")
    missing: int = Field(description="trainings to go")
    hours: dict[str, float] | None = Field(description="that they take, by device; null: not computed here")
    images: list[ImagePairOut]
    claims: list[str] = Field(description="the paper's own on this pair")


def describe_versus(found: Versus, sentence: str) -> VersusOut:
    verdict = found.verdict
    a, b = (
        VersusSideOut(
            experiment=side.experiment.name,
            arm=side.arm.name,
            title=side.arm.title,
            ours=None if side.value is None else MeasuredOut(value=side.value, low=None, high=None, n=side.n),
            trained=side.trained,
            planned=side.planned,
        )
        for side in (found.a, found.b)
    )
    gain = verdict.estimate
    return VersusOut(
        dataset=found.dataset.name,
        metric=found.metric.name,
        sentence=sentence,
        word=WORD_OF[verdict.status],
        status=verdict.status,
        explanation=verdict.explanation,
        a=a,
        b=b,
        gain=None if gain is None else MeasuredOut(value=gain, low=verdict.low, high=verdict.high, n=verdict.n),
        confidence=verdict.confidence,
        p_value=verdict.p_value,
        cut=found.cut,
        detectable=found.least,
        spread_source=found.spread_source,
        missing=found.missing,
        hours=found.hours,
        images=[ImagePairOut.model_validate(pair) for pair in found.images],
        claims=list(found.claims),
    )
