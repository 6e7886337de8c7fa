"""Several labs judged together: each lab's mean takes the place of a replicate."""

import dataclasses
from collections.abc import Sequence

import pytest

from stages.claims import ClaimLine, Judgement, gather, judge_labs
from stages.claims.kinds import Facts
from stages.runs.evidence import Trial
from stages.verdicts import Status, anytime
from stages.verdicts.intervals import t_quantile
from tests.claims.lines import ORIGIN, claims, params, reseed, results, trials

VIT = "ninformer.table2.mnist.vit"  # 0.9712, one run, margin 0.288 points
LEAD = "ninformer.rank.mnist.ninformer"  # NiNformer beats LocalViT by 0.0082
STEPS = (0.0, 0.0004, -0.0004, 0.0002, -0.0002)


def lab(
    name: str,
    published: str,
    *,
    experiment: str = "ninformer-mnist",
    has_own_seeds: bool = True,
    **arms: Sequence[float | None],
) -> list[Trial]:
    lines = results(experiment, {arm.replace("_", "-"): values for arm, values in arms.items()})
    found = trials([reseed(line, name) for line in lines] if has_own_seeds else lines)
    origin = dataclasses.replace(ORIGIN, lab=name, published=published)
    return [dataclasses.replace(trial, origin=origin) for trial in found]


def gains(*of_labs: float) -> list[list[Trial]]:
    return [
        lab(f"lab-{9 - day}", f"2026-01-0{day}", local_vit=[0.5] * 5, ninformer=[0.5 + gain + step for step in STEPS])
        for day, gain in enumerate(of_labs, start=1)
    ]


def judge(claim: str | ClaimLine, labs: Sequence[Sequence[Trial]]) -> Judgement:
    groups = gather(params(), [trial for own in labs for trial in own])
    facts = Facts(claims=[], params=params(), groups=groups, with_power=False)
    found = judge_labs(claims()[claim] if isinstance(claim, str) else claim, facts)
    assert found is not None
    return found


def test_interval_of_equally_precise_labs_is_hartung_and_knapps() -> None:
    """The error is that of statsmodels 0.15: combine_effects([.1, .2, .4], [v] * 3).sd_eff_w_re_hksj, at any v."""
    verdict = judge(LEAD, gains(0.1, 0.2, 0.4)).verdict
    assert verdict.estimate == pytest.approx(0.7 / 3) and verdict.n == 3 and verdict.confidence == pytest.approx(0.95)
    half = anytime.half_width(3 * 0.08819171036881969**2, 3, 1 / 3, 0.025)
    assert verdict.high - verdict.estimate == pytest.approx(half)
    assert verdict.status is Status.UNRESOLVED
    assert verdict.explanation.endswith("The interval holds at any number of labs.")
    assert judge(LEAD, gains(0.1, 0.11, 0.12, 0.13, 0.1)).verdict.status is Status.SUPPORTED


def test_labs_count_as_soon_as_they_complete_the_plan_in_any_order() -> None:
    four = gains(0.1, 0.11, 0.12, -0.9)
    judged = judge(LEAD, four).verdict
    assert judged.n == 4 and judged.low == pytest.approx(judge(LEAD, four[::-1]).verdict.low)
    two = judge(LEAD, four[:2]).verdict
    assert (two.status, two.n, two.low) == (Status.UNRESOLVED, 2, None)


def test_labs_that_share_folds_say_so() -> None:
    """Their means don't vary with the training data, so no number of labs shows how much these matter."""
    claim = dataclasses.replace(claims()["dac.table1.c10.v1.r20.order"], metric="accuracy", better="higher")
    found = [
        lab(
            f"lab-{day}", f"2026-01-0{day}", experiment="dac-resnet-cifar10", resnet20_v1=[0.5] * 5, dac_resnet20_v1=own
        )
        for day, own in enumerate([[0.6 + step + day / 100 for step in STEPS] for day in range(3)])
    ]
    verdict = judge(claim, found).verdict
    assert verdict.n == 3
    assert verdict.explanation.endswith("It holds for these training data, which the labs share.")


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
    # the margin is a tenth of the error, so the paper's part counts 0.9² times at its upper end
    upper = anytime.half_width(between, 5, 1 / 5 + 0.9**2 * (between + within * 0.8) / between, 0.05)
    assert found.high is not None and found.high - found.estimate == pytest.approx(upper, rel=1e-4)
