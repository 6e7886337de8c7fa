"""What leaves the building of a comparison.  Units as in `service.schemas`."""

from __future__ import annotations

from pydantic import Field

from service.schemas import Out


class MetricInfoOut(Out):
    name: str
    title: str
    unit: str
    better: str


class PopulationOut(Out):
    """Wilson's 95 % interval over test images; decides nothing."""

    low: float
    high: float
    n_test: int


class EstimateOut(Out):
    """Mean over replicates with its errors, of real data; an epoch that was chosen is in the interval."""

    mean: float
    std: float | None = Field(description="over replicates; null of a metric that is one number of all folds")
    stderr: float | None = Field(
        description="of the mean; of min_error and window_error the paper's own, at the chosen epoch"
    )
    low: float | None = Field(description="95 % t-interval over replicates")
    high: float | None
    interval_missing: str | None = Field(description="why there is no interval")
    n_replicates: int
    n_diverged: int
    n_test: int | None
    epoch: int | None = Field(description="the one chosen, of min_error and window_error")
    population: PopulationOut | None


class PaperValueOut(Out):
    value: float
    unit: str | None
    claim: str
    place: str
    stderr: float | None = Field(description="where it is printed, as `n` is")
    n: int | None = Field(description="replicates")
    precision: float | None
    note: str | None


class DifferenceOut(Out):
    """Ours − paper."""

    value: float
    low: float | None
    high: float | None


class GainOut(Out):
    """How much better the arm is than `against`, better positive, where the paper prints that itself."""

    against: str
    paper: PaperValueOut
    ours: float | None = Field(description="null where either arm has no number of ours")
    low: float | None = Field(description="95 % interval; folds are paired")
    high: float | None
    n: int


class CostOut(Out):
    train_seconds: float | None
    parameters: int | None
    flops_per_image: float | None
    peak_memory_bytes: int | None
    latency_seconds_per_sample: float | None
    latency_batch_size: int | None
    latency_warmup: int | None
    latency_repeats: int | None
    latency_device: str | None
    latency_threads: int | None
    latency_method: str | None = Field(description="how it was timed, in words")
    latency_ratio: float | None = Field(
        description="to latency_baseline, if both were published at one revision and timed alike"
    )
    paper_latency_ratio: float | None = Field(description="the paper's, to the same baseline")
    latency_baseline: str | None


class RatioOut(Out):
    """A cost over the baseline arm's: on our machine, and on the paper's."""

    baseline: str
    ours: float | None
    paper: float | None


class ArmVerdictOut(Out):
    """The verdict on a claim about an arm."""

    claim: str = Field(examples=["ninformer.table2.c100.vit"])
    kind: str
    metric: str = Field(description="the one that the paper prints")
    status: str = Field(examples=["reproduced"])
    explanation: str


class ArmComparisonOut(Out):
    arm: str
    title: str
    role: str
    ours: EstimateOut | None = Field(description="null where nothing on real data has the metric: see `reason`")
    reason: str | None = Field(
        description="why there is no number of ours",
        examples=["placeholder data: its number says nothing about the claim"],
    )
    paper: PaperValueOut | None
    difference: DifferenceOut | None = Field(description="null without ours, and for costs")
    gain: GainOut | None = Field(description="null where the paper prints no difference of this arm in this metric")
    ratio: RatioOut | None = Field(description="for a cost: what is compared instead of a difference")
    rank_ours: int | None
    rank_paper: int | None
    cost: CostOut
    checkpoints: list[str]
    run_keys: list[str]
    sources: list[str]
    changed_code: list[str] = Field(description="modules that have changed since these results were measured")
    verdicts: list[ArmVerdictOut] = Field(description="of the paper's claims about this arm")


class OrderOut(Out):
    ours: list[str]
    paper: list[str]
    agrees: bool | None = Field(description="null for costs, and where an arm is missing")


class ExperimentComparisonOut(Out):
    experiment: str
    title: str
    paper: str
    dataset: str
    metric: MetricInfoOut
    printed: list[str] = Field(
        description="metrics of the paper's claims about these arms; unless another is asked for, the first is shown",
        examples=[["min_error", "window_error"]],
    )
    profile: str | None
    cut: str | None
    provenance: str | None
    conditions: str | None = Field(description="digest of protocol and data, equal for all arms shown")
    label: str
    reason: str | None = Field(description="why no arm has a number of ours; null where one has")
    profiles: list[str] = Field(description="profiles with results, the best first")
    arms: list[ArmComparisonOut]
    order: OrderOut


class ComparisonOut(Out):
    comparisons: list[ExperimentComparisonOut]
