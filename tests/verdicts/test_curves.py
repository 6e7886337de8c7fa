import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stages.runs.evidence import EpochRow
from stages.verdicts import NoCurves, arm_metric, min_over_epochs, pseudo_values, window_error

RNG = np.random.default_rng(0)
# Two folds, seven epochs: the fold mean is lowest at epoch 4, unlike each fold's own minimum.
SMALL = np.array([[0.9, 0.5, 0.4, 0.30, 0.20, 0.25, 0.1], [0.8, 0.6, 0.1, 0.30, 0.16, 0.25, 0.4]])


def test_minimum_is_that_of_the_fold_mean() -> None:
    metric = min_over_epochs(SMALL)
    assert (metric.value, metric.epoch) == (pytest.approx(0.18), 4)
    assert metric.stderr == pytest.approx(stats.sem([0.20, 0.16]))


def test_window_error_is_the_papers_double_sum() -> None:
    """Appendix B as loops: m over all centres i, T over 25 cells, Var = σ²/5 + τ²/25; a single fold has no error."""
    lone = window_error(SMALL[:1], SMALL[:1], width=3)
    assert (lone.stderr, lone.folds) == (None, (lone.value,))
    v, t = RNG.uniform(0.1, 0.3, (2, 5, 40))
    m = min(range(2, 38), key=lambda i: sum(v[k, i + j] for k in range(5) for j in range(-2, 3)) / 25)
    T = sum(t[k, m + j] for k in range(5) for j in range(-2, 3)) / 25
    sigma2 = sum((t[k, m] - T) ** 2 for k in range(5)) / 4
    tau2 = 5 * sum((sum(t[k, m + j] for k in range(5)) / 5 - T) ** 2 for j in range(-2, 3)) / 4
    metric = window_error(v, t)
    assert (metric.epoch, metric.value) == (m, pytest.approx(T))
    assert metric.stderr**2 == pytest.approx(sigma2 / 5 + tau2 / 25)


def test_pseudo_values_of_a_mean_are_the_folds() -> None:
    curve = RNG.normal(0.1, 0.01, (5, 1))
    assert pseudo_values(lambda errors: float(errors.mean()), curve) == pytest.approx(curve[:, 0])


def test_pseudo_values_are_fold_values_if_the_epoch_is_stable() -> None:
    curves = RNG.normal(0.1, 0.001, (5, 9))
    curves[:, 6] -= 0.05
    assert min_over_epochs(curves).folds == pytest.approx(curves[:, 6])


def test_pseudo_values_reflect_a_change_of_epoch() -> None:
    """Three folds and two epochs with means 0.2 and 0.21; without the first fold, the second epoch is better."""
    curves = np.array([[0.1, 0.31], [0.25, 0.16], [0.25, 0.16]])
    without = [0.16, min(0.175, 0.235), min(0.175, 0.235)]
    shares = [0.2 + 2 * (np.mean(without) - value) for value in without]
    assert min_over_epochs(curves).folds == pytest.approx(shares)
    assert np.mean(shares) == pytest.approx(0.2), "the mean remains the value, as in the paper"


def test_pseudo_values_combine_validation_and_test() -> None:
    v, t = RNG.uniform(0.1, 0.3, (2, 5, 12))
    metric = window_error(v, t)
    without = [window_error(np.delete(v, k, 0), np.delete(t, k, 0)).value for k in range(5)]
    assert np.mean(metric.folds) == pytest.approx(metric.value)
    assert stats.sem(metric.folds) == pytest.approx(2 * np.std(without)), "the jackknife's standard error"


@given(st.permutations(range(5)), st.floats(-0.05, 0.05))
def test_metric_ignores_fold_order_and_follows_shifts(order: list, shift: float) -> None:
    v, t = np.random.default_rng(1).uniform(0.1, 0.3, (2, 5, 12))
    for plain, other in (
        (min_over_epochs(t), min_over_epochs(t[order] + shift)),
        (window_error(v, t), window_error(v[order], t[order] + shift)),
    ):
        assert (other.value, other.epoch) == (pytest.approx(plain.value + shift), plain.epoch)
        assert other.stderr == pytest.approx(plain.stderr)


@pytest.mark.parametrize(
    ("curves", "message"),
    [
        (np.array([0.1, 0.2]), r"expected \[folds, epochs\]"),
        (np.empty((0, 3)), "one or more of each"),
        (np.array([[0.1, 0.2], [0.1, np.nan]]), "fold 1 has no finite error at epoch 1"),
    ],
)
def test_curves_without_a_metric_are_refused(curves: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        min_over_epochs(curves)


@pytest.mark.parametrize("width", [1, 4, 9])
def test_even_or_too_long_window_is_refused(width: int) -> None:
    with pytest.raises(ValueError, match="an odd window"):
        window_error(SMALL, SMALL, width=width)


def run(test: list[float | None], val: list[float] | None = None) -> list[EpochRow]:
    """Epochs from 1 on with these errors."""
    accuracies = [(None if error is None else 1 - error) for error in test]
    vals = [1 - error for error in val] if val else [None] * len(test)
    return [
        EpochRow(epoch=epoch, steps=epoch, lr=0.1, train_loss=1.0, val_accuracy=seen, test_accuracy=accuracy)
        for epoch, (seen, accuracy) in enumerate(zip(vals, accuracies, strict=True), start=1)
    ]


def test_arm_metric_uses_the_runs_curves_and_epoch_numbers() -> None:
    """Curves are cut to the shortest; epochs without a test are skipped."""
    t = RNG.uniform(0.1, 0.3, (3, 9))
    runs = [run([None, *map(float, errors)]) for errors in t]
    metric = arm_metric("min_error", [runs[0][:8], *runs[1:]])
    plain = min_over_epochs(t[:, :7])
    assert (metric.value, metric.stderr) == (pytest.approx(plain.value), pytest.approx(plain.stderr))
    assert metric.epoch == plain.epoch + 2, "the first tested epoch is 2"
    v = RNG.uniform(0.1, 0.3, (3, 9))
    watched = [run(list(errors), list(seen)) for errors, seen in zip(t, v, strict=True)]
    assert arm_metric("window_error", watched).value == pytest.approx(window_error(v, t).value)


@pytest.mark.parametrize(
    ("name", "runs", "message"),
    [
        ("min_error", [run([0.1]), run([None])], "min_error needs test curves, and a run has none"),
        ("window_error", [run([0.1] * 9)], "window_error needs val curves, and a run has none"),
        ("window_error", [run([0.1] * 4, [0.1] * 4)], "looks at five epochs, and a run has fewer"),
    ],
)
def test_runs_without_the_curves_have_no_metric(name: str, runs: list, message: str) -> None:
    with pytest.raises(NoCurves, match=message):
        arm_metric(name, runs)
