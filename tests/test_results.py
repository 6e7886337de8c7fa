import csv
import io
import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from stages.recording.builder import record
from stages.results import (
    METRICS,
    ArmMetricRow,
    ArmRow,
    Claim,
    ExperimentComparison,
    Question,
    Result,
    ResultsUnavailable,
    UnknownDataset,
    UnknownExperiment,
    UnknownMetric,
    UnknownPaper,
    UnknownProfile,
    VerdictRow,
    VerdictRun,
    as_csv,
    compare,
    describe_fidelity,
    find_judged,
    open_results,
)
from stages.results.claims import pair_gains
from stages.results.comparison import t_interval
from stages.results.estimates import cut_of_all, cut_of_each
from stages.run import RunSpec
from stages.runs.evidence import EvidenceLine, ResultLine, read_lines, write_lines
from stages.verdicts import min_over_epochs, window_error
from stages.verdicts.intervals import wilson
from tests.claims.lines import claims, copy_project, params, publish, results
from tests.service.results_factory import add_results


def only(root: Path, **filters: str):
    with open_results(str(root / "data" / "results.db"))() as session:
        (comparison,) = compare(session, Question(**filters))
    return comparison


def test_t_interval_equals_a_hand_calculation() -> None:
    # half = 4.302653 / sqrt(3)
    assert t_interval(2.0, 1.0, 3) == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-6)


def test_models_are_compared_without_loading_whole_results(root: Path) -> None:
    """Results have long specs and environments, so a page would take twice as long with them."""
    loaded: list[Result] = []

    def note(result: Result, _context: object) -> None:
        loaded.append(result)

    event.listen(Result, "load", note)
    try:
        assert any(arm.run_keys for arm in only(root, experiment="ninformer-mnist").arms)
    finally:
        event.remove(Result, "load", note)
    assert not loaded


def test_wilson_interval_equals_a_hand_calculation() -> None:
    # Wilson (1927) for 8 of 10: (0.8 + 1.9207/10 ± ...) / 1.38415
    assert wilson(0.8, 10, 0.025) == pytest.approx((0.490162, 0.943318), abs=1e-5)


QUESTIONS = st.builds(
    Question,
    dataset=st.sampled_from([None, None, "cifar100"]),
    paper=st.sampled_from([None, "ninformer"]),
    experiment=st.sampled_from([None, None, "ninformer-cifar100"]),
    profile=st.sampled_from([None, "paper", "quick", "smoke"]),
    metric=st.sampled_from([None, "accuracy", "loss", "train_seconds"]),
    provenance=st.sampled_from([None, "embedded", "subset", "full"]),
)


@given(st.lists(QUESTIONS, min_size=2, max_size=4))
@settings(max_examples=10)
def test_comparisons_that_were_made_for_other_questions_change_no_answer(root: Path, asked: list[Question]) -> None:
    known: dict[object, ExperimentComparison] = {}
    with open_results(str(root / "data" / "results.db"))() as session:
        for question in asked:
            assert compare(session, question, known) == compare(session, question)


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_wilson_interval_is_within_0_and_1_and_contains_the_estimate(n: int, fraction: float) -> None:
    low, high = wilson(fraction, n, 0.025)
    assert -1e-12 <= low <= fraction + 1e-12
    assert fraction - 1e-12 <= high <= 1 + 1e-12


def test_three_replicates_have_mean_interval_and_difference(root: Path) -> None:
    comparison = only(root, dataset="mnist")
    vit = comparison.arms[0]
    assert (vit.arm, vit.role, vit.ours.n, vit.ours.n_test) == ("vit", "baseline", 3, 10_000)
    assert vit.ours.value == pytest.approx(0.9722)
    half = 4.302653 * 0.003 / math.sqrt(3)
    assert (vit.ours.low, vit.ours.high) == pytest.approx((0.9722 - half, 0.9722 + half), abs=1e-6)
    assert vit.printed is not None and vit.difference is not None
    assert (vit.printed.value, vit.printed.claim) == (0.9712, "ninformer.table2.mnist.vit")
    assert vit.difference.value == pytest.approx(0.001)
    assert (vit.rank_ours, vit.rank_printed) == (4, 4)
    assert comparison.order.of_ours == ("ninformer", "local-vit", "mlp-mixer", "vit")
    assert comparison.order.agrees is True
    assert comparison.label == "full-length training on official data (profile paper)"


