import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stages.claims.kinds.base import LOG_SPREAD
from stages.runs.evidence import EvidenceLine, ResultLine, read_lines
from stages.verdicts import (
    EvidenceLevel,
    Failures,
    GainClaim,
    Sample,
    Status,
    evidence_level_of,
    fisher_p,
    indicate_order,
    judge_count,
    judge_proportion,
    judge_proportions,
    weigh_gap,
)
from stages.verdicts.others import CALIBRATED_AT, CALIBRATED_PAIRS, DEMANDED, ELSEWHERE, GAPS, HELD, newcombe
from tests.verdicts.simulation import RULES


def test_fishers_test_equals_the_papers() -> None:
    """DAC, section 5: 15 of 576 failed against 2 of 449, p = 0.0063."""
    assert round(fisher_p((15, 576), (2, 449)), 4) == 0.0063
    ours, theirs = Failures.spread(2, 449, 1), Failures.spread(15, 576, 1)
    verdict = judge_proportions(ours, theirs, rules=RULES)
    assert verdict.status is Status.SUPPORTED
    one_sided = stats.fisher_exact([[2, 447], [15, 561]], alternative="less").pvalue
    assert verdict.p_value == pytest.approx(2 * one_sided), "permuting trainings is Fisher's test"
    assert verdict.explanation == (
        "2 of 449 against 15 of 576: permutation of the 449 and 576 networks, two-sided p = 0.0102."
    )


def test_fisher_sums_tables_no_likelier_than_the_observed() -> None:
    failed, tried, trials = 5, 20, (20, 30)
    odds = [stats.hypergeom.pmf(k, sum(trials), 6, trials[0]) for k in range(7)]
    assert fisher_p((failed, tried), (1, 30)) == pytest.approx(sum(p for p in odds if p <= odds[5] * (1 + 1e-7)))


@pytest.mark.parametrize(
    ("proposed", "status"), [(1, Status.SUPPORTED), (30, Status.REVERSED), (10, Status.UNRESOLVED)]
)
def test_order_of_two_failure_rates(proposed: int, status: Status) -> None:
    verdict = judge_proportions(Failures.spread(proposed, 90, 5), Failures.spread(15, 115, 5), rules=RULES)
    assert verdict.status is status and verdict.low <= verdict.estimate <= verdict.high


def test_failures_within_a_network_count_as_one() -> None:
    """Ten failed trainings of ten networks, or of two; with two, one permutation in four has both on one side."""
    none = Failures.spread(0, 10, 5)
    apart, together = Failures.spread(10, 10, 5), Failures(counts=(5, 5, *[0] * 8), each=5)
    assert judge_proportions(none, apart, rules=RULES).status is Status.SUPPORTED
    verdict = judge_proportions(none, together, rules=RULES)
    assert verdict.status is Status.UNRESOLVED and verdict.p_value == pytest.approx(2 * 9 / 38)
    assert fisher_p((0, 50), (10, 50)) < 0.01


def test_newcombe_interval_equals_the_published_example() -> None:
    """56 of 70 minus 48 of 80: 0.0524 to 0.3339 (Newcombe 1998, table II, method 10)."""
    assert newcombe((56, 70), (48, 80), 0.95) == pytest.approx((0.0524, 0.3339), abs=5e-5)


@pytest.mark.parametrize(
    ("ours", "margin", "status"),
    [
        (Failures.spread(2600, 100_000, 1), 0.02, Status.REPRODUCED),
        (Failures.spread(60, 40, 5), 0.01, Status.NOT_REPRODUCED),
        (Failures.spread(3, 18, 5), 0.05, Status.INCONCLUSIVE),
        (Failures.spread(3, 18, 5), 0.0026, Status.UNDECIDABLE),
    ],
)
def test_proportion_is_compared_with_the_printed_one(ours: Failures, margin: float, status: Status) -> None:
    assert judge_proportion((15, 576), ours, margin, rules=RULES).status is status


@pytest.mark.parametrize(("count", "status"), [(3830, Status.REPRODUCED), (4200, Status.NOT_REPRODUCED)])
def test_relative_margin_of_a_proportion_includes_its_error(count: int, status: Status) -> None:
    """Ours, 40 % of 10,000, is on the margin, within three standard errors of 20 % of 3,000 and its double."""
    claimed, ours = (600, 3000), Failures.spread(count, 10_000, 1)
    assert judge_proportion(claimed, ours, 0.2, rules=RULES).status is status
    assert judge_proportion(claimed, ours, 0.2, rules=RULES, slope=1.0).status is Status.INCONCLUSIVE


