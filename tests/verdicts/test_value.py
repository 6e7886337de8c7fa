import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stages.verdicts import (
    ComparedArms,
    DuplicateObservation,
    GainClaim,
    Observation,
    Sample,
    Status,
    ValueClaim,
    judge_gain,
    judge_side,
    judge_value,
)
from stages.verdicts.intervals import half_width, variance_of
from stages.verdicts.value import Spread
from tests.verdicts.simulation import RULES

FIVE = [0.812, 0.815, 0.811, 0.816, 0.813]
values = st.floats(0.5, 0.9, allow_subnormal=False).map(lambda value: round(value, 4))
samples = st.lists(values, min_size=5, max_size=5, unique=True)
shifts = st.floats(-0.05, 0.05).map(lambda shift: round(shift, 4))
RANK = {Status.NOT_REPRODUCED: 0, Status.UNDECIDABLE: 1, Status.INCONCLUSIVE: 1, Status.REPRODUCED: 2}


def judge(claim: ValueClaim, values: list, **more: object):
    return judge_value(claim, Sample.of(values), rules=RULES, **more)


def test_interval_with_a_printed_error_is_welchs() -> None:
    paper = [0.818, 0.813, 0.815, 0.820, 0.811]
    claim = ValueClaim(value=float(np.mean(paper)), margin=0.01, stderr=float(stats.sem(paper)), n=5)
    verdict = judge(claim, FIVE)
    interval = stats.ttest_ind(FIVE, paper, equal_var=False).confidence_interval(verdict.confidence)
    assert (verdict.low, verdict.high) == pytest.approx((interval.low, interval.high), rel=1e-9)


def test_interval_with_a_single_run_is_a_prediction_interval() -> None:
    """A new draw from the same procedure lies in mean ± t s √(1 + 1/n) (Student's t, n − 1 df)."""
    verdict = judge(ValueClaim(value=0.82, margin=0.01), FIVE)
    half = stats.t.ppf((1 + verdict.confidence) / 2, 4) * np.std(FIVE, ddof=1) * np.sqrt(1 + 1 / 5)
    assert (verdict.high - verdict.low) / 2 == pytest.approx(half, rel=1e-12)
    assert verdict.confidence == pytest.approx(1 - 2 * 0.05 * 0.5), "half of α: a single run has no analysis at 3"


@pytest.mark.parametrize(
    ("value", "margin", "status"),
    [
        (0.8159, 0.0100, Status.REPRODUCED),
        (0.8500, 0.0100, Status.NOT_REPRODUCED),
        (0.7700, 0.0100, Status.NOT_REPRODUCED),
        (0.8159, 0.0010, Status.UNDECIDABLE),  # the single run alone varies by more than the margin
        (0.8159, 0.0075, Status.INCONCLUSIVE),
        (0.8134, 0.0000, Status.UNDECIDABLE),
    ],
)
def test_four_verdicts_of_a_value(value: float, margin: float, status: Status) -> None:
    assert judge(ValueClaim(value=value, margin=margin), FIVE).status is status


def test_sentence_has_every_number() -> None:
    verdict = judge(ValueClaim(value=0.8159, margin=0.01), FIVE)
    assert verdict.explanation == (
        "Ours 0.8134 (n = 5, s = 0.0021) − the paper's 0.8159 = −0.0025, 95 % interval −0.0088 to +0.0038, "
        "margin ±0.01: within."
    )


def test_inconclusive_states_the_replicates_that_decide() -> None:
    """Judging that many replicates with the same mean and spread decides; one fewer doesn't."""
    claim = ValueClaim(value=0.8190, margin=0.0095, stderr=0.0005, n=5)
    verdict = judge(claim, [0.809, 0.818, 0.807, 0.819, 0.814])
    assert (verdict.status, verdict.replicates_expected) == (Status.INCONCLUSIVE, 11)
    assert "11 replicates are expected to decide" in verdict.explanation
    planned = judge(claim, [0.809, 0.818, 0.807, 0.819, 0.814], planned=5).explanation
    assert "replicates are expected to decide, but the last analysis is at 5" in planned
    values = np.array([0.809, 0.818, 0.807, 0.819, 0.814])
    decided = {}
    for n in (10, 11):
        wave = np.resize([1.0, -1.0], n) if n % 2 == 0 else np.array([0.0, *np.resize([1.0, -1.0], n - 1)])
        alike = values.mean() + wave * values.std(ddof=1) / wave.std(ddof=1)
        rules = dataclasses.replace(RULES, looks={n: 1.0}, alpha_within=0.02, alpha_outside=0.02)
        decided[n] = judge_value(claim, Sample.of(alike.tolist()), rules=rules).status
    assert decided == {10: Status.INCONCLUSIVE, 11: Status.REPRODUCED}


def test_more_than_a_thousand_replicates_are_not_counted() -> None:
    claim = ValueClaim(value=0.8134 + 0.0100001, margin=0.01, stderr=1e-9, n=5)
    verdict = judge(claim, FIVE)
    assert (verdict.status, verdict.replicates_expected) == (Status.INCONCLUSIVE, None)
    assert "more than 1000 replicates" in verdict.explanation