def test_single_replicate_has_no_interval_with_a_reason(root: Path) -> None:
    ours = only(root, dataset="cifar100").arms[0].ours
    assert (ours.low, ours.high, ours.std) == (None, None, None)
    assert ours.interval_missing == "one replicate: an interval needs two"
    assert ours.population is not None and ours.value is not None
    assert ours.population.low < ours.value < ours.population.high


def test_epoch_selected_on_test_images_has_no_interval_for_new_images(root: Path) -> None:
    ours = only(root, dataset="cifar100", metric="best_epoch_accuracy").arms[0].ours
    assert ours.value is not None
    assert ours.population is None


def test_best_evidence_comes_first_and_a_profile_can_be_selected(root: Path) -> None:
    best = only(root, dataset="cifar100")
    assert (best.profile, best.provenance, best.profiles) == ("quick", "subset", ("quick", "smoke"))
    assert "3 of 100 epochs" in best.label and "not a verdict" in best.label
    pinned = only(root, dataset="cifar100", profile="smoke")
    assert (pinned.profile, pinned.provenance) == ("smoke", "embedded")
    missing = only(root, dataset="cifar100", profile="paper")
    assert (missing.profile, missing.label) == (None, "not run yet")
    assert [(arm.ours, arm.reason) for arm in missing.arms] == [(None, "not run yet under the profile paper")] * 4
    assert [arm.printed.value for arm in missing.arms if arm.printed] == [0.3487, 0.3916, 0.4161, 0.5378]


@pytest.mark.parametrize("metric", ["accuracy", "loss", "parameters", "inference_time", "min_error"])
def test_placeholder_numbers_are_never_shown_as_ours(root: Path, metric: str) -> None:
    comparison = only(root, dataset="cifar10", metric=metric)
    assert comparison.label.startswith("placeholder data: shows that the pipeline runs, says nothing about the claim")
    assert comparison.order.of_ours == () and comparison.order.agrees is None
    assert comparison.reason == "placeholder data: its number says nothing about the claim"
    for arm in comparison.arms:
        assert arm.run_keys, "its runs have their own numbers"
        assert (arm.ours, arm.reason) == (None, comparison.reason)
        assert (arm.difference, arm.rank_ours, arm.rank_printed) == (None, None, None)
        assert arm.ratio is None or arm.ratio.of_ours is None
        assert (arm.cost.latency_ratio, arm.cost.parameters) == (None, 2_143_588)


def test_latency_is_compared_with_the_first_baseline_on_the_same_device(root: Path) -> None:
    costs = {arm.arm: arm.cost for arm in only(root, dataset="mnist").arms}
    assert costs["vit"].latency_ratio == pytest.approx(1.0)
    assert costs["ninformer"].latency_ratio == pytest.approx(2.1e-4 / 1.4e-4)
    assert costs["ninformer"].latency_baseline == "vit"
    assert (costs["vit"].parameters, costs["vit"].flops_per_image) == (2_143_588, 2.85e8)


def test_costs_are_compared_by_ratio_to_the_baseline_and_not_ranked(root: Path) -> None:
    comparison = only(root, dataset="mnist", metric="inference_time")
    assert comparison.order.agrees is None
    proposed = comparison.arms[3]
    assert proposed.ratio is not None and proposed.ratio.baseline == "vit"
    assert proposed.ratio.of_ours == pytest.approx(2.1e-4 / 1.4e-4)
    assert proposed.ratio.of_printed == pytest.approx(135.00 / 141.62)
    assert (proposed.cost.latency_ratio, proposed.cost.printed_latency_ratio) == (
        proposed.ratio.of_ours,
        proposed.ratio.of_printed,
    )
    assert proposed.difference is None
    assert proposed.cost.latency_method == (
        "median of 10 batches of 128 after 3 uncounted ones, the device synchronised before and after each, "
        "on Some CPU, 2 threads"
    )
    assert only(root, dataset="mnist").arms[3].ratio is None


