"""Claims about a whole grid of arms: the mean gain over its pairs, and failed trainings."""

import dataclasses
import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np
import pytest
import scipy

from stages.claims.lines import Kind
from stages.claims.trials import NotMeasured, count_failed
from stages.runs.evidence import EvidenceLine, Measurement, ResultLine, read_lines
from stages.verdicts import Status
from tests.claims.lines import ROOT, claims, judge, params, results, trials

GAIN = "dac.sgemm.gain"
STEPS = (0.0, 0.01, -0.01, 0.005, -0.005)
WIDTHS = (18, 25, 35, 50, 71, 100, 141)
SLICE = tuple(f"{width}x5" for width in WIDTHS)


def grid(gain: float, pairs: tuple[str, ...] = SLICE) -> dict[str, list[float | None]]:
    """Return ln mse of base networks close to their size's level, and of DAC networks `gain` below."""
    levels = {size: -3 - number / 4 for number, size in enumerate(pairs)}
    base = {f"mlp-{size}": [level + step for step in STEPS] for size, level in levels.items()}
    dac = {f"dac-mlp-{size}": [level - gain - step for step in STEPS] for size, level in levels.items()}
    return {**base, **dac}  # type: ignore[dict-item]


def test_gain_is_the_mean_over_pairs_with_results() -> None:
    """Pyramids aren't pairs of Figure 4, and an arm without its partner is ignored."""
    values = grid(0.25) | grid(9.0, ("pyramid-50x5",)) | {"dac-mlp-100x8": [-99.0] * 5}
    (gain,) = judge(claims()[GAIN], entered=trials(results("dac-sgemm", values, metric="selected_log_mse")))
    assert gain.ours == pytest.approx(0.25)
    assert gain.verdict.status is Status.SUPPORTED
    assert gain.verdict.size is not None and gain.verdict.size.status is Status.INCONCLUSIVE, "28 pairs are missing"
    assert "It is of depth 5 with every width; depth 6, 8, 11 and 16 didn't run." in gain.verdict.explanation
    assert gain.verdict.explanation.endswith("so the whole grid isn't judged. Over 7 of 35 pairs of the grid.")
    assert len(gain.entries) == 2 * 7 * 5


def test_replicate_that_diverged_in_one_pair_counts_as_diverged() -> None:
    values = grid(0.25)
    values["dac-mlp-50x5"][4] = None
    (gain,) = judge(claims()[GAIN], entered=trials(results("dac-sgemm", values, metric="selected_log_mse")))
    assert gain.verdict.n_diverged == 1
    assert gain.verdict.status is Status.UNRESOLVED, "the leading arm diverged"


def test_training_fails_if_it_diverges_or_is_far_from_its_size() -> None:
    lines = results(
        "dac-sgemm", {"mlp-25x5": [0.01, 0.012, None, 0.2], "dac-mlp-25x5": [0.01] * 4}, metric="selected_mse"
    )
    base, dac = ([trial for trial in trials(lines) if trial.result.arm == arm] for arm in ("mlp-25x5", "dac-mlp-25x5"))
    assert count_failed(base, dac) == (2, 4)
    assert count_failed(dac, base) == (0, 4)
    with pytest.raises(NotMeasured, match="no result holds selected_mse"):
        count_failed(trials(results("dac-sgemm", {"mlp-25x5": [0.5]}, metric="accuracy")), [])


def whole_grid(failed_base: int) -> dict[str, list[float | None]]:
    arms = params().experiments["dac-sgemm"].arms
    values: dict[str, list[float | None]] = {arm: [0.01 + step / 1000 for step in STEPS] for arm in arms}
    for arm in [name for name in arms if name.startswith("mlp")][:failed_base]:
        values[arm][0] = None
    return values


def test_failures_are_counted_once_over_the_whole_grid() -> None:
    ids = ("dac.sgemm.fail.base", "dac.sgemm.fail.dac")
    lines = results("dac-sgemm", whole_grid(8), metric="selected_mse")
    base, dac = judge(*(claims()[i] for i in ids), entered=trials(lines))
    assert base.ours == 8
    assert "Ours 8 of 290 − the paper's 15 of 576" in base.verdict.explanation
    # Pairs only: 53 base arms have a DAC network of equal width.
    assert dac.verdict.status is Status.SUPPORTED
    assert "0 of 265 against 8 of 265" in dac.verdict.explanation
    few = judge(*(claims()[i] for i in ids), entered=trials([line for line in lines if line.replicate < 4]))
    assert [judgement.verdict.status for judgement in few] == [Status.NOT_TESTED] * 2
    assert "the test runs once, on all of them" in few[0].verdict.explanation and few[0].ours is None


