"""Without a published test set, ours differs from the paper's (decision 0031)."""

import dataclasses

from tests.claims.lines import claims, judge, results, trials


def test_unpublished_test_set_adds_sampling_error() -> None:
    """ISIC 2019 has no published test set; CIFAR-10 has."""
    errors = [0.2705 + step for step in (-1e-4, 1e-4, 0.0, 5e-5, -5e-5)]
    halves = {}
    for experiment, claim in (
        ("dac-isic2019", "dac.isic.r20.base"),
        ("dac-resnet-cifar10", "dac.table1.c10.v1.r20.base"),
    ):
        arm = claims()[claim].arm or ""
        curves = {arm: [[error] * 3 for error in errors]}
        lines = results(experiment, {arm: [1 - error for error in errors]}, curves=curves)
        (judgement,) = judge(dataclasses.replace(claims()[claim], stderr=None, n=None), entered=trials(lines))
        halves[experiment] = (judgement.verdict.high - judgement.verdict.low) / 2
    assert halves["dac-resnet-cifar10"] < 0.001
    drawn = (2 * 0.2705 * 0.7295 / 4223) ** 0.5  # two test sets of 4,223 pictures
    assert 1.6 < halves["dac-isic2019"] / drawn < 1.7