def test_costs_measured_at_two_revisions_have_no_ratio(own_root: Path) -> None:
    path = own_root / "data" / "evidence" / "ninformer-mnist.jsonl"
    lines = [
        replace(line, origin=replace(line.origin, revision="1" * 40)) if line.result.arm == "ninformer" else line
        for line in read_lines(path, EvidenceLine)
    ]
    path.write_bytes(write_lines(lines))
    record(own_root, "data/results.db")
    costs = {arm.arm: arm.cost for arm in only(own_root, dataset="mnist").arms}
    assert costs["local-vit"].latency_ratio == pytest.approx(1.8e-4 / 1.4e-4)
    assert costs["ninformer"].latency_ratio is None and costs["ninformer"].latency_seconds_per_sample == 2.1e-4
    ratios = {arm.arm: arm.ratio for arm in only(own_root, dataset="mnist", metric="train_seconds").arms}
    assert [ratio and ratio.of_ours for ratio in ratios.values()] == [1.0, 1.0, 1.0, None]


def test_unclaimed_metric_has_no_printed_values(root: Path) -> None:
    comparison = only(root, dataset="mnist", metric="loss")
    assert comparison.metric.better == "lower"
    assert [(arm.printed, arm.difference) for arm in comparison.arms] == [(None, None)] * 4
    assert [arm.rank_ours for arm in comparison.arms] == [4, 3, 2, 1]


def test_results_under_other_conditions_never_share_a_table(own_root: Path) -> None:
    lines = read_lines(own_root / "data" / "results" / "ninformer-cifar10.jsonl", ResultLine)

    def other(line: ResultLine) -> ResultLine:
        spec = {**line.spec, "protocol": {**line.spec["protocol"], "batch_size": 8}}
        return replace(line, spec=spec, run_key=RunSpec.from_dict(spec).run_key)

    changed = [other(line) if line.arm == "vit" else line for line in lines]
    (own_root / "data" / "results" / "ninformer-cifar10.jsonl").write_bytes(write_lines(changed))
    record(own_root, "data/results.db")
    runs = {arm.arm: arm.run_keys for arm in only(own_root, dataset="cifar10").arms}
    assert runs["vit"] == ()
    assert all(runs[name] for name in ("mlp-mixer", "local-vit", "ninformer"))


def test_diverged_replicate_is_counted_but_not_averaged(own_root: Path) -> None:
    (own_root / "data" / "evidence" / "ninformer-mnist.jsonl").unlink()
    add_results(own_root, "ninformer-mnist", "paper", "full", published="2026-11-02", diverged=("vit", 2))
    record(own_root, "data/results.db")
    ours = only(own_root, dataset="mnist").arms[0].ours
    assert (ours.n, ours.n_diverged) == (2, 1)


@pytest.mark.parametrize(
    ("filters", "error", "choices"),
    [
        ({"dataset": "cifar1000"}, UnknownDataset, "known: mnist, cifar10, cifar100"),
        ({"paper": "resnet"}, UnknownPaper, "known: ninformer"),
        (
            {"profile": "slow"},
            UnknownProfile,
            "known: smoke, quick-bfloat16, quick, thirty-bfloat16, paper-tf32, paper",
        ),
        ({"experiment": "vit"}, UnknownExperiment, "known: ninformer-mnist, ninformer-cifar10, ninformer-cifar100"),
        ({"metric": "acc"}, UnknownMetric, "known: accuracy, best_epoch_accuracy"),
    ],
)
def test_unknown_name_lists_the_known_ones(
    root: Path, filters: dict[str, str], error: type[Exception], choices: str
) -> None:
    with open_results(str(root / "data" / "results.db"))() as session, pytest.raises(error, match=choices):
        compare(session, Question(**filters))