def test_log_mse_is_averaged_on_the_log_scale() -> None:
    values = {"mlp-25x5": [math.log(0.01), math.log(0.04)] * 2, "dac-mlp-25x5": [math.log(0.01)] * 4}
    (gain,) = judge(claims()[GAIN], entered=trials(results("dac-sgemm", values, metric="selected_log_mse")))
    assert gain.ours == pytest.approx(math.log(4) / 3), "the first three of four replicates are a planned analysis"


def test_incomplete_depth_is_excluded() -> None:
    values = grid(0.25) | grid(0.90, ("50x8", "71x8"))
    (gain,) = judge(claims()[GAIN], entered=trials(results("dac-sgemm", values, metric="selected_log_mse")))
    assert gain.ours == pytest.approx(0.25)
    values |= grid(0.45, tuple(f"{width}x8" for width in WIDTHS))
    (gain,) = judge(claims()[GAIN], entered=trials(results("dac-sgemm", values, metric="selected_log_mse")))
    assert gain.ours == pytest.approx(0.35)
    assert "depth 5 and 8 with every width; depth 6, 11 and 16 didn't run" in gain.verdict.explanation


def test_pairs_without_a_complete_depth_decide_nothing() -> None:
    values = grid(0.25, ("25x5", "50x5", "50x8"))
    (gain,) = judge(claims()[GAIN], entered=trials(results("dac-sgemm", values, metric="selected_log_mse")))
    assert gain.ours == pytest.approx(0.25)
    assert gain.verdict.status is Status.UNRESOLVED
    assert gain.verdict.explanation.startswith("Of no width or depth has every pair run")


def test_pairs_from_two_machines_are_mentioned() -> None:
    here, there = (
        results("dac-sgemm", grid(0.25, sizes), metric="selected_log_mse", environment=where * 12)
        for sizes, where in ((SLICE[:3], "a"), (SLICE[3:], "b"))
    )
    (gain,) = judge(claims()[GAIN], entered=trials([*here, *there]))
    assert "They ran in 2 environments" in gain.verdict.explanation


def test_gain_without_an_interval_mentions_none() -> None:
    one = grid(0.25, ("25x5",))
    few = {arm: values[:2] for arm, values in grid(0.25).items()}
    for values in (one, few):
        (gain,) = judge(claims()[GAIN], entered=trials(results("dac-sgemm", values, metric="selected_log_mse")))
        assert gain.verdict.low is None and "interval" not in gain.verdict.explanation
        assert gain.verdict.explanation.endswith(f"Over {len(values) // 2} of 35 pairs of the grid.")


def uneven(low: float, high: float, depths: Sequence[int] = (5, 8)) -> dict[str, list[float | None]]:
    """Return gains that rise from `low` at the smallest width to `high` at the largest, with little noise per pair."""
    values: dict[str, list[float | None]] = {}
    for number, width in enumerate(WIDTHS):
        gain = low + (high - low) * number / (len(WIDTHS) - 1)
        for place, depth in enumerate(depths):
            values |= grid(gain + 0.004 * ((-1) ** (number + place)), (f"{width}x{depth}",))
    return values


@pytest.mark.parametrize(
    ("low", "high", "status"),
    [(0.25, 0.25, Status.REPRODUCED), (0.13, 0.31, Status.NOT_REPRODUCED), (0.23, 0.29, Status.INCONCLUSIVE)],
)
def test_uniform_gain_is_judged_once_on_the_whole_grid(low: float, high: float, status: Status) -> None:
    for depths, judged in (((5, 8), Status.INCONCLUSIVE), ((5, 6, 8, 11, 16), status)):
        lines = results("dac-sgemm", uneven(low, high, depths), metric="selected_log_mse")
        uniform, gain = judge(*(claims()[i] for i in ("dac.sgemm.uniform", GAIN)), entered=trials(lines))
        assert (uniform.verdict.status, uniform.basis, gain.verdict.status) == (judged, "results", Status.SUPPORTED)
        assert len(uniform.entries) == len(gain.entries) == 70 * len(depths)
        assert uniform.verdict.estimate == pytest.approx(high - low, abs=0.01)
    assert "of 35 pairs" not in uniform.verdict.explanation + gain.verdict.explanation


def test_gain_by_depth_has_its_error_from_widths() -> None:
    for high, status in ((0.2, Status.REPRODUCED), (0.4, Status.NOT_REPRODUCED)):
        values = uneven(0.2, 0.2, (5, 6, 8, 11, 16)) | uneven(high, high, (8,))
        (depth,) = judge(
            claims()["dac.sgemm.depth"], entered=trials(results("dac-sgemm", values, metric="selected_log_mse"))
        )
        assert depth.verdict.status is status
        assert "F(4, 24) = " in depth.verdict.explanation


