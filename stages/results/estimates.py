"""Data classes of a comparison: estimates, differences, gains, costs.

The service returns them unchanged, so field descriptions appear in its API reference.  Fractions are in [0, 1].
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

from pydantic import Field

from stages.verdicts.metrics import MetricInfo

SHOWN_METRICS: Mapping[str, tuple[str, ...]] = {
    "images": ("accuracy", "best_epoch_accuracy", "loss", "calibration_error", "inference_time"),
    "table": ("selected_log_mse", "log_mse", "selected_mse", "mse", "inference_time"),
    "text": ("loss", "perplexity", "inference_time"),
    "multi-label": ("mean_average_precision", "macro_f1", "exact_match", "loss", "inference_time"),
    "regression": ("rmse", "mae", "mse", "inference_time"),
    "segmentation": ("mean_iou", "pixel_accuracy", "loss", "inference_time"),
    "other": ("loss", "inference_time"),
}
"""Metrics that readers compare models by, for each kind of data or task, besides those that the paper prints.

`other` is the kind of all tasks of other packages.
"""

FIRST_METRICS: Mapping[str, tuple[str, ...]] = {
    "images": ("accuracy",),
    "table": ("selected_log_mse", "log_mse"),
    "text": ("loss",),
    "multi-label": ("mean_average_precision",),
    "regression": ("rmse",),
    "segmentation": ("mean_iou",),
    "other": ("loss",),
}
"""Metrics shown if a paper prints none of an experiment's: the first of these that the compared results hold."""

COST_COLUMNS = {
    "train_seconds": "train_seconds",
    "train_tokens_per_second": "train_tokens_per_second",
    "peak_memory_bytes": "peak_memory_bytes",
    "inference_time": "latency_seconds_per_sample",
}


@dataclass(frozen=True, kw_only=True)
class Population:
    """Wilson's 95 % interval of the accuracy on new images of the same kind.  It decides nothing.

    For the last epoch only, because the best one was chosen on the test images.
    """

    low: float
    high: float
    n_test: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One of our numbers, with its interval, if it has one, and its replicates."""

    value: float
    low: Annotated[float | None, Field(description="95 % interval over replicates, if there are at least two")]
    high: float | None
    n: Annotated[int | None, Field(description="replicates; null without training")]


@dataclass(frozen=True, kw_only=True)
class Estimate(Measured):
    """Mean over replicates, its standard error and its 95 % t-interval; `interval_missing` says why there is none.

    For a metric of all folds together, `epoch` is the chosen one, `stderr` is the paper's own there, the interval
    includes the choice of the epoch (jackknife over folds), and there is no `std`.
    """

    n: int
    std: Annotated[
        float | None, Field(description="standard deviation over replicates; null for metrics of all folds together")
    ]
    stderr: Annotated[
        float | None,
        Field(
            description="standard error of the mean; for min_error and window_error, the paper's at the chosen epoch"
        ),
    ]
    interval_missing: Annotated[str | None, Field(description="why there is no interval")]
    n_diverged: int
    n_test: int | None
    epoch: Annotated[int | None, Field(description="chosen epoch, for min_error and window_error")]
    population: Population | None


@dataclass(frozen=True, kw_only=True)
class Printed:
    """A number as printed by a paper; `precision` is its rounding, in `unit`, and `n` its replicates."""

    value: float
    unit: str | None
    claim: str
    place: str
    stderr: Annotated[float | None, Field(description="null if not printed, like `n`")]
    n: Annotated[int | None, Field(description="replicates")]
    precision: float | None
    note: str | None


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Ours − printed, with the interval of ours."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Printed gain of an arm over `against`, if the paper prints one; positive is better.

    Folds are paired in the interval of `ours`; its `n` is that of the arm with fewer replicates, or the number of
    folds that both have.  `ours` is None unless both arms have full-length results.
    """

    against: str
    printed: Printed
    ours: Annotated[
        Measured | None, Field(description="null unless both arms have full-length results; folds are paired")
    ]


@dataclass(frozen=True, kw_only=True)
class CostSummary:
    """Means over the replicates; `latency_method` says how ours was timed.

    `latency_ratio` compares with `latency_baseline`, if both were timed alike and published at one revision, because
    times depend on code outside run keys.  `printed_latency_ratio` is the ratio of the paper's two times.
    """

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
    latency_method: Annotated[str | None, Field(description="how it was timed")]
    latency_ratio: Annotated[
        float | None,
        Field(description="ratio to latency_baseline, if both were published at one revision and timed alike"),
    ]
    printed_latency_ratio: Annotated[float | None, Field(description="the paper's ratio to the same baseline")]
    latency_baseline: str | None


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A cost as a multiple of the baseline arm's: on our machine, and on the paper's."""

    baseline: str
    of_ours: float | None
    of_printed: float | None


def mark_of(registration: Mapping[str, Any] | None) -> str:
    """Return the mark of a verdict's registration as pages and the API show it; empty without one."""
    mark = registration["mark"] if registration else ""
    return "registration unknown" if mark == "unknown" else mark


