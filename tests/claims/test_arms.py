"""A claim keeps each arm's selected epoch and standard error, and Figures 5 and 6 show all arms."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from stages.verdicts import Status, window_error
from tests.claims.lines import claims, judge, results, trials
from tests.claims.test_trained import BASE, DAC, SHARED, dac_lines


def figure(name: str, lines: list) -> tuple:
    (judged,) = judge(claims()[name], entered=trials(lines))
    assert judged.verdict.status is Status.SHOWN
    return judged.arms


def test_gain_keeps_each_arms_selected_epoch() -> None:
    (judged,) = judge(claims()["dac.table3.c10.v1.abs"], entered=trials(dac_lines(0.08, 0.07, 0.0813)))
    assert [(arm.arm, arm.role, arm.epoch, arm.epochs, arm.n) for arm in judged.arms] == [
        (SHARED, "ablation", 6, 9, 5),
        (BASE, "baseline", 6, 9, 5),
    ]


def test_figure_6_uses_the_metric_of_appendix_b_with_intervals() -> None:
    lines = dac_lines(0.08, 0.07, 0.0813)
    base, dac = figure("dac.fig6", lines)
    assert (base.arm, dac.arm) == (BASE, DAC), "the figure omits the ablation"
    curves = np.array([[1 - (row.test_accuracy or 0) for row in line.curves] for line in lines if line.arm == BASE])
    chosen = window_error(curves, curves)
    assert (base.value, base.stderr, base.epoch) == (chosen.value, chosen.stderr, chosen.epoch + 1)
    half = stats.t.ppf(0.975, 4) * np.std(chosen.folds, ddof=1) / 5**0.5
    assert (base.low, base.high) == pytest.approx((base.value - half, base.value + half))
    assert (base.flops, dac.experiment) == (1e6, "dac-resnet-cifar10")


def test_figure_5_omits_an_arm_with_a_single_fold() -> None:
    curves = {"vgg20-16": [[0.2, 0.1, 0.1, 0.1, 0.1, 0.11]] * 5, "dac-vgg20-16": [[0.2, 0.1, 0.1, 0.1, 0.1, 0.1]]}
    lines = results("dac-vgg-cifar10", {arm: [0.9] * len(rows) for arm, rows in curves.items()}, curves=curves)
    assert [arm.arm for arm in figure("dac.fig5", lines)] == ["vgg20-16"]


def test_shortened_runs_add_no_arm_to_a_figure() -> None:
    """Only the best results of each experiment are drawn."""
    short = [
        dataclasses.replace(line, profile="quick", run_key=f"{line.run_key[:-1]}0") for line in dac_lines(0.2, 0.2, 0.2)
    ]
    both = trials([*short, *dac_lines(0.08, 0.07, 0.0813)])
    (judged,) = judge(claims()["dac.fig6"], entered=both)
    assert [(arm.arm, round(arm.value, 2)) for arm in judged.arms] == [(BASE, 0.09), (DAC, 0.08)]