def test_two_depths_leave_a_uniform_gain_open_and_show_every_width() -> None:
    """With seeds as the only error, these 14 pairs gave F(6, 112) = 13.8 and p = 4e-5 at the margin."""
    published = read_lines(ROOT / "data" / "evidence" / "dac-sgemm.jsonl", EvidenceLine)
    lines = [
        line.result for line in published if line.result.arm.endswith(("x5", "x8")) and "pyramid" not in line.result.arm
    ]
    uniform, depth = judge(*(claims()[i] for i in ("dac.sgemm.uniform", "dac.sgemm.depth")), entered=trials(lines))
    assert (uniform.verdict.status, depth.verdict.status) == (Status.INCONCLUSIVE, Status.INCONCLUSIVE)
    assert "Exactly alike: F(6, 6) = 6.5, p = 0.019." in uniform.verdict.explanation
    assert "Better at every width, on the part that ran." in uniform.verdict.explanation
    assert uniform.verdict.spread is not None
    gains, variance = [], uniform.verdict.spread**2 / 2
    for width in WIDTHS:
        means = {
            side: fmean(
                entry.value or 0.0 for entry in uniform.entries if entry.side == side and f"-{width}x" in entry.arm
            )
            for side in ("proposed", "baseline")
        }
        gains.append(means["baseline"] - means["proposed"])
    f = float(np.var(gains, ddof=1)) / variance
    assert scipy.stats.ncf.sf(f, 6, 6, 12 / 7 * 0.0625**2 / variance) == pytest.approx(0.11, abs=0.005)


@pytest.mark.parametrize("kind", ["gap", "equivalence", "value", "observed", "noise"])
def test_mean_over_a_grid_waits_for_every_model(kind: Kind) -> None:
    """Only orders and sizes of a gain are judged on whole slices."""
    base = None if kind in ("value", "observed", "noise") else claims()[GAIN].baseline_arm
    claim = dataclasses.replace(claims()[GAIN], kind=kind, baseline_arm=base, trials=4)
    (judged,) = judge(claim, entered=trials(results("dac-sgemm", grid(0.25), metric="selected_log_mse")))
    assert judged.verdict.status is Status.NOT_TESTED and judged.ours is None
    assert judged.verdict.explanation.endswith("only of 7 of the grid's 35 models; it is judged once all have run.")


def test_uniform_gain_needs_complete_slices() -> None:
    values = grid(0.25, ("25x5", "50x5", "50x8"))
    (uniform,) = judge(
        claims()["dac.sgemm.uniform"], entered=trials(results("dac-sgemm", values, metric="selected_log_mse"))
    )
    assert uniform.verdict.status is Status.NOT_TESTED
    assert uniform.verdict.explanation == "There are results, but of no width or depth has every pair run."


def sized(levels: dict[str, tuple[float, int]]) -> list[ResultLine]:
    """Return lines of arms with a level and a number of parameters."""
    values = {arm: [level + step for step in STEPS] for arm, (level, _) in levels.items()}
    return [
        dataclasses.replace(
            line, metrics=(*line.metrics, Measurement(metric="parameters", split="none", value=levels[line.arm][1]))
        )
        for line in results("dac-sgemm", values, metric="selected_log_mse")
    ]


LOW, HIGH = "dac.sgemm.crossover_low", "dac.sgemm.crossover_high"


def test_crossover_compares_networks_of_equal_depth_and_size() -> None:
    lines = sized(
        {
            "dac-mlp-18x5": (-4.3, 3223),
            "mlp-25x5": (-4.5, 3126),
            "mlp-25x8": (-9.0, 3126),
            "dac-mlp-25x5": (-4.6, 5876),
            "mlp-35x5": (-4.8, 5776),
            "dac-mlp-50x5": (-5.2, 21751),
            "mlp-71x5": (-5.1, 21940),
            "dac-mlp-141x5": (-5.5, 163984),
            "mlp-200x5": (-5.2, 165001),
            "mlp-141x5": (-9.0, 83050),
        }
    )
    low, high = judge(claims()[LOW], claims()[HIGH], entered=trials(lines))
    assert (low.verdict.status, high.verdict.status) == (Status.SUPPORTED, Status.SUPPORTED)
    assert (low.verdict.estimate, high.verdict.estimate) == (pytest.approx(-0.2), pytest.approx(0.3))
    assert {entry.arm for entry in high.entries} == {"dac-mlp-141x5", "mlp-200x5"}
    assert "2 of 4 pairs of one depth and size that ran with 10,000 parameters or fewer: 3,223, 5,876." in (
        low.verdict.explanation
    )
    assert low.verdict.explanation.endswith(" 10 of the 111 models of the grid ran.")
    assert low.verdict.size is None and low.basis == "results"


def test_opposite_crossover_is_reversed() -> None:
    lines = sized({"dac-mlp-18x5": (-4.6, 3223), "mlp-25x5": (-4.5, 3126)})
    low, high = judge(claims()[LOW], claims()[HIGH], entered=trials(lines))
    assert low.verdict.status is Status.REVERSED
    assert high.verdict.status is Status.NOT_TESTED
    assert "no two networks of one size have 100,000 parameters or more" in high.verdict.explanation
