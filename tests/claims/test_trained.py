"""Verdicts on trained models, kind by kind, from result lines with known numbers."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from stages.claims import Judgement, Trial
from stages.runs.evidence import EpochRow, Provenance, pack_correct
from stages.verdicts import Status, window_error
from tests.claims.lines import claims, judge, judge_all, params, results, trials

VIT = "ninformer.table2.mnist.vit"  # 0.9712, one run, margin 0.288 points
LEAD = "ninformer.rank.mnist.ninformer"  # NiNformer beats LocalViT by 0.0082
SPREAD = (0.0, 0.0004, -0.0004, 0.0002, -0.0002)
MNIST = {
    "vit": [0.9712 + step for step in SPREAD],
    "mlp-mixer": [0.9600 + step for step in SPREAD],
    "local-vit": [0.9779 + step for step in SPREAD],
    "ninformer": [0.9861 + step for step in SPREAD],
}


@pytest.mark.parametrize("other", [[0.1135] * 5, [0.30, 0.97, 0.60, 0.11, 0.85]], ids=["at-chance", "unstable"])
def test_other_arms_never_change_the_verdict_on_a_value(other: list[float]) -> None:
    alone, with_peer = (
        judge(claims()[VIT], entered=trials(results("ninformer-mnist", {"vit": MNIST["vit"]} | arms)))[0].verdict
        for arms in ({}, {"mlp-mixer": other})
    )
    assert alone == with_peer
    assert with_peer.spread == pytest.approx(np.std(MNIST["vit"], ddof=1)), "s is the arm's own"


def test_verdict_lists_its_runs_and_counts_their_cost_once() -> None:
    (lead,) = judge(claims()[LEAD], entered=trials(results("ninformer-mnist", MNIST)))
    assert [(entry.side, entry.arm, entry.replicate) for entry in lead.entries] == [
        *(("proposed", "ninformer", replicate) for replicate in range(5)),
        *(("baseline", "local-vit", replicate) for replicate in range(5)),
    ]
    assert [entry.value for entry in lead.entries] == [*MNIST["ninformer"], *MNIST["local-vit"]]
    assert lead.cost is not None
    assert lead.cost.device_seconds == 3600
    assert lead.cost.usd == pytest.approx(params().rates["cuda"].usd_per_hour)
    assert lead.cost.flops == 10 * 3 * 1e6 * 10 * 128, "runs × passes × FLOPs × steps × batch size"
    assert lead.cost.peak_memory_bytes == 2**30
    assert lead.cost.energy_joules == 700_000.0 * len(lead.entries)


def test_no_verdict_before_the_first_planned_analysis() -> None:
    short = {arm: values[:4] for arm, values in MNIST.items()}
    value, lead = judge(claims()[VIT], claims()[LEAD], entered=trials(results("ninformer-mnist", short)))
    assert (value.verdict.status, value.verdict.replicates_expected) == (Status.INCONCLUSIVE, 5)
    assert (lead.verdict.status, lead.verdict.n) == (Status.SUPPORTED, 3), "orders need three replicates"
    assert lead.verdict.size is not None and lead.verdict.size.status is Status.INCONCLUSIVE
    one = {arm: values[:1] for arm, values in MNIST.items()}
    value, lead = judge(claims()[VIT], claims()[LEAD], entered=trials(results("ninformer-mnist", one)))
    assert (value.verdict.status, lead.verdict.status) == (Status.INCONCLUSIVE, Status.UNRESOLVED)
    assert (value.verdict.n, value.verdict.low) == (1, None)


def test_missing_arm_leaves_its_claims_untested() -> None:
    lines = [line for line in results("ninformer-mnist", MNIST) if line.arm != "local-vit"]
    value, lead = judge(claims()[VIT], claims()[LEAD], entered=trials(lines))
    assert value.verdict.status is Status.REPRODUCED
    assert (lead.verdict.status, lead.verdict.explanation) == (Status.NOT_TESTED, "Not run yet.")


@pytest.mark.parametrize(
    ("profile", "provenance", "epochs"),
    [("smoke", "embedded", None), ("paper", "embedded", None), ("quick", "full", 3)],
)
def test_placeholder_data_and_very_short_runs_are_not_judged(
    profile: str, provenance: Provenance, epochs: int | None
) -> None:
    lines = results("ninformer-mnist", MNIST, profile=profile, provenance=provenance, epochs=epochs)
    every = [claim for claim in claims().values() if claim.experiment == "ninformer-mnist" and claim.kind != "count"]
    for judgement in judge(*every, entered=trials(lines)):
        assert judgement.verdict.status in (Status.NOT_TESTED, Status.OTHER_HARDWARE), judgement.claim.id
        assert judgement.ours is None and judgement.entries == ()


@pytest.mark.parametrize(("profile", "provenance", "epochs"), [("quick", "full", 30), ("paper", "subset", 100)])
def test_moderately_shortened_runs_indicate_orders_but_no_numbers(
    profile: str, provenance: Provenance, epochs: int
) -> None:
    lines = results("ninformer-mnist", MNIST, profile=profile, provenance=provenance, epochs=epochs)
    cut = [dataclasses.replace(line, spec=without_cut(line.spec)) for line in lines]
    value, lead = judge(claims()[VIT], claims()[LEAD], entered=trials(cut))
    assert value.verdict.status is Status.NOT_TESTED
    assert lead.verdict.status is Status.AGREES and lead.ours == pytest.approx(0.0082)
    assert len(lead.entries) == 10


def test_shortened_run_with_a_small_gap_indicates_nothing() -> None:
    close = {arm: [0.97 + 0.0002 * (arm == "ninformer")] * 5 for arm in MNIST}
    lines = results("ninformer-mnist", close, profile="paper", provenance="subset")
    _, lead = judge(claims()[VIT], claims()[LEAD], entered=trials(lines))
    assert lead.verdict.status is Status.NOT_TESTED and lead.ours == pytest.approx(0.0002)
    assert lead.verdict.explanation.endswith("Below 2 SD that is too close to say.")


def without_cut(spec: object) -> dict[str, object]:
    held = dict(spec)  # type: ignore[call-overload]
    return held | {"protocol": {name: value for name, value in held["protocol"].items() if name != "train_images"}}


def test_training_on_fewer_images_counts_as_fewer_epochs() -> None:
    lines = results("ninformer-mnist", MNIST, profile="quick", epochs=100)
    assert lines[0].spec["protocol"]["train_images"] == 12_500
    (lead,) = judge(claims()[LEAD], entered=trials(lines))
    assert lead.verdict.status is Status.NOT_TESTED, "12,500 of 60,000 images are 21 %"


def test_missing_test_rows_widen_the_interval() -> None:
    (whole,) = judge(claims()[VIT], entered=trials(results("ninformer-mnist", MNIST)))
    (part,) = judge(claims()[VIT], entered=trials(results("ninformer-mnist", MNIST, excluded=50)))
    assert part.verdict.high is not None and whole.verdict.high is not None
    assert part.verdict.high - whole.verdict.high == pytest.approx(0.005 * (1 - 0.9712))


@pytest.mark.parametrize("disagreement", [None, 0.3])
def test_missing_test_rows_widen_an_order_by_the_arms_disagreement(disagreement: float | None) -> None:
    (whole,) = judge(claims()[LEAD], entered=trials(results("ninformer-mnist", MNIST)))
    lines = results("ninformer-mnist", MNIST, excluded=50)
    if disagreement is not None:
        right = {"ninformer": np.arange(9950) >= disagreement * 9950, "local-vit": np.ones(9950, dtype=bool)}
        lines = [
            dataclasses.replace(line, correct=pack_correct(right[line.arm]) if line.arm in right else None)
            for line in lines
        ]
    (part,) = judge(claims()[LEAD], entered=trials(lines))
    assert part.verdict.high is not None and whole.verdict.high is not None
    widening = 0.005 * (1.0 if disagreement is None else disagreement)
    assert part.verdict.high - whole.verdict.high == pytest.approx(widening)
    assert part.verdict.p_value is not None and part.verdict.p_value > (whole.verdict.p_value or 0.0)


def test_times_are_compared_only_on_the_papers_device() -> None:
    (ratio,) = judge(claims()["ninformer.text.c10.time_vs_vit"], entered=trials(results("ninformer-cifar10", MNIST)))
    assert (ratio.verdict.status, ratio.is_decidable) == (Status.OTHER_HARDWARE, False)
    assert "RTX 2080 Ti" in ratio.verdict.explanation and "H100" in ratio.verdict.explanation


BASE, DAC, SHARED = "resnet20-v1", "dac-resnet20-v1", "shared-resnet20-v1"


def dac_lines(base: float, dac: float, shared: float, *, folds: int = 5, epochs: int = 9) -> list:
    """Return lines of folds with the lowest error at epoch 6; each fold has an offset that all arms share."""
    curves = {
        arm: [
            [level + 0.003 * fold + 0.0001 * ((fold * 7 + number) % 3) + 0.002 * abs(e - 5) for e in range(epochs)]
            for fold in range(folds)
        ]
        for number, (arm, level) in enumerate(((BASE, base), (DAC, dac), (SHARED, shared)))
    }
    values = {arm: [0.9] * folds for arm in curves}
    return results("dac-resnet-cifar10", values, curves=curves)


def test_lowest_fold_mean_over_epochs_is_compared_by_fold() -> None:
    ids = ("dac.table1.c10.v1.r20.base", "dac.table1.c10.v1.r20.order")
    base, order = judge(*(claims()[i] for i in ids), entered=trials(dac_lines(0.0804, 0.0764, 0.08)))
    assert base.ours == pytest.approx(0.0804 + 0.006 + 0.0001, abs=1e-4)
    assert [entry.value for entry in base.entries] == sorted(entry.value or 0 for entry in base.entries)
    assert (order.verdict.status, order.verdict.n) == (Status.SUPPORTED, 5)
    assert "shared folds" in order.verdict.explanation
    assert "for these training data, which the folds share; allowing for others: +" in order.verdict.explanation
    assert order.verdict.high is not None and order.verdict.high - (order.ours or 0) < 0.001, "offsets cancel"


def test_fold_after_the_last_complete_analysis_does_not_affect_the_epoch() -> None:
    """Three folds complete an analysis; the fourth is best at epoch 1 and would move the minimum there."""
    lines = dac_lines(0.08, 0.07, 0.08, folds=3)
    early = dac_lines(0.08, 0.07, 0.08, folds=4)[3::4]
    moved = [dataclasses.replace(line, curves=tuple(_early(row) for row in line.curves)) for line in early]
    claim = claims()["dac.table1.c10.v1.r20.base"]
    (three,), (four,) = (judge(claim, entered=trials(found)) for found in (lines, [*lines, *moved]))
    assert three.verdict.n == four.verdict.n == 3
    assert four.ours == pytest.approx(three.ours)


def _early(row: EpochRow) -> EpochRow:
    return dataclasses.replace(row, test_accuracy=0.99 if row.epoch == 1 else 0.1)


def test_mean_over_a_window_of_epochs_is_compared_by_fold() -> None:
    (shared,) = judge(claims()["dac.table3.c10.v1.abs"], entered=trials(dac_lines(0.08, 0.07, 0.0813)))
    assert shared.ours == pytest.approx(-0.0013, abs=2e-4)
    assert shared.verdict.status is Status.REPRODUCED, "the printed gain is negative, too"
    (ahead,) = judge(claims()["dac.table3.c10.v1.abs"], entered=trials(dac_lines(0.08, 0.07, 0.079)))
    assert ahead.verdict.status is not Status.REVERSED, "the claim states no order"


def test_share_of_another_arms_gain_is_untested_without_a_gain() -> None:
    (share,) = judge(claims()["dac.table3.c10.v1.rel"], entered=trials(dac_lines(0.08, 0.07, 0.0841)))
    assert share.ours == pytest.approx(-0.41, abs=0.02)
    assert share.verdict.status is Status.REPRODUCED
    (share,) = judge(claims()["dac.table3.c10.v1.rel"], entered=trials(dac_lines(0.08, 0.08, 0.0841)))
    assert share.verdict.status is Status.NOT_TESTED
    assert "not distinct from 0" in share.verdict.explanation


def test_curve_too_short_for_its_window_is_untested() -> None:
    (shared,) = judge(claims()["dac.table3.c10.v1.abs"], entered=trials(dac_lines(0.08, 0.07, 0.09, epochs=4)))
    assert shared.verdict.status is Status.NOT_TESTED
    assert "five epochs" in shared.verdict.explanation


def test_nats_per_byte_are_not_compared_with_nats_per_token() -> None:
    value, ratio = (claims()[f"nmn.gpt.valloss.{name}"] for name in ("gpt2", "rel"))
    losses = {"gpt2": [0.903, 0.901, 0.902], "aether-gpt": [0.801, 0.803, 0.802]}
    lines = results("nmn-gpt", losses, metric="validation_loss")
    apart, together = judge(value, ratio, entered=trials(lines))
    assert (apart.verdict.status, apart.is_decidable) == (Status.NOT_TESTED, False)
    assert together.ours == pytest.approx(1 - 0.802 / 0.902, abs=1e-6)


def test_table_is_judged_by_mean_gain_and_by_the_papers_count() -> None:
    ranks = [claim for claim in claims().values() if claim.family == "ninformer.table2"]
    lines = results("ninformer-mnist", MNIST)
    judged, tables = judge_all(ranks, trials(lines))
    table = tables["ninformer.table2"]
    assert (table.orders, table.tested, table.ahead) == (9, 3, 2)
    # The three orders lead stepwise from the first arm to the last, so their mean is a third of the total gain.
    assert table.gain == pytest.approx((0.9861 - 0.9712 + 0.9779 - 0.9779) / 3)
    assert table.text.startswith("Mean gain of 3 of 9 orders on 1 data set +")
    tally = next(judgement for judgement in judged if judgement.claim.id == "ninformer.rank")
    assert (tally.verdict.status, tally.ours) == (Status.REVERSED, 2), "9 of 9 is impossible with one reversed"
    assert "Ours: 2 supported, each at α; 1 reversed, each at α/9." in tally.verdict.explanation


def figure_6(differences: Sequence[Sequence[float]], *, folds: int = 5) -> list:
    """Return lines of both ResNet experiments, with flat curves and DAC ahead by `differences` (by pair and fold).

    The pairs are in the order of Table 1.  Each baseline's error dips by 0.02 at one epoch, which is its minimum but
    hardly changes the mean of five epochs.
    """
    lines = []
    for experiment, rows in (("dac-resnet-cifar10", differences[:8]), ("dac-resnet-cifar100", differences[8:])):
        names = [f"resnet{depth}-{version}" for version in ("v1", "v2") for depth in (20, 32, 44, 56)]
        curves = {}
        for name, row in zip(names, rows, strict=True):
            levels = [0.2 + 0.003 * fold for fold in range(folds)]
            curves[name] = [[level - 0.02 * (epoch == 4) for epoch in range(9)] for level in levels]
            curves[f"dac-{name}"] = [[level - 0.004 - d] * 9 for level, d in zip(levels, row, strict=False)]
        lines += results(experiment, {arm: [0.8] * folds for arm in curves}, curves=curves)
    return lines


CLEAR, UNCLEAR = (0.010, 0.011, 0.009, 0.0105, 0.0095), (0.01, -0.009, 0.012, -0.008, 0.003)
TALLIES = ("dac.resnet.wins", "dac.resnet.significant")


def judge_figure_6(differences: Sequence[Sequence[float]], **more: int) -> dict[str, Judgement]:
    table = [claim for claim in claims().values() if claim.family == "dac.table1"]
    return {judged.claim.id: judged for judged in judge(*table, entered=trials(figure_6(differences, **more)))}


def test_figure_6_is_counted_in_its_own_metric() -> None:
    """DAC wins 15 of 16 comparisons, 9 of them significantly, although Table 1's metric favours every baseline."""
    against = [-d for d in UNCLEAR]
    found = judge_figure_6([*[CLEAR] * 9, *[UNCLEAR] * 6, against])
    wins, significant = (found[name] for name in TALLIES)
    assert (wins.verdict.status, wins.ours, wins.verdict.n) == (Status.REPRODUCED, 15, 5)
    assert (significant.verdict.status, significant.ours) == (Status.REPRODUCED, 9)
    assert (wins.basis, len(wins.entries)) == ("results", 2 * 16 * 5)
    orders = [judged for name, judged in found.items() if name not in TALLIES]
    assert len(orders) == 16 and all((judged.ours or 0) < 0 for judged in orders)


