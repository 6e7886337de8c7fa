import math
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from stages.recording import record
from stages.results import (
    ResultsUnavailable,
    UnknownDataset,
    UnknownMetric,
    UnknownPaper,
    UnknownProfile,
    compare,
    describe_fidelity,
    open_results,
    t_interval,
    wilson_interval,
)
from stages.results.comparison import cut_of_all, cut_of_each
from stages.run import RunSpec
from stages.runs.evidence import EvidenceLine, ResultLine, read_lines, write_lines
from tests.service.results_factory import add_results, make_root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_root(tmp_path_factory.mktemp("root"))
    record(root, "data/results.db")
    return root


def only(root: Path, **filters: str):
    with open_results(str(root / "data" / "results.db"))() as session:
        (comparison,) = compare(session, **filters)
    return comparison


def test_t_interval_equals_a_hand_worked_case() -> None:
    # mean 2, s = 1, n = 3: half = 4.302653 / sqrt(3)
    assert t_interval([1.0, 2.0, 3.0]) == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-6)


def test_wilson_interval_equals_a_hand_worked_case() -> None:
    # Wilson (1927) for 8 of 10: (0.8 + 1.9207/10 ± ...) / 1.38415
    assert wilson_interval(0.8, 10) == pytest.approx((0.490162, 0.943318), abs=1e-5)


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_wilson_interval_stays_within_the_fractions_and_holds_the_estimate(n: int, fraction: float) -> None:
    low, high = wilson_interval(fraction, n)
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


def test_one_replicate_has_no_interval_and_says_why(root: Path) -> None:
    ours = only(root, dataset="cifar100").arms[0].ours
    assert (ours.low, ours.high, ours.std) == (None, None, None)
    assert ours.interval_missing == "one replicate: an interval needs two"
    assert ours.population is not None and ours.value is not None
    assert ours.population.low < ours.value < ours.population.high


def test_an_epoch_chosen_on_the_test_images_says_nothing_of_fresh_ones(root: Path) -> None:
    ours = only(root, dataset="cifar100", metric="best_epoch_accuracy").arms[0].ours
    assert ours.value is not None
    assert ours.population is None


def test_the_best_evidence_comes_first_and_a_profile_can_be_pinned(root: Path) -> None:
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
def test_a_stand_in_s_number_is_none_of_ours_in_any_metric(root: Path, metric: str) -> None:
    comparison = only(root, dataset="cifar10", metric=metric)
    assert comparison.label.startswith("placeholder data: shows that the pipeline runs, says nothing about the claim")
    assert comparison.order.of_ours == () and comparison.order.agrees is None
    assert comparison.reason == "placeholder data: its number says nothing about the claim"
    for arm in comparison.arms:
        assert arm.run_keys, "its runs have numbers of their own"
        assert (arm.ours, arm.reason) == (None, comparison.reason)
        assert (arm.difference, arm.rank_ours, arm.rank_printed) == (None, None, None)
        assert arm.ratio is None or arm.ratio.of_ours is None
        assert (arm.cost.latency_ratio, arm.cost.parameters) == (None, 2_143_588)


def test_a_provenance_can_be_asked_for(root: Path) -> None:
    best = only(root, dataset="cifar100", provenance="subset")
    assert (best.profile, best.provenance) == ("quick", "subset") and best.arms[0].ours is not None
    stand_in = only(root, dataset="cifar100", provenance="embedded")
    assert (stand_in.profile, stand_in.provenance, stand_in.arms[0].ours) == ("smoke", "embedded", None)
    none = only(root, dataset="cifar100", provenance="full")
    assert (none.profile, none.label, none.reason) == (None, "not run yet", "not run yet on data of provenance full")
    assert [arm.printed.value for arm in none.arms if arm.printed] == [0.3487, 0.3916, 0.4161, 0.5378]
    both = only(root, dataset="cifar100", profile="quick", provenance="full")
    assert both.reason == "not run yet under the profile quick on data of provenance full"


def test_latency_is_compared_with_the_first_baseline_on_the_same_device(root: Path) -> None:
    costs = {arm.arm: arm.cost for arm in only(root, dataset="mnist").arms}
    assert costs["vit"].latency_ratio == pytest.approx(1.0)
    assert costs["ninformer"].latency_ratio == pytest.approx(2.1e-4 / 1.4e-4)
    assert costs["ninformer"].latency_baseline == "vit"
    assert (costs["vit"].parameters, costs["vit"].flops_per_image) == (2_143_588, 2.85e8)


def test_costs_are_compared_by_their_ratio_to_the_baseline_and_never_by_their_order(root: Path) -> None:
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