@dataclass(frozen=True, kw_only=True)
class ArmVerdict:
    """The verdict on a claim about an arm, in the paper's metric."""

    claim: Annotated[str, Field(examples=["ninformer.table2.c100.vit"])]
    kind: str
    metric: Annotated[str, Field(description="metric that the paper prints")]
    status: Annotated[str, Field(examples=["reproduced"])]
    mark: Annotated[str, Field(examples=["exploratory"], description="as in `registration` of the claim's verdict")]
    is_decidable: Annotated[bool, Field(description="true if the claim can be decided here, now or later")]
    explanation: str


@dataclass(frozen=True, kw_only=True)
class ArmComparison:
    """Our result for one arm, next to the paper's.

    Costs have a `ratio` instead of a difference.  `ours` is None without results on real data; `reason` says why.
    `verdicts` are those of the paper's claims about this arm.
    """

    arm: str
    title: str
    role: str
    ours: Annotated[Estimate | None, Field(description="null if no result on real data has the metric; see `reason`")]
    reason: Annotated[
        str | None,
        Field(
            description="why `ours` is null",
            examples=["placeholder data: its number says nothing about the claim"],
        ),
    ]
    printed: Printed | None
    difference: Annotated[
        Difference | None,
        Field(description="null without `ours`, for costs, and for shortened runs; see `no_difference`"),
    ]
    no_difference: Annotated[
        str | None,
        Field(
            description="why `difference` is null",
            examples=["a shortened run (3 of 100 epochs): how far it is from a full one is not known"],
        ),
    ]
    gain: Annotated[Gain | None, Field(description="null if the paper prints no gain of this arm in this metric")]
    ratio: Annotated[Ratio | None, Field(description="for a cost: compared instead of a difference")]
    rank_ours: int | None
    rank_printed: int | None
    cost: CostSummary
    checkpoints: tuple[str, ...]
    run_keys: tuple[str, ...]
    sources: tuple[str, ...]
    changed_code: Annotated[tuple[str, ...], Field(description="modules changed since these results were measured")]
    verdicts: Annotated[tuple[ArmVerdict, ...], Field(description="verdicts on the paper's claims about this arm")] = ()


@dataclass(frozen=True, kw_only=True)
class Order:
    """Arms from best to worst; `agrees` is None for costs, and unless both sides order all arms."""

    of_ours: tuple[str, ...]
    of_printed: tuple[str, ...]
    agrees: Annotated[bool | None, Field(description="null for costs, and if an arm is missing")]


@dataclass(frozen=True, kw_only=True)
class ExperimentComparison:
    """Results of one experiment; `profile`, `cut` and `provenance` say how faithful they are (None without results)."""

    experiment: str
    title: str
    paper: str
    dataset: str
    metric: MetricInfo
    printed_metrics: Annotated[
        tuple[str, ...],
        Field(
            description="metrics of the paper's claims about these arms; the first is the default",
            examples=[["min_error", "window_error"]],
        ),
    ]
    profile: str | None
    cut: str | None
    provenance: str | None
    conditions: Annotated[str | None, Field(description="digest of protocol and data, the same for all arms")]
    label: str
    trained_models: Annotated[int, Field(description="baseline and proposed models with results")]
    planned_models: Annotated[int, Field(description="baseline and proposed models of the experiment")]
    reason: Annotated[str | None, Field(description="why no arm has a result; null if one has")]
    profiles: Annotated[tuple[str, ...], Field(description="profiles with results, strongest first")]
    arms: tuple[ArmComparison, ...]
    order: Order

    @property
    def is_real(self) -> bool:
        """True if results on real data are shown."""
        return self.provenance not in (None, "embedded")

    @property
    def replicates(self) -> int:
        """Replicates of the arm that has the most."""
        return max((arm.ours.n for arm in self.arms if arm.ours is not None), default=0)

    @property
    def stopwatches(self) -> dict[str, list[ArmComparison]]:
        """Arms by the method and machine of their inference times."""
        found: dict[str, list[ArmComparison]] = {}
        for arm in self.arms:
            if arm.cost.latency_method is not None:
                found.setdefault(arm.cost.latency_method, []).append(arm)
        return found

    @property
    def machines(self) -> list[str]:
        """The machines on which times were taken, with the number of threads; seconds compare only on one machine."""
        timed = [arm.cost for arm in self.arms if arm.cost.latency_device]
        return list(dict.fromkeys(f"{cost.latency_device}, {cost.latency_threads} threads" for cost in timed))