def test_count_is_untested_until_all_comparisons_are_complete() -> None:
    early = judge_figure_6([CLEAR] * 16, folds=3)
    for name in TALLIES:
        waiting = early[name]
        assert (waiting.verdict.status, waiting.ours, waiting.basis) == (Status.NOT_TESTED, None, "none")
        assert waiting.verdict.explanation.startswith("0 of 16 comparisons have 5 replicates")
    every = [claim for claim in claims().values() if claim.family == "dac.vgg"]
    vgg = {judged.claim.id: judged for judged in judge(*every)}["dac.vgg.significant"]
    assert vgg.verdict.explanation.startswith("0 of 4 comparisons have 5 replicates")


def test_figure_is_shown_once_it_has_results() -> None:
    figure = claims()["ninformer.fig3"]
    (nothing,) = judge(figure)
    (shown,) = judge(figure, entered=trials(results("ninformer-mnist", MNIST)))
    assert (nothing.verdict.status, shown.verdict.status) == (Status.NOT_TESTED, Status.SHOWN)
    assert not shown.is_decidable
    assert "5 results of ninformer-mnist; accuracy: ninformer 0.9861 (n = 5)" in shown.verdict.explanation
    both = [*results("ninformer-mnist", MNIST), *results("ninformer-cifar10", MNIST)]
    (of_two,) = judge(figure, entered=trials(both))
    each = "ninformer of ninformer-mnist 0.9861 (n = 5), ninformer of ninformer-cifar10 0.9861 (n = 5)."
    assert of_two.verdict.explanation.endswith(f"accuracy: {each}"), "experiments aren't averaged"


