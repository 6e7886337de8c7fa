"""Several labs judged together: each lab's mean takes the place of a replicate."""

import dataclasses
from collections.abc import Sequence

import pytest

from stages.claims import Judgement, gather, judge_labs
from stages.claims.kinds import Facts
from stages.runs.evidence import Trial
from stages.verdicts import Status
from stages.verdicts.intervals import t_quantile
from tests.claims.lines import ORIGIN, claims, params, reseed, results, trials

VIT = "ninformer.table2.mnist.vit"  # 0.9712, one run, margin 0.288 points
LEAD = "ninformer.rank.mnist.ninformer"  # NiNformer beats LocalViT by 0.0082
STEPS = (0.0, 0.0004, -0.0004, 0.0002, -0.0002)


def lab(name: str, published: str, *, has_own_seeds: bool = True, **arms: Sequence[float | None]) -> list[Trial]:
    lines = results("ninformer-mnist", {arm.replace("_", "-"): values for arm, values in arms.items()})
    found = trials([reseed(line, name) for line in lines] if has_own_seeds else lines)
    origin = dataclasses.replace(ORIGIN, lab=name, published=published)
    return [dataclasses.replace(trial, origin=origin) for trial in found]


def gains(*of_labs: float) -> list[list[Trial]]:
    return [
        lab(f"lab-{9 - day}", f"2026-01-0{day}", local_vit=[0.5] * 5, ninformer=[0.5 + gain + step for step in STEPS])
        for day, gain in enumerate(of_labs, start=1)
    ]


def judge(claim: str, labs: Sequence[Sequence[Trial]]) -> Judgement:
    groups = gather(params(), [trial for own in labs for trial in own])
    facts = Facts(claims=[], params=params(), findings={}, groups=groups, devices={}, with_power=False)
    found = judge_labs(claims()[claim], facts)
    assert found is not None
    return found


def test_interval_of_equally_precise_labs_is_hartung_and_knapps() -> None:
    """The error is that of statsmodels 0.15: combine_effects([.1, .2, .4], [v] * 3).sd_eff_w_re_hksj, at any v."""
    verdict = judge(LEAD, gains(0.1, 0.2, 0.4)).verdict
    assert verdict.estimate == pytest.approx(0.7 / 3) and verdict.n == 3 and verdict.confidence == pytest.approx(0.99)
    assert verdict.high - verdict.estimate == pytest.approx(0.08819171036881969 * t_quantile(2, 0.005))
    assert verdict.status is Status.UNRESOLVED
    assert judge(LEAD, gains(0.1, 0.11, 0.12, 0.3, 0.1)).verdict.status is Status.SUPPORTED


def test_labs_are_judged_at_planned_numbers_in_the_order_of_their_publication() -> None:
    """The fourth lab to complete the plan waits for the fifth, whatever the order of the files."""
    three, four = gains(0.1, 0.11, 0.12), gains(0.1, 0.11, 0.12, -0.9)
    assert judge(LEAD, four[::-1]).verdict.low == judge(LEAD, three).verdict.low
    early, *rest = lab("slow", "2026-03-01", local_vit=[0.5] * 5, ninformer=[0.9] * 5)
    early = dataclasses.replace(early, origin=dataclasses.replace(ORIGIN, lab="slow", published="2025-12-01"))
    assert judge(LEAD, [[early, *rest], *three]).verdict.low == judge(LEAD, three).verdict.low, "complete last"
    two = judge(LEAD, three[:2]).verdict
    assert (two.status, two.n, two.low) == (Status.UNRESOLVED, 2, None)


def test_lab_that_is_not_done_does_not_count_and_one_that_diverged_confirms_nothing() -> None:
    short = lab("late", "2026-01-01", local_vit=[0.5] * 5, ninformer=[0.9] * 4)
    assert judge(LEAD, [short, *gains(0.1, 0.2)]).verdict.n == 2
    diverged = lab("bad", "2026-01-01", local_vit=[0.5] * 5, ninformer=[0.6, None, 0.6, 0.6, 0.6])
    assert judge(VIT, [lab("bad", "", vit=[0.9, None, None, None, None])]).verdict.n == 1
    verdict = judge(LEAD, [diverged, *gains(0.1, 0.11, 0.12, 0.13)]).verdict
    assert (verdict.status, verdict.n_diverged, verdict.n) == (Status.UNRESOLVED, 1, 5)


def test_labs_with_the_same_seeds_count_once() -> None:
    """They share initial weights and the order of the rows, so their means differ less than other labs' means."""
    arms = {"local_vit": [0.5] * 5, "ninformer": [0.6 + step for step in STEPS]}
    planned = [lab(f"lab-{day}", f"2026-02-0{day}", has_own_seeds=False, **arms) for day in (1, 2, 3)]
    assert judge(LEAD, [*planned, *gains(0.1, 0.11)]).verdict == judge(LEAD, [planned[0], *gains(0.1, 0.11)]).verdict
    assert judge(LEAD, planned).verdict.n == 1


def test_printed_value_is_one_more_lab_with_its_own_run() -> None:
    """Var D = S²/5 + S² + s² (1 − 1/5): S² of the labs' means, s² of a replicate; the paper ran once."""
    means = (0.970, 0.971, 0.972, 0.9705, 0.9715)
    labs = [lab(f"lab-{day}", f"2026-01-0{day}", vit=[mean + step for step in STEPS]) for day, mean in enumerate(means)]
    judged = judge(VIT, labs)
    between, within = 6.25e-7, 1e-7
    half = t_quantile(4, 0.025) * (between * 1.2 + within * 0.8) ** 0.5
    found, prediction = judged.verdict, judged.verdict.prediction
    assert judged.ours == pytest.approx(0.971) and found.n == 5 and prediction is not None
    assert prediction.high - judged.ours == pytest.approx(half)
    assert found.high is not None and found.high - found.estimate == pytest.approx(half, rel=0.1)  # at the margin's end
    waiting = judge(VIT, [*labs, lab("lab-6", "2026-02-01", vit=[0.9, 0.95, 0.99, 0.5, 0.7])]).verdict
    assert (waiting.low, waiting.high) == (found.low, found.high), "a lab that waits changes nothing"
