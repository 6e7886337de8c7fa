"""Documented error rates of orders with skewed noise and with folds; `test_tunnel` covers every judge."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from stages.verdicts import anytime
from stages.verdicts.intervals import combine, half_width, level, looks_of_plan, variance_of
from stages.verdicts.value import SKEWED
from tests.verdicts.simulation import RULES

DOCUMENT = Path(__file__).parents[2] / "docs" / "verdicts.md"
COLLAPSES = "one in ten collapses by 25 SD"
NOISE = {
    "normal": lambda rng, size: rng.normal(size=size),
    "Student's t, 5 df": lambda rng, size: rng.standard_t(5, size) / (5 / 3) ** 0.5,
    "exponential": lambda rng, size: rng.exponential(size=size) - 1,
    "log-normal": lambda rng, size: (np.exp(rng.normal(size=size)) - np.e**0.5) / ((np.e - 1) * np.e) ** 0.5,
    COLLAPSES: lambda rng, size: (rng.normal(size=size) + 2.5 - 25 * (rng.random(size) < 0.1)) / 57.25**0.5,
}
LOOKS = looks_of_plan(RULES.looks, 5)


def errors(noise: str, ratio: float, trials: int = 40_000) -> tuple[float, float]:
    """Return the share of decided orders between arms with equal means, and of those without a warning.

    One arm is `ratio` times as noisy as the other.
    """
    rng = np.random.default_rng(8)
    arms = [spread * NOISE[noise](rng, (trials, 5)) for spread in (ratio, 1.0)]
    false, silent = np.zeros(trials, bool), np.zeros(trials, bool)
    for n in LOOKS:
        s2 = [variance_of(arm[:, :n]) for arm in arms]
        variance, df = combine([(own / n, n - 1.0) for own in s2])
        gain = arms[0][:, :n].mean(axis=1) - arms[1][:, :n].mean(axis=1)
        half = half_width(variance, df, level(LOOKS, n, RULES.alpha_outside / 2))
        false |= np.abs(gain) > half
        silent |= np.abs(gain) > SKEWED * half
    return float(false.mean()), float(silent.mean())


def documented(row: str) -> list[float]:
    """Return the numbers in a row of `docs/verdicts.md`."""
    (line,) = (line for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {row} |"))
    return [float(cell) for cell in line.strip("| ").split("|")[1:]]


@pytest.mark.slow(hours=True)
@pytest.mark.parametrize("noise", NOISE)
def test_error_rates_of_orders_equal_the_documented_ones(noise: str) -> None:
    found = [100 * errors(noise, ratio)[0] for ratio in (1, 3, 10)]
    assert found == pytest.approx(documented(noise), abs=0.5)


@pytest.mark.parametrize("noise", ["exponential", "log-normal"])
def test_wrong_orders_under_skew_have_the_warning(noise: str) -> None:
    """At least nine in ten have it, and those without are rarer than the level."""
    for false, silent in (errors(noise, ratio) for ratio in (3, 10)):
        assert false > 0.09 and silent < 0.14 * false and silent < 0.03 < RULES.alpha_outside


def test_most_wrong_orders_by_rare_collapses_have_the_warning() -> None:
    shares = [round(100 * (1 - silent / false)) for false, silent in (errors(COLLAPSES, ratio) for ratio in (3, 10))]
    said = re.search(r"with collapses, (\d+) % and (\d+) %", DOCUMENT.read_text(encoding="utf-8"))
    assert said and shares == pytest.approx([*map(int, said.groups())], abs=1)


@pytest.mark.slow(hours=True)
@pytest.mark.parametrize(("row", "replicates"), [("one training per fold", 5), ("two trainings per fold", 10)])
def test_error_rates_of_folds_equal_the_documented_ones(row: str, replicates: int) -> None:
    """With a correlation of 1/5 between folds, as Nadeau and Bengio assume for five: plain, and corrected."""
    trials, rng, looks = 40_000, np.random.default_rng(10), looks_of_plan(RULES.looks, replicates)
    gains = 0.2**0.5 * rng.normal(size=(trials, 1)) + 0.8**0.5 * rng.normal(size=(trials, replicates))
    false = np.zeros((2, trials), bool)
    for n in looks:
        s2, mean = variance_of(gains[:, :n]), np.abs(gains[:, :n].mean(axis=1))
        alpha = level(looks, n, RULES.alpha_outside / 2)
        for kind, share in enumerate((1 / n, 1 / n + 1 / 4)):
            false[kind] |= mean > half_width(s2 * share, n - 1.0, alpha)
    assert [100 * wrong.mean() for wrong in false] == pytest.approx(documented(row), abs=0.5)


def test_interval_of_labs_holds_when_checked_after_each_lab_and_others_do_not() -> None:
    """Labs differ by up to twice the standard deviation of a replicate; intervals are at 95 %."""
    rng, trials = np.random.default_rng(3), 4_000
    names = (
        "for any number of labs, of their means",
        "t, of the labs' means",
        "Hartung–Knapp (DerSimonian–Laird)",
        "t, of all replicates as one lab's",
    )
    cover: dict[str, list[float]] = {name: [] for name in names}
    for n, between in itertools.product((3, 5, 10), (0.0, 0.5, 2.0)):
        missed = np.zeros((len(names), trials), bool)
        six = between * rng.normal(size=(trials, 6, 1)) + rng.normal(size=(trials, 6, n))
        for labs in range(2, 7):
            values = six[:, :labs]
            means, within = values.mean(axis=2), variance_of(values) / n
            weights = 1 / within
            centre = (weights * means).sum(axis=1, keepdims=True) / weights.sum(axis=1, keepdims=True)
            excess = (weights * (means - centre) ** 2).sum(axis=1) - (labs - 1)
            scale = weights.sum(axis=1) - (weights**2).sum(axis=1) / weights.sum(axis=1)
            weights = 1 / (within + np.maximum(0, excess / scale)[:, None])  # DerSimonian and Laird
            centre = (weights * means).sum(axis=1) / weights.sum(axis=1)
            hartung = (weights * (means - centre[:, None]) ** 2).sum(axis=1) / ((labs - 1) * weights.sum(axis=1))
            every = values.reshape(trials, -1)
            intervals = (
                (means.mean(axis=1), anytime.half_width(variance_of(means), labs, 1 / labs, 0.025)),
                (means.mean(axis=1), half_width(variance_of(means) / labs, labs - 1.0, 0.025)),
                (centre, half_width(hartung, labs - 1.0, 0.025)),
                (every.mean(axis=1), half_width(variance_of(every) / every.shape[1], every.shape[1] - 1.0, 0.025)),
            )
            for ever, (middle, half) in zip(missed, intervals, strict=True):
                ever |= np.abs(middle) > half
        for name, ever in zip(names, missed, strict=True):
            cover[name].append(100 * (1 - ever.mean()))
    assert min(cover[names[0]]) > 95
    for name, shares in cover.items():
        assert documented(name) == pytest.approx([min(shares)], abs=1.5), name