def test_quality_without_a_number_shows_both_arms() -> None:
    lines = results("brownian-cifar10", {"cg-fac": [0.71, 0.73], "sgd": [0.70, None]})
    (shown,) = judge(claims()["brownian.second_order_accuracy"], entered=trials(lines))
    assert shown.verdict.status is Status.SHOWN
    assert shown.verdict.explanation.endswith("accuracy: cg-fac 0.72 (n = 2), sgd 0.7 (n = 1).")


def test_results_of_another_protocol_decide_no_number() -> None:
    (old,) = judge(claims()[VIT], entered=trials(results("ninformer-mnist", MNIST), follows_plan=False))
    assert old.verdict.explanation.startswith("Real data under another protocol than params/ prints today;")


def test_order_reversed_only_at_full_alpha_does_not_reverse_a_tally() -> None:
    ranks = [claim for claim in claims().values() if claim.family == "ninformer.table2"]
    steps = [-0.001, 0.0, 0.001, 0.0005, -0.0005]
    levels = {"mlp-mixer": 0.971, "vit": 0.971 + 0.00168, "local-vit": 0.978, "ninformer": 0.986}
    lines = results("ninformer-mnist", {arm: [level + step for step in steps] for arm, level in levels.items()})
    judged, _ = judge_all(ranks, trials(lines))
    by_id = {judgement.claim.id: judgement.verdict for judgement in judged}
    (order,) = [one for one in by_id.values() if one.status is Status.REVERSED]
    assert order.p_value == pytest.approx(0.01, abs=0.002)
    assert by_id["ninformer.rank"].status is Status.UNRESOLVED


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


