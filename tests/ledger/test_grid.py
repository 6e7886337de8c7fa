"""Claims about a whole grid of arms: the mean gain over its pairs, and trainings that failed."""

from __future__ import annotations

import math

import pytest

from stages.ledger.measures import NotMeasured, count_failed
from stages.verdicts import Status
from tests.ledger.lines import claims, judge, params, results, trials

GAIN = "dac.sgemm.gain"
STEPS = (0.0, 0.01, -0.01, 0.005, -0.005)
WIDTHS = (18, 25, 35, 50, 71, 100, 141)
SLICE = tuple(f"{width}x5" for width in WIDTHS)


def grid(gain: float, pairs: tuple[str, ...] = SLICE) -> dict[str, list[float | None]]:
    """Ln mse of base networks near their size's level, and of DAC networks `gain` below."""
    levels = {size: -3 - number / 4 for number, size in enumerate(pairs)}
    base = {f"mlp-{size}": [level + step for step in STEPS] for size, level in levels.items()}
    dac = {f"dac-mlp-{size}": [level - gain - step for step in STEPS] for size, level in levels.items()}
    return {**base, **dac}  # type: ignore[dict-item]


def test_a_gain_is_the_mean_over_the_pairs_that_have_results() -> None:
    lines = results("dac-sgemm", grid(0.25), metric="selected_log_mse")
    (gain,) = judge(claims()[GAIN], entered=trials(lines))
    assert gain.ours == pytest.approx(0.25)
    assert gain.verdict.status is Status.SUPPORTED
    assert gain.verdict.size is not None and gain.verdict.size.status is Status.INCONCLUSIVE, "28 pairs are missing"
    assert "It is of depth 5 with every width; depth 6, 8, 11 and 16 didn't run." in gain.verdict.explanation
    assert gain.verdict.explanation.endswith("nothing is said of the whole grid. Over 7 of 35 pairs of the grid.")
    assert len(gain.entries) == 2 * 7 * 5


def test_pyramids_are_no_pairs_of_figure_4() -> None:
    values = grid(0.25) | grid(9.0, ("pyramid-50x5",))
    (gain,) = judge(claims()[GAIN], entered=trials(results("dac-sgemm", values, metric="selected_log_mse")))
    assert gain.ours == pytest.approx(0.25)


def test_an_arm_without_its_partner_enters_nothing() -> None:
    values = grid(0.25) | {"dac-mlp-100x8": [-99.0] * 5}
    (gain,) = judge(claims()[GAIN], entered=trials(results("dac-sgemm", values, metric="selected_log_mse")))
    assert gain.ours == pytest.approx(0.25)
    assert "dac-mlp-100x8" not in {entry.arm for entry in gain.entries}


def test_a_replicate_that_diverged_in_one_pair_is_lost_to_the_mean() -> None:
    values = grid(0.25)
    values["dac-mlp-50x5"][4] = None
    (gain,) = judge(claims()[GAIN], entered=trials(results("dac-sgemm", values, metric="selected_log_mse")))
    assert gain.verdict.n_diverged == 1
    assert gain.verdict.status is Status.UNRESOLVED, "the arm ahead has it"


def test_a_training_failed_when_it_diverged_or_is_far_from_its_size() -> None:
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
    # Pairs alone: 53 base arms have a DAC network of their own width.
    assert dac.verdict.status is Status.SUPPORTED
    assert "0 of 265 against 8 of 265" in dac.verdict.explanation
    few = judge(*(claims()[i] for i in ids), entered=trials([line for line in lines if line.replicate < 4]))
    assert [judgement.verdict.status for judgement in few] == [Status.NOT_TESTED] * 2
    assert "the test looks once, at all of them" in few[0].verdict.explanation and few[0].ours is None


def test_log_mse_is_averaged_as_a_logarithm() -> None:
    values = {"mlp-25x5": [math.log(0.01), math.log(0.04)] * 2, "dac-mlp-25x5": [math.log(0.01)] * 4}
    (gain,) = judge(claims()[GAIN], entered=trials(results("dac-sgemm", values, metric="selected_log_mse")))
    assert gain.ours == pytest.approx(math.log(4) / 3), "the first three of four replicates are a planned look"


def test_a_begun_depth_waits_until_it_is_whole() -> None:
    values = grid(0.25) | grid(0.90, ("50x8", "71x8"))
    (gain,) = judge(claims()[GAIN], entered=trials(results("dac-sgemm", values, metric="selected_log_mse")))
    assert gain.ours == pytest.approx(0.25)
    values |= grid(0.45, tuple(f"{width}x8" for width in WIDTHS))
    (gain,) = judge(claims()[GAIN], entered=trials(results("dac-sgemm", values, metric="selected_log_mse")))
    assert gain.ours == pytest.approx(0.35)
    assert "depth 5 and 8 with every width; depth 6, 11 and 16 didn't run" in gain.verdict.explanation


def test_pairs_of_no_whole_depth_say_nothing_of_the_grid() -> None:
    values = grid(0.25, ("25x5", "50x5", "50x8"))
    (gain,) = judge(claims()[GAIN], entered=trials(results("dac-sgemm", values, metric="selected_log_mse")))
    assert gain.ours == pytest.approx(0.25)
    assert gain.verdict.status is Status.UNRESOLVED
    assert gain.verdict.explanation.startswith("Of no width or depth has every pair run")


def test_a_whole_grid_is_judged_as_one() -> None:
    known = params().experiments["dac-sgemm"].arms
    sizes = tuple(arm.removeprefix("dac-mlp-") for arm in known if arm.startswith("dac-mlp-"))
    whole = {arm: row for number, size in enumerate(sizes) for arm, row in grid(0.1 + number / 90, (size,)).items()}
    (gain,) = judge(claims()[GAIN], entered=trials(results("dac-sgemm", whole, metric="selected_log_mse")))
    assert gain.verdict.status is Status.SUPPORTED and "pairs of the grid" not in gain.verdict.explanation


def test_pairs_that_ran_on_two_machines_are_mentioned() -> None:
    here, there = (
        results("dac-sgemm", grid(0.25, sizes), metric="selected_log_mse", environment=where * 12)
        for sizes, where in ((SLICE[:3], "a"), (SLICE[3:], "b"))
    )
    (gain,) = judge(claims()[GAIN], entered=trials([*here, *there]))
    assert "They ran in 2 environments" in gain.verdict.explanation


def test_what_has_no_interval_says_nothing_of_one() -> None:
    one = grid(0.25, ("25x5",))
    few = {arm: values[:2] for arm, values in grid(0.25).items()}
    for values in (one, few):
        (gain,) = judge(claims()[GAIN], entered=trials(results("dac-sgemm", values, metric="selected_log_mse")))
        assert gain.verdict.low is None and "interval" not in gain.verdict.explanation
        assert gain.verdict.explanation.endswith(f"Over {len(values) // 2} of 35 pairs of the grid.")
