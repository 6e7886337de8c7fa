"""The power of a plan, compared with simulated experiments judged by the real functions."""

import dataclasses
import math
from collections import Counter
from typing import Literal

import numpy as np
import pytest

from stages.verdicts import (
    ComparableClaim,
    Design,
    GainClaim,
    Power,
    Sample,
    Status,
    judge_comparable,
    judge_gain,
    power_of_comparable,
    power_of_gain,
    power_of_value,
)
from stages.verdicts.intervals import half_width, variance_of
from stages.verdicts.power import WANTED
from stages.verdicts.value import Spread
from tests.verdicts.simulation import RULES

VALUE = Design(planned=5, spread=1.0, source="assumed", because="assumed: 1", pairing="value")


@pytest.mark.slow
@pytest.mark.parametrize(("margin", "paper_n"), [(3.0, 1), (2.0, 5)])
def test_power_of_a_value_equals_simulated_experiments(margin: float, paper_n: int) -> None:
    design = dataclasses.replace(VALUE, paper_n=paper_n)
    power, rng = power_of_value(design, margin, RULES), np.random.default_rng(1)
    ours, printed = rng.normal(size=(40_000, 5)), rng.normal(size=(40_000, paper_n)).mean(axis=1)
    variance, df = Spread(s2=variance_of(ours), df=4, n=5, stderr=None, paper_n=paper_n).at(5)
    difference = ours.mean(axis=1) - printed
    within = np.abs(difference) + half_width(variance, df, RULES.alpha_within) <= margin
    outside = np.abs(difference + 2 * margin) - half_width(variance, df, RULES.alpha_outside / 2) > margin
    assert power.reproduced == pytest.approx(np.mean(within), abs=0.012)
    assert power.not_reproduced == pytest.approx(np.mean(outside), abs=0.012)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pairing", "stderr", "at"), [("fold", None, None), ("none", 0.4, None), ("none", None, 3), ("fold", 0.4, 3)]
)
def test_power_of_a_gain_equals_simulated_experiments(pairing: str, stderr: float | None, at: int | None) -> None:
    """At the end of a plan of five, or at its interim analysis of three."""
    trials, gain, margin, planned = 800, 1.5, 1.4, 5
    n = at or planned
    rng = np.random.default_rng(3)
    design = Design(
        planned=planned,
        spread=1.0,
        source="assumed",
        because="",
        pairing=pairing,
        stderr=stderr,
        paper_n=5 if stderr else 1,
        at=at,
    )
    arms = [rng.normal(mean, math.sqrt(0.5), (trials, n)) for mean in (gain, 0.0)]
    printed = gain + rng.normal(0, design.paper_error, trials)
    found = []
    for ours, base, value in zip(*arms, printed, strict=True):
        claim = GainClaim(gain=value, margin=margin, better="higher", stderr=stderr, n=design.paper_n)
        found.append(judge_gain(claim, Sample.of(ours), Sample.of(base), rules=RULES, pairing=pairing, planned=planned))
    power = power_of_gain(design, gain, margin, RULES)
    supported = np.mean([v.estimate > 0 and v.status is not Status.UNRESOLVED for v in found])
    close = 4 * 0.5 / math.sqrt(trials)
    assert power.supported == pytest.approx(supported, abs=close)
    if at is not None and stderr is None:
        assert power.reproduced == 0, "a size needs five replicates if the paper prints no error"
        return
    within = [
        v.size.low >= -margin and v.size.high <= margin for v in found if v.size.status is not Status.NOT_REPRODUCED
    ]
    assert power.reproduced == pytest.approx(sum(within) / trials, abs=close)


def test_sufficient_number_of_replicates_is_stated() -> None:
    design = dataclasses.replace(VALUE, stderr=0.2, paper_n=5)
    power = power_of_value(design, 1.0, RULES)
    assert power.reproduced < WANTED and power.needed is not None and power.can_reproduce
    assert f"80 % takes {power.needed} replicates" in power.explanation
    assert power.explanation.endswith(", but the last analysis is at 10.") == (power.needed > 10)
    enough = power_of_value(dataclasses.replace(design, planned=10), 1.0, RULES)
    assert power.needed <= 10 or enough.reproduced < WANTED


def test_undecidable_claim_states_what_it_would_need() -> None:
    """The paper's single run is too uncertain; 11 of its runs would suffice."""
    power = power_of_value(VALUE, 1.0, RULES)
    assert (power.needed, power.can_reproduce) == (None, False) and power.reproduced < 0.01
    assert "No plan can reproduce it: the paper's own error, 1, would have to be below 0.31, which takes 11 runs" in (
        power.explanation
    )
    assert power_of_value(dataclasses.replace(VALUE, paper_n=11), 1.0, RULES).needed is not None
    printed = power_of_value(dataclasses.replace(VALUE, stderr=1.0, paper_n=5), 1.0, RULES)
    assert not printed.can_reproduce and printed.explanation.endswith("would have to be below 0.23.")


@pytest.mark.parametrize("pairing", ["fold", "none"])
def test_power_at_half_the_printed_gain_is_that_of_half_the_gain(pairing: Literal["fold", "none"]) -> None:
    design = dataclasses.replace(VALUE, pairing=pairing)
    power, half = (power_of_gain(design, gain, 0.1, RULES) for gain in (2.0, 1.0))
    assert power.supported is not None and half.supported is not None
    assert power.supported_at_half == half.supported < power.supported


@pytest.mark.slow
@pytest.mark.parametrize("pairing", ["fold", "none"])
def test_power_of_comparable_arms_equals_simulated_experiments(pairing: str) -> None:
    """With margins of 1.2 and 3 spreads of a difference; the paper's own error has no effect."""
    trials, n, claim = 800, 5, ComparableClaim(margin=1.2, better="higher", accepted=3.0)
    design = Design(planned=n, spread=1.0, source="assumed", because="assumed: 1", pairing=pairing, paper_n=1)
    power = power_of_comparable(design, claim.margin, claim.widest, RULES)
    found = {}
    for gain in (0.0, -2 * claim.widest):
        rng = np.random.default_rng(5)
        arms = [rng.normal(mean, math.sqrt(0.5), (trials, n)) for mean in (gain, 0.0)]
        found[gain] = Counter(
            judge_comparable(claim, Sample.of(ours), Sample.of(base), rules=RULES, pairing=pairing, planned=n).status
            for ours, base in zip(*arms, strict=True)
        )
    close = 4 * 0.5 / math.sqrt(trials)
    assert power.supported == pytest.approx(found[0.0][Status.SUPPORTED] / trials, abs=close)
    assert power.not_reproduced == pytest.approx(found[-2 * claim.widest][Status.REVERSED] / trials, abs=close)
    assert (power.reproduced, power.needed_for_size) == (None, None)
    assert (
        power.needed is not None and power.needed > n and f"80 % takes {power.needed} replicates" in power.explanation
    )
    enough = dataclasses.replace(design, planned=power.needed)
    assert power_of_comparable(enough, claim.margin, claim.widest, RULES).supported >= WANTED


def test_larger_spread_never_gives_more_power() -> None:
    powers = [power_of_value(dataclasses.replace(VALUE, spread=s), 3.0, RULES) for s in (0.3, 0.6, 1.0, 1.5, 3.0)]
    chances = [(power.reproduced, power.not_reproduced) for power in powers]
    assert chances == sorted(chances, reverse=True)
    assert all(isinstance(power, Power) and f"{power.spread:.2g}" in power.explanation for power in powers)