@given(st.integers(0, 50), st.integers(0, 50))
def test_swapping_proportions_reverses_the_order(a: int, b: int) -> None:
    one, other = (Failures.spread(count, 10, 5) for count in (a, b))
    there, back = (judge_proportions(*sides, rules=RULES) for sides in ((one, other), (other, one)))
    opposite = {Status.SUPPORTED: Status.REVERSED, Status.REVERSED: Status.SUPPORTED}
    assert back.status is opposite.get(there.status, there.status)
    assert there.low <= there.estimate <= there.high


@pytest.mark.parametrize(
    ("printed", "counted", "status"),
    [
        (298_730, 298_730, Status.HOLDS),
        *((298_731, 298_730, Status.FAILS), (10, 16, Status.FAILS), (7, 8, Status.FAILS)),
        *((25_330, 25_331, Status.HOLDS_UNDER_READING), (1_200, 1_249, Status.HOLDS_UNDER_READING)),
        *((25_330, 25_336, Status.FAILS), (1_200, 1_251, Status.FAILS)),
    ],
)
def test_counts_are_exact_and_printed_zeros_may_be_rounding(printed: int, counted: int, status: Status) -> None:
    verdict = judge_count(printed, counted)
    assert (verdict.status, verdict.estimate) == (status, counted - printed)
    unit = "10" if printed % 100 else "100"
    said = f"true if the printed number is rounded to {unit}."
    assert verdict.explanation.endswith(said) == (status is Status.HOLDS_UNDER_READING)


CLAIM = GainClaim(gain=0.02, margin=0.01, better="higher")


@pytest.mark.parametrize(
    ("profile", "provenance", "epochs", "expected"),
    [
        ("paper", "full", 100, EvidenceLevel.DECIDES),
        ("paper", "subset", 100, EvidenceLevel.INDICATES),
        ("quick", "full", 30, EvidenceLevel.INDICATES),
        ("quick", "subset", 30, EvidenceLevel.INDICATES),
        ("quick", "full", 29, EvidenceLevel.SILENT),
        ("paper", "embedded", 100, EvidenceLevel.SILENT),
        ("smoke", "embedded", 100, EvidenceLevel.SILENT),
    ],
)
def test_evidence_level_of_a_run(profile: str, provenance: str, epochs: int, expected: EvidenceLevel) -> None:
    said = evidence_level_of(profile=profile, provenance=provenance, share=epochs / 100, rules=RULES)
    assert said is expected


@pytest.mark.parametrize(
    ("proposed", "baseline", "status"),
    [
        ([0.6], [0.5], Status.AGREES),
        ([0.5, 0.6], [0.6, 0.6], Status.DISAGREES),
        ([0.5], [0.5], Status.NOT_TESTED),
        ([None], [0.5], Status.NOT_TESTED),
        ([], [0.5], Status.NOT_TESTED),
    ],
)
def test_short_run_indicates_a_direction(proposed: list, baseline: list, status: Status) -> None:
    verdict = indicate_order(CLAIM, Sample.of(proposed), Sample.of(baseline), epochs_share=0.3)
    assert verdict.status is status


def test_direction_depends_on_the_claim_and_the_metric() -> None:
    lower = GainClaim(gain=0.02, margin=0.01, better="lower")
    worse = GainClaim(gain=-0.02, margin=0.01, better="higher")
    arms = Sample.of([0.4]), Sample.of([0.5])
    assert indicate_order(lower, *arms, epochs_share=0.3).status is Status.AGREES
    assert indicate_order(worse, *arms, epochs_share=0.3).status is Status.AGREES
    assert "At 30% of the printed epochs the gain is −0.1 (n = 1)" in (
        indicate_order(worse, *arms, epochs_share=0.3).explanation
    )


@pytest.mark.parametrize(
    ("gain", "indicates", "said"),
    [
        (0.025, True, "The gap is 2.5 SD of a difference of two replicates (0.01); an order seen at 30% of"),
        (-0.025, True, f"2 to 3 SD held in {HELD[3][0] / HELD[3][1]:.0%} of cases among 406 pairs of SGEMM networks."),
        (0.045, True, f"with a gap of 3 or more SD held in {HELD[4][0] / HELD[4][1]:.0%} of cases"),
        (0.015, False, f"1 to 2 SD held in {HELD[2][0] / HELD[2][1]:.0%} of cases among 406 pairs"),
        (0.0004, False, "0 to 0.5 SD held in 52% of cases among 406 pairs of SGEMM networks. Below 2 SD"),
    ],
)
def test_order_is_indicated_from_two_spreads(gain: float, indicates: bool, said: str) -> None:
    may, explanation = weigh_gap(gain, 0.01)
    assert may is indicates and said in explanation, explanation
    assert explanation.endswith("16 of 16 held." if indicates else "too close to say.")


def test_no_order_is_indicated_without_a_spread() -> None:
    assert weigh_gap(0.5, None) == (False, "Nothing says how far replicates spread, so no order is indicated.")


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
