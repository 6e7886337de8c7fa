"""The statements of HyperBF's paper on its two arms, and why results on real data may decide no number."""

import pytest

from stages.verdicts import Status
from tests.claims.lines import claims, judge, results, trials
from tests.claims.test_trained import MNIST, SPREAD, VIT

HYPERBF = "hyperbf-cifar10"


@pytest.mark.parametrize(
    ("gain", "comparable", "gap"),
    [
        (0.003, Status.SUPPORTED, Status.NOT_REPRODUCED),
        (0.0, Status.SUPPORTED, Status.NOT_REPRODUCED),
        (-0.0049, Status.HOLDS_UNDER_READING, Status.REPRODUCED),
        (-0.016, Status.UNRESOLVED, Status.NOT_REPRODUCED),
        (-0.02, Status.REVERSED, Status.NOT_REPRODUCED),
    ],
)
def test_hyperbf_is_comparable_unless_it_is_clearly_behind(gain: float, comparable: Status, gap: Status) -> None:
    """The headline, separate from the printed loss of 0.49 points, which is a number and not a claim."""
    values = {"vit": [0.7561 + step for step in SPREAD], "hyperbf": [0.7561 + gain + step for step in SPREAD[::-1]]}
    lines = results(HYPERBF, values, metric="best_epoch_accuracy")
    headline, loss = judge(
        *(claims()[f"hyperbf.{i}"] for i in ("comparable.c10", "text.c10.gap")), entered=trials(lines)
    )
    assert (headline.verdict.status, loss.verdict.status) == (comparable, gap), headline.verdict.explanation
    assert headline.ours == loss.ours == pytest.approx(gain, abs=1e-6)
    assert headline.is_decidable and len(headline.entries) == 10


def test_part_of_the_data_is_not_called_a_cut_budget() -> None:
    (value,) = judge(claims()[VIT], entered=trials(results("ninformer-mnist", MNIST, provenance="subset")))
    assert value.verdict.explanation.startswith("Real data, but a part of them;")
    (old,) = judge(claims()[VIT], entered=trials(results("ninformer-mnist", MNIST), follows_plan=False))
    assert old.verdict.explanation.startswith("Real data under another protocol than params/ prints today;")