def test_sessions_are_read_only(root: Path) -> None:
    with (
        open_results(str(root / "data" / "results.db"))() as session,
        pytest.raises(OperationalError, match="readonly"),
    ):
        session.execute(text("DELETE FROM claims"))


def test_missing_broken_or_outdated_database_is_reported(root: Path, tmp_path: Path) -> None:
    absent, broken, older = (tmp_path / name for name in ("absent.db", "broken.db", "older.db"))
    broken.write_bytes(b"not a database" * 100)
    older.write_bytes((root / "data" / "results.db").read_bytes())
    with sqlite3.connect(older) as connection:
        connection.execute("UPDATE meta SET value = '0' WHERE name = 'schema_version'")
    connection.close()
    for path, message in ((absent, "no results database"), (broken, "can't be read"), (older, "version 0, expected")):
        with open_results(str(path))() as session, pytest.raises(ResultsUnavailable, match=message):
            session.execute(text("SELECT 1"))


@pytest.mark.parametrize(
    ("provenance", "cut", "words"),
    [
        ("embedded", "2 steps an epoch", "placeholder data"),
        ("subset", "3 of 100 epochs", "in a shortened run (3 of 100 epochs)"),
        ("full", "12,500 of 50,000 training images", "official data, in a shortened run (12,500 of 50,000 training"),
        ("subset", "", "full-length training on part of the official data"),
        ("full", "", "full-length training on official data"),
        (None, None, "not run yet"),
    ],
)
def test_fidelity_is_one_sentence(provenance: str | None, cut: str | None, words: str) -> None:
    assert words in describe_fidelity(provenance, "paper", cut)


def test_replicates_are_counted_out_of_those_planned_today() -> None:
    stored = "3 of 100 epochs, 1 of 3 replicates"
    assert cut_of_all(stored, 1, 5) == "3 of 100 epochs, 1 of 5 replicates"
    assert cut_of_all(stored, 3, 3) == cut_of_each(stored) == "3 of 100 epochs"
    assert cut_of_all("2 of 3 replicates", 2, 5) == "2 of 5 replicates"
    assert cut_of_all("3 of 100 epochs", 1, 5) == "3 of 100 epochs", "a profile that doesn't reduce replicates"


def test_omitted_test_images_are_stated_with_the_result() -> None:
    cut = describe_fidelity("full", "quick", "3 of 100 epochs", 9977, 23)
    assert cut.startswith(
        "official data without 23 of 10,000 test images, which our source lacks, in a shortened run (3 of 100 epochs)"
    )
    assert describe_fidelity("full", "paper", "", 9977, 23).endswith(
        "without 23 of 10,000 test images, which our source lacks (profile paper)"
    )


ARMS = [ArmRow(experiment="e", name=name, against=against) for name, against in (("a", "x"), ("b", "y"), ("c", "z"))]
ERROR = Claim(id="gain", kind="difference", better="lower")


def runs(side: str, arm: str, values: list[float | None], folds: int | None = None) -> list[VerdictRun]:
    result = Result(experiment="e", spec={"protocol": {"split": {"folds": folds}}})
    return [
        VerdictRun(side=side, arm=arm, replicate=replicate, value=value, result=result)
        for replicate, value in enumerate(values)
    ]


def unjudged(behind: list[VerdictRun]) -> VerdictRow:
    return VerdictRow(n=0, confidence=None, runs=behind)


def test_each_proposed_arm_is_compared_with_its_own_baseline() -> None:
    better, worse = [0.1, 0.2, 0.15], [0.5, 0.4, 0.45]
    behind = [
        *runs("proposed", "a", better),
        *runs("proposed", "b", worse),
        *runs("proposed", "c", better),
        *runs("baseline", "x", worse),
        *runs("baseline", "y", better),
        *runs("baseline", "z", [0.3, None, None]),
    ]
    first, second = pair_gains(ERROR, unjudged(behind), ARMS)
    assert (first.arm, first.against, second.arm, second.against) == ("a", "x", "b", "y"), "one value has no spread"
    interval = stats.ttest_ind(worse, better, equal_var=False).confidence_interval(0.95)
    assert (first.value, first.low, first.high, first.n) == pytest.approx((0.3, interval.low, interval.high, 3))
    assert second.value == pytest.approx(-0.3)
    accuracy = Claim(id="gain", kind="difference", better="higher")
    assert pair_gains(accuracy, unjudged(behind), ARMS)[0].value == pytest.approx(-0.3)


