"""Claims that HyperBF's two arms are comparable, and why results on partial data decide no number."""

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
def test_hyperbf_is_comparable_unless_clearly_behind(gain: float, comparable: Status, gap: Status) -> None:
    """The headline is judged separately from the printed loss of 0.49 points."""
    values = {"vit": [0.7561 + step for step in SPREAD], "hyperbf": [0.7561 + gain + step for step in SPREAD[::-1]]}
    lines = results(HYPERBF, values, metric="best_epoch_accuracy")
    headline, loss = judge(
        *(claims()[f"hyperbf.{i}"] for i in ("comparable.c10", "text.c10.gap")), entered=trials(lines)
    )
    assert (headline.verdict.status, loss.verdict.status) == (comparable, gap), headline.verdict.explanation
    assert headline.ours == loss.ours == pytest.approx(gain, abs=1e-6)
    assert headline.is_decidable and len(headline.entries) == 10


def test_partial_data_are_distinguished_from_another_protocol() -> None:
    (value,) = judge(claims()[VIT], entered=trials(results("ninformer-mnist", MNIST, provenance="subset")))
    assert value.verdict.explanation.startswith("Real data, but a part of them;")
    (old,) = judge(claims()[VIT], entered=trials(results("ninformer-mnist", MNIST), follows_plan=False))
    assert old.verdict.explanation.startswith("Real data under another protocol than params/ prints today;")
