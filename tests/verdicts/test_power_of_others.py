"""The power of a plan for a sign, grid, range or failure rate, compared with judged simulations."""

import dataclasses
from collections.abc import Iterable

import numpy as np
import pytest

from stages.verdicts import (
    Design,
    Failures,
    Sample,
    Status,
    UniformClaim,
    ValueClaim,
    judge_proportion,
    judge_proportions,
    judge_side,
    judge_uniform,
    judge_value,
)
from stages.verdicts.power import (
    WANTED,
    power_of_nearness,
    power_of_proportion,
    power_of_proportions,
    power_of_sign,
    power_of_uniform,
)
from tests.verdicts.simulation import RULES

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