def test_folds_are_compared_pairwise() -> None:
    ours, theirs = [0.10, 0.21, 0.29], [0.2, 0.3, 0.4]
    sides = [("proposed", "a", ours), ("proposed", "b", ours), ("baseline", "x", theirs), ("baseline", "y", theirs)]
    behind = [run for side, arm, values in sides for run in runs(side, arm, [*values], folds=3)]
    first, _ = pair_gains(ERROR, unjudged(behind), ARMS)
    interval = stats.ttest_rel(theirs, ours).confidence_interval(0.95)
    assert (first.low, first.high) == pytest.approx((interval.low, interval.high))
    apart = [*runs("proposed", "b", [0.1, 0.2, None], folds=3), *runs("baseline", "y", [None, 0.3, 0.4], folds=3)]
    known = [run for run in behind if run.arm in ("a", "x")]
    assert [pair.arm for pair in pair_gains(ERROR, unjudged([*known, *apart]), ARMS)] == ["a"], "only one shared fold"


def test_gains_use_only_replicates_of_complete_analyses() -> None:
    sides = (("proposed", "a", 0.1), ("proposed", "b", 0.1), ("baseline", "x", 0.3), ("baseline", "y", 0.3))
    behind = [run for side, arm, level in sides for run in runs(side, arm, [level, level + 0.02, level + 0.01, 0.9])]
    first, _ = pair_gains(ERROR, VerdictRow(n=3, confidence=0.99, runs=behind), ARMS)
    assert (first.n, first.value) == (3, pytest.approx(0.2))


def test_count_of_orders_has_no_gain() -> None:
    sides = (("proposed", "a"), ("proposed", "b"), ("baseline", "x"), ("baseline", "y"))
    behind = [run for side, arm in sides for run in runs(side, arm, [0.1, 0.2])]
    assert len(pair_gains(ERROR, unjudged(behind), ARMS)) == 2
    assert pair_gains(Claim(id="rank", kind="tally", unit="orders"), unjudged(behind), ARMS) == ()


def test_single_pair_or_single_values_are_not_a_grid() -> None:
    pair = [*runs("proposed", "a", [0.1, 0.2]), *runs("baseline", "x", [0.3, 0.4])]
    assert pair_gains(ERROR, unjudged(pair), ARMS) == ()
    values = [*runs("proposed", "a", [0.1, 0.2]), *runs("proposed", "b", [0.1, 0.2])]
    assert pair_gains(ERROR, unjudged(values), ARMS) == ()


RNG = np.random.default_rng(4)
EPOCHS = 9
# Test errors [arm, fold, epoch]; validation errors are the same in these made-up lines.
TABLE1 = {arm: RNG.uniform(0.3, 0.4, (5, EPOCHS)) for arm in ("resnet20-v1", "dac-resnet20-v1")}
FIGURE5 = {arm: RNG.uniform(0.3, 0.4, (5, EPOCHS)) for arm in ("vgg20-16", "dac-vgg20-16")}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Two of DAC's experiments on CIFAR-100 with five folds, and one with a single fold on CIFAR-10."""
    root = tmp_path_factory.mktemp("printed")
    copy_project(root)
    for experiment, errors in (("dac-resnet-cifar100", TABLE1), ("dac-vgg-cifar100", FIGURE5)):
        values = {arm: (1 - folds[:, -1]).tolist() for arm, folds in errors.items()}
        publish(root, results(experiment, values, curves={arm: folds.tolist() for arm, folds in errors.items()}))
    alone = {"resnet20-v1": TABLE1["resnet20-v1"][:1].tolist()}
    publish(root, results("dac-resnet-cifar10", {"resnet20-v1": [1 - alone["resnet20-v1"][0][-1]]}, curves=alone))
    record(root, "data/results.db")
    with open_results(str(root / "data" / "results.db"))() as session:
        yield session