def describe_stopwatch(
    batch_size: int | None, warmup: int | None, repeats: int | None, device: str | None, threads: int | None
) -> str:
    """Describe in one phrase how an inference time was measured."""
    counted = f"median of {repeats} batches of {batch_size} after {warmup} uncounted ones"
    place = f"{device}, {threads} threads" if threads else f"{device}"
    return f"{counted}, the device synchronised before and after each, on {place}"


OF_EXPERIMENT = ("experiment", "paper", "dataset", "metric.name", "metric.unit")
AFTER = ("profile", "provenance", "label")
FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")


def no_formula(text: str) -> str:
    """Return the text, with an apostrophe in front if a spreadsheet would otherwise compute it as a formula."""
    return f"'{text}" if text.startswith(FORMULA_SIGNS) else str(text)


def _columns(kind: type, prefix: str = "") -> list[str]:
    """Return the leaves of a part, in the order of its fields, except `population`, which only the JSON has."""
    found = []
    for name, hint in get_type_hints(kind).items():
        part = next((one for one in (hint, *get_args(hint)) if is_dataclass(one)), None)
        if part is None or get_origin(hint) is tuple:
            found.append(f"{prefix}{name}")
        elif part is not Population:
            found += _columns(cast("type", part), f"{prefix}{name}.")
    return found


COLUMNS = (*OF_EXPERIMENT, *_columns(ArmComparison), *AFTER)


def as_csv(comparisons: Sequence[ExperimentComparison]) -> str:
    """Write one row per arm; None is empty, names in a list are separated by spaces, and verdicts are JSON."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\r\n")
    writer.writerow(COLUMNS)
    for comparison in comparisons:
        for arm in comparison.arms:
            cells = [_leaf(comparison, name) for name in OF_EXPERIMENT]
            cells += [_leaf(arm, name) for name in COLUMNS[len(OF_EXPERIMENT) : -len(AFTER)]]
            writer.writerow([_cell(value) for value in (*cells, *(_leaf(comparison, name) for name in AFTER))])
    return buffer.getvalue()


def _leaf(whole: object, path: str) -> object:
    """Return the value at a dotted path; None if a part of the path is None."""
    for name in path.split("."):
        whole = None if whole is None else getattr(whole, name)
    return whole


def _cell(value: object) -> object:
    if isinstance(value, tuple):
        plain = [item for item in value if isinstance(item, str)]
        if len(plain) < len(value):
            return json.dumps([asdict(item) for item in value], ensure_ascii=False)
        value = " ".join(plain)
    return no_formula(value) if isinstance(value, str) else value


def describe_fidelity(
    provenance: str | None, profile: str | None, cut: str | None, test_images: int = 0, excluded_test_images: int = 0
) -> str:
    """Say in one sentence how faithful a result is; `excluded_test_images` are not among its `test_images`."""
    if provenance is None:
        return "not run yet"
    if provenance == "embedded":
        return "placeholder data: shows that the pipeline runs, says nothing about the claim"
    data = "official data" if provenance == "full" else "part of the official data"
    if excluded_test_images:
        lacking = f"{excluded_test_images:,} of {test_images + excluded_test_images:,} test images"
        data += f" without {lacking}, which our source lacks"
    if cut:
        return f"{data}, in a {kind_of_run(cut)} ({cut}): a first look, not a verdict"
    return f"full-length training on {data} (profile {profile})"


def cut_of_each(cut: str) -> str:
    """Describe how each run departs from the printed protocol, without the number of runs, which may be outdated."""
    return _SHARE.sub("", cut)


def cut_of_all(cut: str, replicates: int, planned: int) -> str:
    """Describe how `replicates` runs depart from the printed protocol, of which as many as `planned` are needed."""
    each = cut_of_each(cut)
    if each == cut or replicates >= planned:
        return each
    return f"{each}{', ' if each else ''}{replicates} of {planned} replicates"


PLACEHOLDER = "placeholder data: its number says nothing about the claim"
_SHARE = re.compile(r"(, |^)\d+ of \d+ replicates$")


def kind_of_run(cut: str) -> str:
    """Classify a run that departs from the printed protocol by `cut`, as worded by `describe_cut`."""
    return "run in another precision" if re.fullmatch(r"\w+ instead of b?float(16|32)", cut) else "shortened run"


def why_no_difference(provenance: str | None, cut: str) -> str | None:
    """Explain why a result can't be compared with another or with a printed number; None if it can."""
    if provenance == "embedded":
        return PLACEHOLDER
    each = cut_of_each(cut)
    if each and kind_of_run(each) == "shortened run":
        return f"a shortened run ({each}): how far it is from a full one is not known"
    return None
