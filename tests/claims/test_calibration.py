"""The share of early orders that hold at the end of training, recomputed from published curves and cross-validated."""

import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from stages.claims.kinds.base import LOG_SPREAD
from stages.runs.evidence import EvidenceLine, ResultLine, read_lines
from stages.verdicts.others import CALIBRATED_AT, CALIBRATED_PAIRS, DEMANDED, ELSEWHERE, GAPS, HELD

SPREAD = LOG_SPREAD * math.sqrt(2)
"""The plan's assumed SD of a difference of two logarithms, used as the unit of gaps."""


@cache
def networks() -> dict[str, list[ResultLine]]:
    """Return the published full runs of the SGEMM networks with 5 and 8 layers, by arm."""
    found: dict[str, list[ResultLine]] = defaultdict(list)
    for line in (row.result for row in read_lines(Path("data/evidence/dac-sgemm.jsonl"), EvidenceLine)):
        if line.profile == "paper" and line.spec["model"]["arguments"]["depth"] in (5, 8):
            found[line.arm].append(line)
    return found


def at(line: ResultLine, share: float) -> float:
    """Return the log test error at the best validation epoch within the first `share` of training."""
    curve = line.curves[: max(1, round(share * len(line.curves)))]
    return math.log(min(curve, key=lambda epoch: epoch.val_loss or math.inf).test_loss or math.nan)


def calibrate(
    early: Mapping[str, Sequence[float]], final: Mapping[str, float], spread: float
) -> tuple[tuple[int, int], ...]:
    """Return (orders that held, orders seen) by class of gap, over all pairs of arms and of their replicates.

    `early` has the values of each arm's replicates at a part of training, `final` its mean at the end.
    """
    found = np.zeros((len(GAPS), 2), dtype=int)
    for one, other in itertools.combinations(early, 2):
        gaps = np.subtract.outer(early[one], early[other]).ravel()
        held = gaps * (final[one] - final[other]) > 0
        for number, is_held in zip(np.searchsorted(GAPS, np.abs(gaps) / spread, side="right") - 1, held, strict=True):
            found[number] += is_held, 1
    return tuple((int(held), int(seen)) for held, seen in found)


def rates(arms: Collection[str], share: float) -> tuple[tuple[int, int], ...]:
    early = {arm: [at(line, share) for line in networks()[arm]] for arm in arms}
    final = {arm: float(np.mean([at(line, 1.0) for line in networks()[arm]])) for arm in arms}
    return calibrate(early, final, SPREAD)


def test_recorded_rates_follow_from_the_published_curves() -> None:
    assert {len(lines) for lines in networks().values()} == {5}
    assert math.comb(len(networks()), 2) == CALIBRATED_PAIRS
    assert rates(networks(), CALIBRATED_AT) == HELD


@pytest.mark.parametrize("left_out", ["x5", "x8"])
def test_rates_are_equal_in_networks_left_out(left_out: str) -> None:
    """Leaves out the networks of one depth."""
    ours, others = ([arm for arm in networks() if arm.endswith(left_out) == is_out] for is_out in (True, False))
    own, learnt = (np.array(rates(arms, CALIBRATED_AT))[GAPS.index(DEMANDED) :].sum(axis=0) for arms in (ours, others))
    assert own[0] / own[1] == pytest.approx(learnt[0] / learnt[1], abs=0.03)


def test_recorded_rates_elsewhere_are_those_of_a_temporary_order() -> None:
    """NMN's prototypes on MNIST are the only other pair with full runs; they differ only early in training."""
    errors: dict[str, list[list[float]]] = defaultdict(list)
    for line in (row.result for row in read_lines(Path("data/evidence/nmn-mnist-inversion.jsonl"), EvidenceLine)):
        if line.arm.endswith("-ten-epochs"):
            errors[line.arm].append([math.log(1 - (epoch.test_accuracy or 0.0)) for epoch in line.curves])
    early = {arm: [curve[round(CALIBRATED_AT * len(curve)) - 1] for curve in curves] for arm, curves in errors.items()}
    final = {arm: float(np.mean([curve[-1] for curve in curves])) for arm, curves in errors.items()}
    assert abs(np.subtract(*final.values())) < 0.01 < SPREAD
    found = np.array(calibrate(early, final, SPREAD))
    assert tuple(found[GAPS.index(DEMANDED) :].sum(axis=0)) == ELSEWHERE and found[:, 1].sum() == 100


def test_orders_at_3_percent_of_training_are_often_reversed() -> None:
    """This is why nothing is indicated below 30 %: DAC trains more slowly at first and ends better."""
    pairs = [arm for arm in networks() if arm.startswith("dac-")]
    bases = [arm.removeprefix("dac-") for arm in pairs]
    early, late = (
        [
            np.mean([at(line, share) for line in networks()[base]])
            - np.mean([at(line, share) for line in networks()[arm]])
            for arm, base in zip(pairs, bases, strict=True)
            if base in networks()
        ]
        for share in (0.03, 1.0)
    )
    agree = sum(one * other > 0 for one, other in zip(early, late, strict=True))
    assert (agree, len(late)) == (2, 14)