def of(session: Session, experiment: str, **asked: str) -> ExperimentComparison:
    return next(item for item in compare(session, Question(**asked)) if item.experiment == experiment)  # type: ignore[arg-type]


def test_default_metric_is_that_of_the_printed_values(session: Session) -> None:
    """It is the metric of the first claimed value that isn't a cost."""
    first: dict[str, str] = {}
    for claim in claims().values():
        known = METRICS.get(claim.metric)  # numbers at an early epoch aren't comparison metrics
        if claim.kind == "value" and claim.experiment and known is not None and known.split is not None:
            first.setdefault(claim.experiment, claim.metric)
    assert set(first.values()) == {"accuracy", "best_epoch_accuracy", "min_error", "validation_loss"}
    found = {item.experiment: item for item in compare(session)}
    assert set(found) == set(params().experiments)
    for name, metric in first.items():
        assert (found[name].metric.name, found[name].printed_metrics[0]) == (metric, metric)
        assert any(arm.printed for arm in found[name].arms), name
        assert all(arm.printed is None or arm.printed.unit == METRICS[metric].unit for arm in found[name].arms)
    others = {name: found[name].metric.name for name in set(found) - set(first)}
    assert others == {
        **dict.fromkeys(("dac-vgg-cifar10", "dac-vgg-cifar100"), "window_error"),
        **dict.fromkeys(("brownian-cifar10", "brownian-cifar10-equal-time", "hyperbf64-tinyimagenet"), "accuracy"),
        "dac-sgemm": "selected_log_mse",
    }


def test_lowest_error_and_printed_one_have_standard_errors(session: Session) -> None:
    comparison = of(session, "dac-resnet-cifar100")
    arms = {arm.arm: arm for arm in comparison.arms}
    for name, errors in TABLE1.items():
        arm, by_hand = arms[name], min_over_epochs(errors)
        assert arm.ours is not None and arm.printed is not None and arm.difference is not None
        assert (arm.ours.value, arm.ours.stderr) == (pytest.approx(by_hand.value), pytest.approx(by_hand.stderr))
        assert arm.ours.stderr == pytest.approx(stats.sem(errors[:, by_hand.epoch]))
        assert (arm.ours.epoch, arm.ours.n, arm.ours.std) == (by_hand.epoch + 1, 5, None)
        half = stats.t.ppf(0.975, 4) * stats.sem(by_hand.folds)
        assert (arm.ours.low, arm.ours.high) == pytest.approx((by_hand.value - half, by_hand.value + half))
        assert (arm.printed.n, arm.printed.place) == (5, "Table 1")
        assert arm.difference.value == pytest.approx(by_hand.value - arm.printed.value)
    base = arms["resnet20-v1"].printed
    assert base is not None and (base.value, base.stderr) == (0.3350, 0.0016)
    ranks = {name: (arms[name].rank_ours, arms[name].rank_printed) for name in TABLE1}
    assert [rank for _, rank in ranks.values()] == [2, 1], "among the two trained arms"
    assert sorted(rank or 0 for rank, _ in ranks.values()) == [1, 2]
    other = arms["resnet56-v1"]
    assert (other.rank_ours, other.rank_printed) == (None, None)
    assert (other.ours, other.reason) == (None, "not trained under the conditions that are shown")