def test_costs_that_two_revisions_measured_are_not_divided(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    path = root / "data" / "evidence" / "ninformer-mnist.jsonl"
    lines = [
        replace(line, origin=replace(line.origin, revision="1" * 40)) if line.result.arm == "ninformer" else line
        for line in read_lines(path, EvidenceLine)
    ]
    path.write_bytes(write_lines(lines))
    record(root, "data/results.db")
    costs = {arm.arm: arm.cost for arm in only(root, dataset="mnist").arms}
    assert costs["local-vit"].latency_ratio == pytest.approx(1.8e-4 / 1.4e-4)
    assert costs["ninformer"].latency_ratio is None and costs["ninformer"].latency_seconds_per_sample == 2.1e-4
    ratios = {arm.arm: arm.ratio for arm in only(root, dataset="mnist", metric="train_seconds").arms}
    assert [ratio and ratio.of_ours for ratio in ratios.values()] == [1.0, 1.0, 1.0, None]


def test_another_metric_has_no_claim_to_compare_with(root: Path) -> None:
    comparison = only(root, dataset="mnist", metric="loss")
    assert comparison.metric.better == "lower"
    assert [(arm.printed, arm.difference) for arm in comparison.arms] == [(None, None)] * 4
    assert [arm.rank_ours for arm in comparison.arms] == [4, 3, 2, 1]


def test_results_under_other_conditions_never_share_a_table(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    lines = read_lines(root / "data" / "results" / "ninformer-cifar10.jsonl", ResultLine)

    def other(line: ResultLine) -> ResultLine:
        spec = {**line.spec, "protocol": {**line.spec["protocol"], "batch_size": 8}}
        return replace(line, spec=spec, run_key=RunSpec.from_dict(spec).run_key)

    changed = [other(line) if line.arm == "vit" else line for line in lines]
    (root / "data" / "results" / "ninformer-cifar10.jsonl").write_bytes(write_lines(changed))
    record(root, "data/results.db")
    runs = {arm.arm: arm.run_keys for arm in only(root, dataset="cifar10").arms}
    assert runs["vit"] == ()
    assert all(runs[name] for name in ("mlp-mixer", "local-vit", "ninformer"))


def test_a_diverged_replicate_is_counted_and_not_averaged(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    (root / "data" / "evidence" / "ninformer-mnist.jsonl").unlink()
    add_results(root, "ninformer-mnist", "paper", "full", published="2026-11-02", diverged=("vit", 2))
    record(root, "data/results.db")
    ours = only(root, dataset="mnist").arms[0].ours
    assert (ours.n, ours.n_diverged) == (2, 1)


@pytest.mark.parametrize(
    ("filters", "error", "choices"),
    [
        ({"dataset": "cifar1000"}, UnknownDataset, "known: mnist, cifar10, cifar100"),
        ({"paper": "resnet"}, UnknownPaper, "known: ninformer"),
        ({"profile": "slow"}, UnknownProfile, "known: smoke, quick-bfloat16, quick, paper-tf32, paper"),
        ({"metric": "acc"}, UnknownMetric, "known: accuracy, best_epoch_accuracy"),
    ],
)
def test_an_unknown_name_is_answered_with_the_known_ones(
    root: Path, filters: dict[str, str], error: type[Exception], choices: str
) -> None:
    with open_results(str(root / "data" / "results.db"))() as session, pytest.raises(error, match=choices):
        compare(session, **filters)


def test_sessions_can_read_but_not_write(root: Path) -> None:
    with (
        open_results(str(root / "data" / "results.db"))() as session,
        pytest.raises(OperationalError, match="readonly"),
    ):
        session.execute(text("DELETE FROM claims"))


def test_an_absent_a_broken_and_an_older_database_each_say_so(root: Path, tmp_path: Path) -> None:
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
def test_fidelity_is_said_in_one_sentence(provenance: str | None, cut: str | None, words: str) -> None:
    assert words in describe_fidelity(provenance, "paper", cut)


def test_the_number_of_replicates_is_of_those_that_are_planned_today() -> None:
    stored = "3 of 100 epochs, 1 of 3 replicates"
    assert cut_of_all(stored, 1, 5) == "3 of 100 epochs, 1 of 5 replicates"
    assert cut_of_all(stored, 3, 3) == cut_of_each(stored) == "3 of 100 epochs"
    assert cut_of_all("2 of 3 replicates", 2, 5) == "2 of 5 replicates"
    assert cut_of_all("3 of 100 epochs", 1, 5) == "3 of 100 epochs", "a profile that cuts no replicates"


def test_test_images_that_are_left_out_are_said_with_the_result() -> None:
    cut = describe_fidelity("full", "quick", "3 of 100 epochs", 9977, 23)
    assert cut.startswith(
        "official data without 23 of 10,000 test images, which our source lacks, in a shortened run (3 of 100 epochs)"
    )
    assert describe_fidelity("full", "paper", "", 9977, 23).endswith(
        "without 23 of 10,000 test images, which our source lacks (profile paper)"
    )