@pytest.mark.parametrize(("n", "status"), [(0, Status.NOT_TESTED), (1, Status.INCONCLUSIVE), (4, Status.INCONCLUSIVE)])
def test_too_few_replicates_state_how_many_are_needed(n: int, status: Status) -> None:
    claim = ValueClaim(value=0.8134, margin=0.5)
    assert judge(claim, FIVE[:n], planned=3).explanation.endswith("nothing is said before, and the plan ends with 3.")
    verdict = judge(claim, FIVE[:n])
    assert (verdict.status, verdict.n, verdict.replicates_expected, verdict.low) == (status, n, 5, None)
    assert verdict.explanation == f"{n} of the first 5 replicates are there; nothing is said before."


def test_three_replicates_suffice_if_the_paper_prints_its_error() -> None:
    claim = ValueClaim(value=0.8127, margin=0.05, stderr=0.001, n=5)
    assert judge(claim, FIVE[:3]).status is Status.REPRODUCED
    assert judge(dataclasses.replace(claim, stderr=None), FIVE[:3]).status is Status.INCONCLUSIVE


def test_replicates_beyond_an_analysis_are_only_mentioned() -> None:
    claim = ValueClaim(value=0.8159, margin=0.01)
    at_five, at_nine = judge(claim, FIVE), judge(claim, [*FIVE, 0.1, 0.9, 0.1, 0.9])
    assert dataclasses.replace(at_nine, explanation="") == dataclasses.replace(at_five, explanation="")
    assert "4 more wait for the next planned analysis" in at_nine.explanation
    assert "Of the replicates, 4 more aren't used." in judge(claim, [*FIVE, 0.1, 0.9, 0.1, 0.9], planned=5).explanation


def test_repeated_or_non_finite_replicate_is_an_error() -> None:
    with pytest.raises(DuplicateObservation, match=r"replicates \[0\] occur twice"):
        Sample((Observation(index=0, value=0.81), Observation(index=0, value=0.82)))
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"replicates \[1\] have no finite value; one that diverged has None"):
            Sample.of([0.81, value, 0.82])


def test_diverged_replicate_counts_in_n_and_excludes_reproduced() -> None:
    claim = ValueClaim(value=0.8134, margin=0.02)
    verdict = judge(claim, [*FIVE[:4], None])
    assert judge(claim, FIVE).status is Status.REPRODUCED
    assert (verdict.status, verdict.n, verdict.n_diverged) == (Status.INCONCLUSIVE, 5, 1)
    assert "a diverged replicate rules out reproduced" in verdict.explanation
    assert judge(dataclasses.replace(claim, value=0.9), [*FIVE[:4], None]).status is Status.NOT_REPRODUCED
    alone = judge(claim, [None, None, 0.81, None, None])
    assert (alone.status, alone.n, alone.n_diverged, alone.low) == (Status.INCONCLUSIVE, 5, 4, None)


@pytest.mark.parametrize("value", [0.81, 0.9])
def test_identical_replicates_decide_nothing(value: float) -> None:
    """Five equal numbers are one run copied, not a spread of zero."""
    verdict = judge(ValueClaim(value=value, margin=0.01), [0.81] * 5)
    assert verdict.status is Status.INCONCLUSIVE
    assert "don't differ at all" in verdict.explanation


@given(samples, shifts, st.floats(1e-4, 0.05), st.floats(1.0, 5.0))
def test_wider_margin_never_moves_away_from_reproduced(
    sample: list, shift: float, margin: float, factor: float
) -> None:
    value = float(np.mean(sample)) + shift
    narrow = judge(ValueClaim(value=value, margin=margin), sample)
    wide = judge(ValueClaim(value=value, margin=margin * factor), sample)
    assert RANK[narrow.status] <= RANK[wide.status]


@given(samples, shifts, st.floats(1.0, 5.0))
def test_larger_distance_never_moves_towards_reproduced(sample: list, shift: float, factor: float) -> None:
    mean = float(np.mean(sample))
    near = judge(ValueClaim(value=mean + shift, margin=0.01), sample)
    far = judge(ValueClaim(value=mean + shift * factor, margin=0.01), sample)
    assert RANK[far.status] <= RANK[near.status]


@given(samples, shifts, st.sampled_from([None, 0.001]), st.floats(0.0, 0.01))
def test_more_unknown_test_rows_never_decide_more(
    sample: list, shift: float, stderr: float | None, widening: float
) -> None:
    claim = ValueClaim(value=float(np.mean(sample)) + shift, margin=0.01, stderr=stderr, n=5)
    known, unknown = judge(claim, sample), judge(claim, sample, widening=widening)
    assert unknown.status is known.status or RANK[unknown.status] == 1


