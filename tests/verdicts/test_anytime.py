"""Intervals that hold at any number of replicates: against other computations, and under continuous monitoring."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy

import claimcheck
from stages.params.experiment import load_params
from stages.params.schema import ParamsError
from stages.reported.command import main
from stages.rules import ANYTIME
from stages.verdicts import Status, anytime
from stages.verdicts.intervals import t_quantile
from stages.verdicts.value import Spread, df_of_printed
from tests.claims.lines import ROOT, copy_project
from tests.verdicts.simulation import above

ALPHA, TRIALS = 0.025, 8_000
NUMBERS = np.arange(2, 41)


def test_interval_is_that_of_savvi() -> None:
    """Radii of savvi 0.3.1, LinearRegression.calculate_conf_int, with phi = 0.1, nu = n − 1, z2 = n, s = 1."""
    for n, radius in ((5, 2.435999801317924), (10, 1.3277723186061123)):
        assert anytime.half_width(1.0, n, 1 / n, ALPHA) == pytest.approx(radius, rel=1e-9)
    assert anytime.half_width(1.0, 2, 1 / 2, ALPHA) == np.inf


@pytest.mark.parametrize(("n", "factor"), [(4, 1 / 4), (10, 1 / 10), (8, 1 / 8 + 1), (20, 1 / 20 + 1 / 3)])
def test_bayes_factor_at_the_end_of_the_interval_is_that_of_a_numerical_integral(n: int, factor: float) -> None:
    """Mixes noncentral t densities over the prior; half of the mixture bounds the error of one side."""
    t = float(anytime.half_width(1 / factor, n, factor, ALPHA))
    effects, step = np.linspace(-16, 16, 1601, retstep=True)
    prior = scipy.stats.norm.pdf(effects, scale=anytime.PRECISION**-0.5)
    likelihood = scipy.stats.nct.pdf(t, n - 1, effects / factor**0.5) / scipy.stats.t.pdf(t, n - 1)
    against, towards = (2 * float(np.nansum(part) * step) for part in np.split(likelihood * prior, [800]))
    assert (against + towards) / 2 == pytest.approx((1 + ALPHA) / (2 * ALPHA), rel=1e-3)
    assert towards >= 0.999 / ALPHA and against <= 1
    assert anytime.p_value(t, n, factor) == pytest.approx(2 * ALPHA, rel=1e-6)


def errors(half: Callable[[np.ndarray, int], np.ndarray], paper: np.ndarray | float = 0.0) -> tuple[float, float]:
    """Return how often the mean of normal runs, minus `paper`, ever leaves ± half(s², n), below and above.

    Runs are monitored after each from the second to the fortieth.
    """
    runs = np.random.default_rng(5).normal(size=(TRIALS, int(NUMBERS[-1])))
    below, beyond = np.zeros(TRIALS, bool), np.zeros(TRIALS, bool)
    for n in NUMBERS.tolist():
        distance, width = runs[:, :n].mean(axis=1) - paper, half(runs[:, :n].var(axis=1, ddof=1), n)
        below |= distance < -width
        beyond |= distance > width
    return float(below.mean()), float(beyond.mean())


def spread(s2: np.ndarray, n: int, stderr: float | None, runs: float | None) -> Spread:
    return Spread(s2=s2, df=n - 1.0, n=n, stderr=stderr, paper_n=runs, is_anytime=True)  # type: ignore[arg-type]


def test_mean_under_continuous_monitoring_keeps_its_level_and_students_does_not() -> None:
    kept = errors(lambda s2, n: anytime.half_width(s2, n, 1 / n, ALPHA))
    assert ALPHA / 4 < max(kept) <= above(ALPHA, TRIALS)
    broken = errors(lambda s2, n: t_quantile(n - 1, ALPHA) * (s2 / n) ** 0.5)
    assert min(broken) > 0.1


@pytest.mark.parametrize("runs", [1, 5])
def test_distance_from_a_number_without_error_keeps_its_level(runs: int) -> None:
    """The paper's number is the mean of `runs` runs with our unknown spread."""
    paper = np.random.default_rng(6).normal(size=TRIALS) / runs**0.5
    assert max(errors(lambda s2, n: spread(s2, n, None, runs).half(n, ALPHA), paper)) <= above(ALPHA, TRIALS)


def test_distance_from_a_number_with_its_own_error_keeps_its_level() -> None:
    drawn = 3 * np.random.default_rng(7).normal(size=(TRIALS, 5))
    stderr = drawn.std(axis=1, ddof=1) / 5**0.5
    assert df_of_printed(5) == 4

    def half(s2: np.ndarray, n: int) -> np.ndarray:
        return np.asarray(spread(s2, n, 1.0, 5).half(n, ALPHA) + t_quantile(4, ALPHA / 2) * (stderr - 1))

    assert max(errors(half, drawn.mean(axis=1))) <= above(ALPHA, TRIALS)