def test_printed_gain_is_compared_with_ours_paired_by_fold(session: Session) -> None:
    comparison = of(session, "dac-vgg-cifar100")
    gain = next(arm.gain for arm in comparison.arms if arm.arm == "dac-vgg20-16")
    assert gain is not None and gain.against == "vgg20-16"
    assert (gain.printed.value, gain.printed.stderr, gain.printed.n) == (0.0116, 0.0022, 5)
    base, dac = (window_error(FIGURE5[arm], FIGURE5[arm]) for arm in ("vgg20-16", "dac-vgg20-16"))
    assert gain.ours is not None
    assert (gain.ours.value, gain.ours.n) == (pytest.approx(base.value - dac.value), 5)
    differences = np.array(base.folds) - np.array(dac.folds)
    half = stats.t.ppf(0.975, 4) * stats.sem(differences)
    assert (gain.ours.low, gain.ours.high) == pytest.approx((differences.mean() - half, differences.mean() + half))
    waiting = next(arm.gain for arm in comparison.arms if arm.arm == "dac-vgg14-32")
    assert waiting is not None and (waiting.printed.value, waiting.ours) == (0.0181, None)


def test_single_fold_has_a_lowest_error_without_standard_error(session: Session) -> None:
    arm = of(session, "dac-resnet-cifar10").arms[0]
    assert arm.ours is not None
    assert (arm.ours.value, arm.ours.n) == (pytest.approx(TABLE1["resnet20-v1"][0].min()), 1)
    assert (arm.ours.stderr, arm.ours.low) == (None, None)
    assert arm.ours.interval_missing == "one replicate: an interval needs two"


def test_arms_without_the_metric_have_a_reason(session: Session) -> None:
    reasons = defaultdict(set)
    for item in compare(session, Question(dataset="cifar100", metric="window_error")):
        for arm in item.arms:
            reasons[item.experiment].add(arm.reason if arm.ours is None else "ours")
    assert reasons["dac-resnet-cifar100"] == {"ours", "not trained under the conditions that are shown"}
    assert reasons["ninformer-cifar100"] == {"not run yet"}
    lone = of(session, "dac-resnet-cifar100", metric="perplexity")
    assert lone.arms[0].reason == "its runs have no test perplexity" and lone.reason is not None


OURS_AND_PRINTED = ("ours.value", "ours.stderr", "ours.epoch", "printed.stderr", "printed.n")


def test_csv_has_both_errors_the_epoch_and_the_reason(session: Session) -> None:
    comparisons = [of(session, name) for name in ("dac-resnet-cifar100", "dac-vgg-cifar100")]
    rows = {(row["experiment"], row["arm"]): row for row in csv.DictReader(io.StringIO(as_csv(comparisons)))}
    ours = comparisons[0].arms[0].ours
    row = rows["dac-resnet-cifar100", "resnet20-v1"]
    assert ours is not None
    assert [float(row[name]) for name in OURS_AND_PRINTED] == [*(ours.value, ours.stderr, ours.epoch, 0.0016, 5)]
    assert row["reason"] == ""
    other = rows["dac-resnet-cifar100", "resnet56-v1"]
    assert (other["ours.value"], other["reason"]) == ("", "not trained under the conditions that are shown")
    gain = rows["dac-vgg-cifar100", "dac-vgg20-16"]
    assert (gain["gain.against"], gain["gain.printed.value"], gain["gain.printed.stderr"]) == (
        "vgg20-16",
        "0.0116",
        "0.0022",
    )
    assert float(gain["gain.ours.low"]) < float(gain["gain.ours.value"]) < float(gain["gain.ours.high"])


def test_verdict_and_comparison_have_the_same_number(session: Session) -> None:
    """Both derive it from curves."""
    judged = find_judged(session, "dac.table1.c100.v1.r20.base")
    arm = of(session, "dac-resnet-cifar100").arms[0]
    assert arm.ours is not None and judged.verdict.ours == pytest.approx(arm.ours.value)


def test_exported_fold_values_average_to_the_metric(session: Session) -> None:
    rows = session.query(ArmMetricRow).all()
    assert {(row.experiment, row.metric) for row in rows} >= {
        ("dac-resnet-cifar100", "min_error"),
        ("dac-vgg-cifar100", "window_error"),
    }
    for row in rows:
        assert np.mean([share for _, share in row.shares]) == pytest.approx(row.value)