def accuracies(last: float, best: float) -> Judgement:
    """Judge a printed last-epoch accuracy on replicates that end at `last` and peak at `best`."""
    claim = claims()["ninformer.table2.c10.vit"]
    spread = [-0.002, -0.001, 0.0, 0.001, 0.002]
    lines = results("ninformer-cifar10", {"vit": [last + d for d in spread]})
    both = [
        dataclasses.replace(
            line,
            metrics=(*line.metrics, dataclasses.replace(line.metrics[0], metric="best_epoch_accuracy", value=best + d)),
        )
        for line, d in zip(lines, spread, strict=True)
    ]
    (judgement,) = judge(claim, entered=trials(both))
    return judgement


def test_verdict_by_another_metric_is_shown() -> None:
    printed = claims()["ninformer.table2.c10.vit"].value
    assert printed is not None
    judgement = accuracies(last=printed, best=printed + 0.05)
    (variant,) = judgement.variants
    assert judgement.verdict.status is Status.REPRODUCED
    assert (variant.metric, variant.status) == ("best_epoch_accuracy", Status.NOT_REPRODUCED)
    assert variant.ours is not None and abs(variant.ours - printed - 0.05) < 1e-9


def test_variant_equals_the_verdict_of_a_claim_with_that_metric() -> None:
    claim = claims()["ninformer.table2.c10.vit"]
    lines = results("ninformer-cifar10", {"vit": [0.598, 0.599, 0.6, 0.601, 0.602]}, metric="best_epoch_accuracy")
    (alone,) = judge(dataclasses.replace(claim, metric="best_epoch_accuracy"), entered=trials(lines))
    (variant,) = accuracies(last=0.5, best=0.6).variants
    assert alone.variants == (), "no result has the last epoch's accuracy"
    assert alone.verdict.status is variant.status
    assert (alone.verdict.low, alone.verdict.high) == pytest.approx((variant.low, variant.high))


