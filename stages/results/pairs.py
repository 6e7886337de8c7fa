"""The pairs behind a gain over a grid: each proposed arm and the one it is compared with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, NamedTuple

from stages.results.claim_tables import VerdictRow, VerdictRun
from stages.results.tables import Arm, Claim
from stages.verdicts import Observation, Sample
from stages.verdicts.difference import measure_gain
from stages.verdicts.intervals import half_width

_TAIL = 0.025  # on each side of a 95 % interval


@dataclass(frozen=True, kw_only=True)
class PairGain:
    """The gain of one pair, positive if the proposed arm is better; its 95 % interval ignores the other pairs.

    `n`: replicates of the arm that has fewer, or folds that both have.
    """

    experiment: str
    arm: str
    against: str
    gain: float
    low: float
    high: float
    n: int


def pair_gains(claim: Claim, verdict: VerdictRow, arms: Iterable[Arm]) -> tuple[PairGain, ...]:
    """The pairs of a claim that averages over pairs, each with two finished replicates per arm; none for other claims.

    Replicates that wait for the next look are left out here too.  `arms`: those of the runs' experiments, in order.
    """
    if claim.kind not in ("order", "difference", "uniform"):
        return ()  # a count of orders has the runs of all of them
    runs = [run for run in verdict.runs if verdict.confidence is None or run.replicate < verdict.n]
    proposed, baseline = (_values(run for run in runs if run.side == side) for side in ("proposed", "baseline"))
    if len(proposed) < 2 or not baseline:
        return ()
    better: Literal["higher", "lower"] = "higher" if claim.better == "higher" else "lower"
    is_folded = bool(runs[0].result.spec["protocol"]["split"].get("folds"))
    found = []
    for arm in arms:
        ours, theirs = proposed.get((arm.experiment, arm.name)), baseline.get((arm.experiment, arm.against or ""))
        measured = gain_between(ours or {}, theirs or {}, better, is_folded=is_folded)
        if measured is None or measured.low is None or measured.high is None:
            continue
        pair = PairGain(
            experiment=arm.experiment,
            arm=arm.name,
            against=str(arm.against),
            gain=measured.gain,
            low=measured.low,
            high=measured.high,
            n=measured.n,
        )
        found.append(pair)
    return tuple(found)


Values = Mapping[int, float]
"""By replicate."""


class GainBetween(NamedTuple):
    """Proposed − baseline, better positive, with its 95 % interval; with one replicate or fold there is none."""

    gain: float
    low: float | None
    high: float | None
    n: int


def gain_between(
    ours: Values, theirs: Values, better: Literal["higher", "lower"], *, is_folded: bool
) -> GainBetween | None:
    """The gain; None without a replicate of each arm, or without a fold that both have."""
    shared = set(ours) & set(theirs)
    n = len(shared) if is_folded else min(len(ours), len(theirs))
    if n == 0:
        return None
    if n == 1:
        if is_folded:
            ours, theirs = ({fold: side[fold] for fold in shared} for side in (ours, theirs))
        lone = fmean(ours.values()) - fmean(theirs.values())
        return GainBetween(lone if better == "higher" else -lone, None, None, n)
    gain = measure_gain(_sample(ours), _sample(theirs), better, "fold" if is_folded else "none")
    half = float(half_width(*gain.at(gain.n), _TAIL))
    return GainBetween(gain.mean, gain.mean - half, gain.mean + half, gain.n)


def _values(runs: Iterable[VerdictRun]) -> dict[tuple[str, str], dict[int, float]]:
    """`{(experiment, arm): {replicate: value}}`, without diverged replicates."""
    found: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for run in runs:
        if run.value is not None:
            found[run.result.experiment, run.arm][run.replicate] = run.value
    return found


def _sample(values: Values) -> Sample:
    return Sample(tuple(Observation(index=index, value=value) for index, value in values.items()))
