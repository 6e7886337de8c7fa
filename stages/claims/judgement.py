"""The judgement of one claim: the verdict, and everything behind it that a reader may ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stages.claims.lines import ClaimLine
from stages.verdicts import Power, Status, Verdict

# results: trained models.  finding: computed without training.  params: read off the params files.  none: nothing yet.
Basis = Literal["results", "finding", "params", "none"]
Side = Literal["proposed", "baseline"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One run behind a verdict.  `result` numbers the result; `value` is None where the run diverged.

    The arm of a claim about a single value is on the side `proposed`.
    """

    result: int
    side: Side
    arm: str
    replicate: int
    value: float | None


@dataclass(frozen=True, kw_only=True)
class ArmSummary:
    """An arm's number in a metric that chooses an epoch for all its folds, such as DAC's in Appendix B.

    `stderr` is as the paper computes it; `low` to `high` is the 95 % interval of the mean, the choice of the epoch in
    it.  `epoch` counts from 1, of `epochs`; `n` counts the folds.  FLOPs are those of one forward pass of one image.
    """

    experiment: str
    arm: str
    role: str
    n: int
    value: float
    stderr: float
    low: float
    high: float
    epoch: int
    epochs: int
    flops: float | None
    parameters: float | None


@dataclass(frozen=True, kw_only=True)
class ClaimCost:
    """The joint cost of the runs behind a verdict.  A number is None where one of the runs doesn't report its own."""

    device_seconds: float
    flops: float | None
    peak_memory_bytes: int
    energy_joules: float | None
    usd: float | None


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The claim's verdict in another `metric`; `low` to `high` is the interval of its estimate."""

    metric: str
    status: Status
    size: Status | None
    ours: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """`ours` is our number in the claim's unit; `is_decidable`: something here can decide the claim, now or later.

    A figure or a setting is never decidable: nothing is at stake.  `variants`: the verdict in other metrics.  `power`:
    what the plan can show about the claim.
    """

    claim: ClaimLine
    verdict: Verdict
    basis: Basis
    is_decidable: bool
    ours: float | None = None
    entries: tuple[Entry, ...] = ()
    arms: tuple[ArmSummary, ...] = ()
    cost: ClaimCost | None = None
    variants: tuple[Variant, ...] = ()
    power: Power | None = None

    @property
    def is_by_training(self) -> bool:
        """True if trained models were judged, decided or not; False of what is only shown."""
        return self.basis == "results" and self.verdict.status not in (Status.NOT_TESTED, Status.SHOWN)
