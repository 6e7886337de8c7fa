"""How often a ratio of means is judged reproduced: by simulation, from one run of the paper and five of ours."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from stages.claims.ratios import judge_relative, relative
from stages.claims.sides import ClaimSamples, Pairs
from stages.claims.trials import ResultGroup
from stages.verdicts import EvidenceLevel, Sample, Status
from tests.claims.lines import claims, params

CLAIM = claims()["ninformer.text.c10.acc_vs_mixer"]
TIMES, BASE = 1500, 0.70
RULES = params().verdicts
PAIRS = Pairs(proposed=("ninformer",), baseline=("mlp-mixer",), cells=({},), grid=({},))
GROUP = ResultGroup(
    experiment=params().experiments["ninformer-cifar10"],
    profile="paper",
    conditions="",
    evidence_level=EvidenceLevel.DECIDES,
    share=1.0,
    arms={},
)


def shares(true: float, papers: float, spread: float) -> dict[Status, float]:
    """The shares of simulated papers and replications with these true ratios that get each verdict."""
    random = np.random.default_rng(7)
    found: dict[Status, int] = {}
    for _ in range(TIMES):
        theirs = random.normal((BASE * (1 + papers), BASE), spread)
        ours, base = (random.normal(mean, spread, 5) for mean in (BASE * (1 + true), BASE))
        claim = dataclasses.replace(CLAIM, value=float(theirs[0] / theirs[1] - 1))
        sides = ClaimSamples(
            proposed=Sample.of(ours.tolist()), baseline=Sample.of(base.tolist()), trials=(), entries=()
        )
        verdict = judge_relative(claim, relative(claim, sides, PAIRS, GROUP, RULES), GROUP, RULES)
        found[verdict.status] = found.get(verdict.status, 0) + 1
    return {status: count / TIMES for status, count in found.items()}


@pytest.mark.slow
def test_a_ratio_off_by_the_margin_is_rarely_reproduced() -> None:
    """The margin is half of the printed ratio, so a true one of half its size lies on it."""
    assert shares(0.08, 0.16, spread=0.010).get(Status.REPRODUCED, 0.0) <= 0.05


@pytest.mark.slow
def test_the_same_ratio_is_rarely_refused_and_mostly_found_where_the_spread_is_small() -> None:
    same = shares(0.16, 0.16, spread=0.007)
    assert same.get(Status.NOT_REPRODUCED, 0.0) <= 0.01
    assert same[Status.REPRODUCED] > 0.8
    assert shares(0.16, 0.16, spread=0.015).get(Status.NOT_REPRODUCED, 0.0) <= 0.01


def test_the_sample_of_a_ratio_has_the_ratio_as_its_mean() -> None:
    sides = ClaimSamples(
        proposed=Sample.of([0.80, 0.83, 0.81]), baseline=Sample.of([0.70, 0.69, 0.72]), trials=(), entries=()
    )
    sample = relative(CLAIM, sides, PAIRS, GROUP, RULES)
    assert sum(sample.values) / 3 == pytest.approx((0.80 + 0.83 + 0.81) / (0.70 + 0.69 + 0.72) - 1)
