"""Claims about NMN's MNIST run: values at single epochs, and the range across frameworks."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest

from stages.claims import Trial
from stages.verdicts import Status
from tests.claims.lines import claims, judge, results, trials

FAIR = (Status.HOLDS_UNDER_READING, Status.INCONCLUSIVE, Status.UNRESOLVED, Status.UNDECIDABLE)


def of_epochs(values: Sequence[float], at: int) -> list[Trial]:
    """Return NMN's perceptron on MNIST for three epochs, with these accuracies and losses at epoch `at`."""
    lines = results("nmn-mnist", {"yat-mlp": values}, curves={"yat-mlp": [[0.5] * 3] * len(values)})
    return trials(
        [
            dataclasses.replace(
                line,
                curves=tuple(
                    dataclasses.replace(row, test_accuracy=value, test_loss=value, train_loss=value)
                    if row.epoch == at
                    else row
                    for row in line.curves
                ),
            )
            for line, value in zip(lines, values, strict=True)
        ]
    )


@pytest.mark.parametrize(("curve", "at"), [("accuracy", 1), ("accuracy", 2), ("test_loss", 2), ("train_loss", 3)])
def test_value_of_an_epoch_is_read_at_that_epoch(curve: str, at: int) -> None:
    claim = claims()[f"nmn.ext.mnist.{curve}.epoch{at}"]
    assert claim.value is not None
    values = [claim.value + 1e-4 * math.sin(replicate) for replicate in range(10)]
    for epoch, status in ((at, Status.REPRODUCED), (at % 3 + 1, Status.INCONCLUSIVE)):
        (judgement,) = judge(claim, entered=of_epochs(values, epoch))
        assert judgement.verdict.status is status, judgement.verdict.explanation


def test_training_shorter_than_the_printed_epoch_has_no_value() -> None:
    claim = dataclasses.replace(claims()["nmn.ext.mnist.test_loss.epoch2"], metric="epoch_4_test_loss")
    (judgement,) = judge(claim, entered=of_epochs([0.2] * 10, 2))
    assert judgement.verdict.explanation == "There are results, but no result holds epoch_4_test_loss."


@pytest.mark.parametrize(
    ("s", "status"),
    [(0.001, Status.REVERSED), (0.004, Status.UNRESOLVED), (0.008, Status.SUPPORTED), (0.0, Status.UNRESOLVED)],
)
def test_range_across_frameworks_is_noise_if_seeds_spread_as_widely(s: float, status: Status) -> None:
    draws = np.linspace(-1, 1, 10)
    values = 0.95 + s * draws / draws.std(ddof=1)
    (judgement,) = judge(
        claims()["nmn.ext.mnist.frameworks"], entered=trials(results("nmn-mnist", {"yat-mlp": values}))
    )
    assert (judgement.verdict.status, judgement.is_decidable) == (status, True), judgement.verdict.explanation
    assert judgement.ours == pytest.approx(3.633 * s, rel=1e-3), "95 of 100 ranges of four draws"


@pytest.mark.parametrize(
    ("at", "status", "by_a_reading"),
    [(0.9497, Status.REPRODUCED, Status.HOLDS_UNDER_READING), (0.90, Status.NOT_REPRODUCED, Status.INCONCLUSIVE)],
)
def test_trainings_of_our_reading_refute_nothing(at: float, status: Status, by_a_reading: Status) -> None:
    claim = claims()["nmn.ext.mnist.accuracy.epoch3"]
    entered = trials(results("nmn-mnist", {"yat-mlp": [at + 1e-4 * math.sin(seed) for seed in range(10)]}))
    (printed,) = judge(claim, entered=entered)
    (read,) = judge(dataclasses.replace(claim, reading="one layer is ours"), entered=entered)
    assert (printed.verdict.status, read.verdict.status) == (status, by_a_reading)
    assert read.verdict.explanation.endswith(". This is a reading: one layer is ours.")
    assert printed.verdict.by_margin and not read.verdict.by_margin
    assert all(variant.status in (*FAIR, Status.NOT_TESTED) for variant in read.variants)