def test_undecided_claim_has_no_variants() -> None:
    (judgement,) = judge(claims()["ninformer.table2.c10.vit"])
    assert judgement.verdict.status is Status.NOT_TESTED and judgement.variants == ()


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


ORDER, LEARNED = "hyperbf.obs.sigma_order.c10", "hyperbf.obs.sigma_learned"
MOTION = "brownian.trained.motion"
NEAR_TWO = (2.1, 2.2, 2.0, 2.15, 2.05)


def ran(
    claim: str,
    values: Sequence[float | None],
    *,
    metric: str | None = None,
    profile: str = "paper",
    provenance: Provenance = "full",
    epochs: int | None = None,
) -> list[Trial]:
    row = claims()[claim]
    lines = results(
        (row.experiment or "").replace("*", "cifar10"),
        {row.arm or "": values},
        metric=metric or row.metric,
        profile=profile,
        provenance=provenance,
        epochs=epochs,
    )
    return trials(lines)


def judged(claim: str, entered: Sequence[Trial]) -> Judgement:
    (judgement,) = judge(claims()[claim], entered=entered)
    return judgement


@pytest.mark.parametrize("claim", [ORDER, LEARNED])
@pytest.mark.parametrize(
    ("gaps", "status"),
    [
        (NEAR_TWO, Status.SUPPORTED),
        ([-gap for gap in NEAR_TWO], Status.REVERSED),
        ((0.5, -0.6, 0.4, -0.5, 0.1), Status.UNRESOLVED),
        ((2.1, None, 2.0, 2.15, 2.05), Status.UNRESOLVED),
        ((2.1, None, None, None, None), Status.UNRESOLVED),
        ((2.1, 2.2), Status.UNRESOLVED),
        ((1.0,) * 5, Status.UNRESOLVED),
    ],
)
def test_width_gap_is_on_one_side_of_its_bound(claim: str, gaps: Sequence[float | None], status: Status) -> None:
    judgement = judged(claim, ran(claim, gaps))
    assert (judgement.verdict.status, judgement.is_decidable) == (status, True), judgement.verdict.explanation
    assert judgement.basis == "results" and len(judgement.entries) == len(gaps)
    assert gaps is not NEAR_TWO or judgement.ours == pytest.approx(2.1), "the number itself"


@pytest.mark.parametrize(
    ("ratios", "status"),
    [
        ((1.02, 0.98, 1.01, 0.99, 1.0), Status.REPRODUCED),
        ((1.45, 1.40, 1.42, 1.44, 1.43), Status.REPRODUCED),
        ((3.1, 3.2, 3.0, 3.15, 3.05), Status.NOT_REPRODUCED),
        ((0.1, 0.12, 0.09, 0.11, 0.1), Status.NOT_REPRODUCED),
        ((0.6, 1.9, 1.2, 0.7, 1.6), Status.INCONCLUSIVE),
    ],
)
def test_displacement_ratio_must_be_within_half_of_one(ratios: Sequence[float], status: Status) -> None:
    judgement = judged(MOTION, ran(MOTION, ratios))
    assert judgement.verdict.status is status, judgement.verdict.explanation
    assert judgement.verdict.margin == 0.5
    assert judgement.verdict.prediction is None, "the paper gives no number for a run"
