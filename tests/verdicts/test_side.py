"""A number on one side of a bound: its wording and error rate."""

import pytest

from stages.verdicts import Sample, judge_side
from tests.verdicts.simulation import RULES

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