@given(samples, shifts, st.permutations(range(5)))
def test_order_of_replicates_and_sign_do_not_matter(sample: list, shift: float, order: list) -> None:
    mean = float(np.mean(sample))
    verdict = judge(ValueClaim(value=mean + shift, margin=0.01), sample)
    shuffled = judge(ValueClaim(value=mean + shift, margin=0.01), [sample[index] for index in order])
    mirrored = judge(ValueClaim(value=-mean - shift, margin=0.01), [-value for value in sample])
    assert verdict.status is mirrored.status
    assert (verdict.low, verdict.high) == pytest.approx((-mirrored.high, -mirrored.low), abs=1e-12)
    assert (verdict.low, verdict.high) == pytest.approx((shuffled.low, shuffled.high), abs=1e-12)


@given(samples, shifts, st.sampled_from([2.0, 100.0, 0.01]))
def test_unit_does_not_matter(sample: list, shift: float, factor: float) -> None:
    """Percent and fractions give the same verdict and number of replicates."""
    value = float(np.mean(sample)) + shift
    plain = judge(ValueClaim(value=value, margin=0.01), sample)
    scaled = judge(ValueClaim(value=value * factor, margin=0.01 * factor), [one * factor for one in sample])
    assert (plain.status, plain.replicates_expected) == (scaled.status, scaled.replicates_expected)


OURS = [0.900, 0.904, 0.897, 0.902, 0.899]


@pytest.mark.parametrize("n", [3, 5, 10])
@pytest.mark.parametrize(("paper_n", "prints_error"), [(1, False), (5, False), (5, True)])
def test_interval_covers_a_rerun_of_the_same_procedure_in_95_percent(n: int, paper_n: int, prints_error: bool) -> None:
    """With a printed error, Welch's df make it slightly more."""
    ours, runs = (np.random.default_rng(seed).normal(size=(40_000, size)) for seed, size in ((n, n), (99, paper_n)))
    stderr = stats.sem(runs, axis=1) if prints_error else None
    variance, freedom = Spread(s2=variance_of(ours), df=n - 1, n=n, stderr=stderr, paper_n=paper_n).at(n)
    half = half_width(variance, freedom, RULES.alpha_outside / 2)
    covered = float(np.mean(np.abs(ours.mean(axis=1) - runs.mean(axis=1)) <= half))
    assert 0.945 < covered < 0.975 if prints_error else abs(covered - 0.95) < 0.005


def test_interval_for_a_single_run_is_students() -> None:
    verdict = judge_value(ValueClaim(value=0.903, margin=0.001, n=1), Sample.of(OURS), rules=RULES, planned=5)
    half = stats.t.ppf(0.975, 4) * np.std(OURS, ddof=1) * math.sqrt(1 / 5 + 1)
    found = verdict.prediction
    assert (found.low, found.high) == (pytest.approx(np.mean(OURS) - half), pytest.approx(np.mean(OURS) + half))
    assert (found.confidence, found.holds) == (0.95, True)
    assert verdict.status is Status.UNDECIDABLE, "the prediction answers even if the margin doesn't decide"
    far = judge_value(ValueClaim(value=0.92, margin=0.001, n=1), Sample.of(OURS), rules=RULES, planned=5)
    assert not far.prediction.holds


def test_missing_test_rows_widen_it_and_a_printed_error_narrows_it() -> None:
    claim = ValueClaim(value=0.9, margin=0.01, n=1)
    plain, wide = (judge_value(claim, Sample.of(OURS), rules=RULES, widening=w).prediction for w in (0.0, 0.002))
    assert wide.high - wide.low == pytest.approx(plain.high - plain.low + 0.004)
    printed = judge_value(dataclasses.replace(claim, stderr=0.0004, n=5), Sample.of(OURS), rules=RULES).prediction
    assert printed.high - printed.low < plain.high - plain.low


def test_equal_replicates_predict_nothing() -> None:
    assert judge_value(ValueClaim(value=0.9, margin=0.01), Sample.of([0.9] * 5), rules=RULES).prediction is None


def test_gain_has_a_prediction_of_its_size() -> None:
    base = [value - 0.02 + step for value, step in zip(OURS, (0.001, -0.001, 0.0, 0.002, -0.001), strict=True)]
    claim = GainClaim(gain=0.021, margin=0.0105, better="higher", n=1)
    size = judge_gain(
        claim, ComparedArms(Sample.of(OURS), Sample.of(base), rules=RULES, pairing="fold", planned=5)
    ).size
    gains = np.subtract(OURS, base)
    half = stats.t.ppf(0.975, 4) * gains.std(ddof=1) * math.sqrt(1 + 1 / 5)
    assert (size.prediction.low, size.prediction.holds) == (pytest.approx(gains.mean() - half), True)


VALUES = Sample.of([0.5, 0.52, 0.49, 0.51, 0.48])


def test_sentence_states_distance_and_bound() -> None:
    verdict = judge_side(1.0, "lower", VALUES, rules=RULES)
    assert verdict.estimate == pytest.approx(0.5)
    assert verdict.explanation.startswith("How far below 1 (mean of n = 5 networks) = +0.500, 98 % interval")
    assert verdict.explanation.endswith(": below, as claimed.")
    assert verdict.p_value is not None and verdict.p_value < 0.001
    near = judge_side(0.53, "lower", VALUES, rules=RULES)
    assert near.explanation.endswith(
        " If the noise is skewed, such a verdict is wrong in 10 to 20 % of cases, not 5 %."
    )