RUNS = [0.971, 0.974, 0.969, 0.973, 0.972, 0.970, 0.974, 0.971]
OTHERS = [0.951, 0.949, 0.952, 0.955, 0.950, 0.953, 0.948, 0.951]
RULES = claimcheck.RULES_ANYTIME
JUDGES: dict[str, Callable[[int], claimcheck.ReportedVerdict]] = {
    "value": lambda n: claimcheck.value(printed="97.5 ± 0.2 %", n=5, ours=RUNS[:n], rules=RULES),
    "order": lambda n: claimcheck.order(RUNS[:n], OTHERS[:n], better="higher", printed="2.5 %", rules=RULES),
    "gap": lambda n: claimcheck.gap(RUNS[:n], OTHERS[:n], better="higher", printed="2.5 %", rules=RULES),
    "comparable": lambda n: claimcheck.comparable(OTHERS[:n], RUNS[:n], better="higher", rules=RULES),
}


@pytest.mark.parametrize("kind", JUDGES)
def test_every_judge_uses_all_replicates_and_says_that_its_interval_holds_at_any_number(kind: str) -> None:
    widths = []
    for n in (5, 6, 7, 8):
        found = JUDGES[kind](n)
        assert found.verdict.n == n and found.verdict.confidence in (0.9, 0.95)
        assert "The interval holds at any number of replicates." in found.verdict.explanation
        widths.append((found.verdict.high or 0) - (found.verdict.low or 0))
    assert widths[-1] < widths[0]


def test_order_at_any_time_compares_pairs() -> None:
    found = JUDGES["order"](8).verdict
    gains = np.array(RUNS) - np.array(OTHERS)
    half = float(anytime.half_width(gains.var(ddof=1), 8, 1 / 8, ALPHA))
    assert (found.status, found.high) == (Status.SUPPORTED, pytest.approx(gains.mean() + half))
    assert found.p_value == pytest.approx(anytime.p_value(gains.mean() / (gains.var(ddof=1) / 8) ** 0.5, 8, 1 / 8))


def test_too_few_replicates_have_no_interval_yet() -> None:
    rules = dataclasses.replace(RULES, alpha_outside=0.001)
    strict = claimcheck.order(RUNS[:3], OTHERS[:3], better="higher", rules=rules)
    assert strict.status is Status.UNRESOLVED and "no 99.9 % interval yet" in strict.verdict.explanation
    assert "any number" not in strict.verdict.explanation
    assert json.loads(json.dumps(strict.to_dict(), allow_nan=False))["low"] is None


def test_rules_file_declares_any_time_and_a_count_of_wins_refuses_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "claims.csv").write_text(
        "id,kind,metric,arm,baseline,printed\ngain,order,accuracy,ours,vit,\nwon,wins,accuracy,ours,vit,1 of 1\n",
        encoding="utf-8",
    )
    rows = [f"ours,{seed},{value}" for seed, value in enumerate(RUNS)]
    rows += [f"vit,{seed},{value}" for seed, value in enumerate(OTHERS)]
    (tmp_path / "results.csv").write_text(
        "\n".join(["arm,seed,accuracy", *rows, "ours,99,0.1"]) + "\n", encoding="utf-8"
    )
    rules = (
        (ROOT / "params.yaml").read_text(encoding="utf-8").replace("looks: {3: 0.2, 5: 0.4, 10: 0.4}", "looks: anytime")
    )
    (tmp_path / "rules.yaml").write_text(rules, encoding="utf-8")
    arguments = [str(tmp_path / name) for name in ("claims.csv", "results.csv")]
    assert main(["judge", *arguments, "--rules", str(tmp_path / "rules.yaml")]) == 1
    shown = capsys.readouterr().out
    assert "n = 8 pairs" in shown, "the seed that only one model has doesn't count"
    assert "The interval holds at any number of replicates." in shown
    assert "not judged: line 3: won: with `looks: anytime` wins can't be counted" in shown


def test_models_without_a_common_seed_cannot_be_compared_at_any_time() -> None:
    import pandas as pd

    claims = pd.DataFrame([{"id": "a", "kind": "order", "metric": "accuracy", "arm": "x", "baseline": "y"}])
    results = pd.DataFrame({"arm": list("xxxyyy"), "seed": range(6), "accuracy": [0.9, 0.8, 0.9, 0.7, 0.6, 0.7]})
    (problem,) = claimcheck.judge(claims, results, RULES).problems
    assert "no seed in common" in problem.why


def test_project_that_plans_its_replicates_refuses_any_time(tmp_path: Path) -> None:
    copy_project(tmp_path)
    params = tmp_path / "params.yaml"
    params.write_text(
        params.read_text(encoding="utf-8").replace("looks: {3: 0.2, 5: 0.4, 10: 0.4}", "looks: anytime"),
        encoding="utf-8",
    )
    with pytest.raises(ParamsError, match="looks"):
        load_params(tmp_path)
    assert RULES.looks == ANYTIME
