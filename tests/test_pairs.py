"""The pairs behind a gain over a grid."""

import pytest
from scipy import stats

from stages.results import Arm, Claim, Result, VerdictRow, VerdictRun
from stages.results.claims import pair_gains

ARMS = [Arm(experiment="e", name=name, against=against) for name, against in (("a", "x"), ("b", "y"), ("c", "z"))]
ERROR = Claim(id="gain", kind="difference", better="lower")


def runs(side: str, arm: str, values: list[float | None], folds: int | None = None) -> list[VerdictRun]:
    result = Result(experiment="e", spec={"protocol": {"split": {"folds": folds}}})
    return [
        VerdictRun(side=side, arm=arm, replicate=replicate, value=value, result=result)
        for replicate, value in enumerate(values)
    ]


def unjudged(behind: list[VerdictRun]) -> VerdictRow:
    return VerdictRow(n=0, confidence=None, runs=behind)


def test_each_proposed_arm_stands_against_its_own_baseline() -> None:
    better, worse = [0.1, 0.2, 0.15], [0.5, 0.4, 0.45]
    behind = [
        *runs("proposed", "a", better),
        *runs("proposed", "b", worse),
        *runs("proposed", "c", better),
        *runs("baseline", "x", worse),
        *runs("baseline", "y", better),
        *runs("baseline", "z", [0.3, None, None]),
    ]
    first, second = pair_gains(ERROR, unjudged(behind), ARMS)
    assert (first.arm, first.against, second.arm, second.against) == ("a", "x", "b", "y"), "one value has no spread"
    interval = stats.ttest_ind(worse, better, equal_var=False).confidence_interval(0.95)
    assert (first.gain, first.low, first.high, first.n) == pytest.approx((0.3, interval.low, interval.high, 3))
    assert second.gain == pytest.approx(-0.3)
    accuracy = Claim(id="gain", kind="difference", better="higher")
    assert pair_gains(accuracy, unjudged(behind), ARMS)[0].gain == pytest.approx(-0.3)


def test_folds_are_compared_one_by_one() -> None:
    ours, theirs = [0.10, 0.21, 0.29], [0.2, 0.3, 0.4]
    sides = [("proposed", "a", ours), ("proposed", "b", ours), ("baseline", "x", theirs), ("baseline", "y", theirs)]
    behind = [run for side, arm, values in sides for run in runs(side, arm, [*values], folds=3)]
    first, _ = pair_gains(ERROR, unjudged(behind), ARMS)
    interval = stats.ttest_rel(theirs, ours).confidence_interval(0.95)
    assert (first.low, first.high) == pytest.approx((interval.low, interval.high))
    apart = [*runs("proposed", "b", [0.1, 0.2, None], folds=3), *runs("baseline", "y", [None, 0.3, 0.4], folds=3)]
    known = [run for run in behind if run.arm in ("a", "x")]
    assert [pair.arm for pair in pair_gains(ERROR, unjudged([*known, *apart]), ARMS)] == ["a"], "one shared fold"


def test_replicates_wait_for_the_next_look() -> None:
    sides = (("proposed", "a", 0.1), ("proposed", "b", 0.1), ("baseline", "x", 0.3), ("baseline", "y", 0.3))
    behind = [run for side, arm, level in sides for run in runs(side, arm, [level, level + 0.02, level + 0.01, 0.9])]
    first, _ = pair_gains(ERROR, VerdictRow(n=3, confidence=0.99, runs=behind), ARMS)
    assert (first.n, first.gain) == (3, pytest.approx(0.2))


def test_a_count_of_orders_has_no_gain() -> None:
    sides = (("proposed", "a"), ("proposed", "b"), ("baseline", "x"), ("baseline", "y"))
    behind = [run for side, arm in sides for run in runs(side, arm, [0.1, 0.2])]
    assert len(pair_gains(ERROR, unjudged(behind), ARMS)) == 2
    assert pair_gains(Claim(id="rank", kind="tally", unit="orders"), unjudged(behind), ARMS) == ()


def test_one_pair_and_a_single_value_are_no_grid() -> None:
    pair = [*runs("proposed", "a", [0.1, 0.2]), *runs("baseline", "x", [0.3, 0.4])]
    assert pair_gains(ERROR, unjudged(pair), ARMS) == ()
    values = [*runs("proposed", "a", [0.1, 0.2]), *runs("proposed", "b", [0.1, 0.2])]
    assert pair_gains(ERROR, unjudged(values), ARMS) == ()
