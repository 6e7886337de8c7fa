"""The power of a plan, compared with simulated experiments judged by the real functions."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable
from typing import Literal

import numpy as np
import pytest

from stages.verdicts import (
    ComparableClaim,
    ComparedArms,
    Design,
    Failures,
    GainClaim,
    Power,
    Sample,
    Status,
    UniformClaim,
    ValueClaim,
    judge_comparable,
    judge_gain,
    judge_proportion,
    judge_proportions,
    judge_side,
    judge_uniform,
    judge_value,
    power_of_comparable,
    power_of_gain,
    power_of_value,
)
from stages.verdicts.intervals import half_width, variance_of
from stages.verdicts.power import (
    WANTED,
    power_of_nearness,
    power_of_proportion,
    power_of_proportions,
    power_of_sign,
    power_of_uniform,
)
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
        found.append(
            judge_gain(
                claim, ComparedArms(Sample.of(ours), Sample.of(base), rules=RULES, pairing=pairing, planned=planned)
            )
        )
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
            judge_comparable(
                claim, ComparedArms(Sample.of(ours), Sample.of(base), rules=RULES, pairing=pairing, planned=n)
            ).status
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


SIGN = Design(planned=5, spread=0.4, source="assumed", because="assumed: 0.4", pairing="value", stderr=0.0)


def number_after(words: str, text: str) -> float:
    assert words in text, text
    return float(text.partition(words)[2].split()[0].rstrip(".,;"))


def share(statuses: Iterable[Status], status: Status) -> float:
    found = list(statuses)
    return sum(one is status for one in found) / len(found)


@pytest.mark.slow
@pytest.mark.parametrize("planned", [3, 10])
def test_side_is_decided_as_often_as_stated_at_the_least_distance(planned: int) -> None:
    design = dataclasses.replace(SIGN, planned=planned)
    least = number_after("the truth is at least ", power_of_sign(design, RULES, is_known=True).explanation)
    draws = np.random.default_rng(0).normal(least, design.spread, (3000, planned))
    verdicts = (
        judge_side(0.0, "higher", Sample.of(row.tolist()), rules=RULES, planned=planned).status for row in draws
    )
    assert share(verdicts, Status.SUPPORTED) == pytest.approx(WANTED, abs=0.04)  # two digits are printed


def test_distance_is_in_spreads_if_the_spread_is_unknown() -> None:
    known, unknown = (power_of_sign(SIGN, RULES, is_known=is_known) for is_known in (True, False))
    assert (unknown.spread, unknown.source, known.spread) == (None, None, 0.4)
    in_spreads = number_after("at least ", unknown.explanation)
    assert in_spreads * 0.4 == pytest.approx(number_after("at least ", known.explanation), rel=0.06)


def test_plan_without_an_analysis_is_reported() -> None:
    power = power_of_sign(dataclasses.replace(SIGN, planned=2), RULES, is_known=False)
    assert not power.can_reproduce and "too few, because the first analysis is at 3" in power.explanation


@pytest.mark.slow
@pytest.mark.parametrize(
    ("apart", "status", "spread"), [(0.0, Status.REPRODUCED, 0.07), (2.0, Status.NOT_REPRODUCED, 0.04)]
)
def test_power_of_a_uniform_gain_equals_a_simulation(apart: float, status: Status, spread: float) -> None:
    margin, levels, depths, n = 0.0625, 5, 4, 5
    design = dataclasses.replace(SIGN, spread=spread * (2 / n) ** 0.5, pairing="none", stderr=None)
    power = power_of_uniform(design, levels, depths, margin, RULES)
    gains = 0.25 + apart * margin * np.array([-0.5, 0, 0, 0, 0.5])
    claim = UniformClaim(factor="width", is_whole=True, gain=0.25, margin=margin, better="lower")
    rng = np.random.default_rng(1)
    found = []
    for _ in range(400):
        drawn = {
            number: [
                (Sample.of(rng.normal(-gain, spread, n).tolist()), Sample.of(rng.normal(0, spread, n).tolist()))
                for _ in range(depths)
            ]
            for number, gain in enumerate(gains)
        }
        found.append(judge_uniform(claim, drawn, rules=RULES, replicates=n).status)
    said = power.reproduced if status is Status.REPRODUCED else power.not_reproduced
    assert said == pytest.approx(share(found, status), abs=0.07)


@pytest.mark.parametrize("spread", [1e-9, 1e-3])
def test_gains_with_little_spread_are_always_found_uniform(spread: float) -> None:
    power = power_of_uniform(dataclasses.replace(SIGN, spread=spread, pairing="none"), 7, 5, 0.0625, RULES)
    assert power.reproduced == pytest.approx(1)


@pytest.mark.slow
def test_number_is_reproduced_up_to_the_stated_spread() -> None:
    design = dataclasses.replace(SIGN, planned=5)
    largest = number_after("the standard deviation is at most ", power_of_nearness(design, 0.1, RULES).explanation)
    draws = np.random.default_rng(3).normal(1.0, largest, (3000, 5))
    stated = ValueClaim(value=1.0, margin=0.1, stderr=0.0)
    found = (judge_value(stated, Sample.of(row.tolist()), rules=RULES, planned=5).status for row in draws)
    assert share(found, Status.REPRODUCED) == pytest.approx(WANTED, abs=0.05)


def test_power_of_a_failure_rate_equals_a_simulation() -> None:
    rng, networks, claimed, margin = np.random.default_rng(4), 110, (15, 576), 0.01
    power = power_of_proportion(networks, 5, claimed, margin, RULES)
    for truth, status, said in (
        (15 / 576, Status.REPRODUCED, power.reproduced),
        (15 / 576 + 2 * margin, Status.NOT_REPRODUCED, power.not_reproduced),
    ):
        drawn = [Failures(counts=tuple(row), each=5) for row in rng.binomial(5, truth, (1500, networks)).tolist()]
        found = (judge_proportion(claimed, one, margin, rules=RULES).status for one in drawn)
        assert said == pytest.approx(share(found, status), abs=0.04)


@pytest.mark.slow
def test_power_of_fewer_failures_equals_a_simulation() -> None:
    rng, networks = np.random.default_rng(5), (80, 110)
    power = power_of_proportions(networks, 5, ((2, 449), (15, 576)), RULES)
    found = []
    for _ in range(1000):
        ours, theirs = (rng.binomial(5, rate, n) for rate, n in zip((2 / 449, 15 / 576), networks, strict=True))
        sides = (Failures(counts=tuple(counts.tolist()), each=5) for counts in (ours, theirs))
        found.append(judge_proportions(*sides, rules=RULES).status)
    assert power.supported == pytest.approx(share(found, Status.SUPPORTED), abs=0.05)
