"""A comparison uses the metric that the paper prints, ours and the paper's each with its error."""

import csv
import io
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pytest
from scipy import stats
from sqlalchemy.orm import Session

from stages.recording import record
from stages.results import METRICS, ArmMetric, ExperimentComparison, as_csv, compare, find_judged, open_results
from stages.verdicts import ARM_METRICS, min_over_epochs, window_error
from tests.claims.lines import claims, copy_project, params, publish, results

RNG = np.random.default_rng(4)
EPOCHS = 9
# Test errors [arm, fold, epoch]; validation errors are the same in these made-up lines.
TABLE1 = {arm: RNG.uniform(0.3, 0.4, (5, EPOCHS)) for arm in ("resnet20-v1", "dac-resnet20-v1")}
FIGURE5 = {arm: RNG.uniform(0.3, 0.4, (5, EPOCHS)) for arm in ("vgg20-16", "dac-vgg20-16")}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Two of DAC's experiments on CIFAR-100 with five folds; a single fold of one on CIFAR-10."""
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
    return next(item for item in compare(session, **asked) if item.experiment == experiment)  # type: ignore[arg-type]


def test_every_experiment_is_shown_in_the_metric_of_its_printed_values(session: Session) -> None:
    """By the claims themselves: the first value that isn't a cost."""
    first: dict[str, str] = {}
    for claim in claims().values():
        known = METRICS.get(claim.metric)  # a number after an early epoch isn't a metric of comparisons
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


def test_all_five_of_cifar100_have_the_paper_s_number(session: Session) -> None:
    found = compare(session, dataset="cifar100")
    assert len(found) == 5
    for item in found:
        assert any(arm.printed or arm.gain for arm in item.arms), item.experiment


def test_a_lowest_error_stands_beside_the_printed_one_each_with_its_error(session: Session) -> None:
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
    assert [rank for _, rank in ranks.values()] == [2, 1], "of the two that were trained"
    assert sorted(rank or 0 for rank, _ in ranks.values()) == [1, 2]
    other = arms["resnet56-v1"]
    assert (other.rank_ours, other.rank_printed) == (None, None)
    assert (other.ours, other.reason) == (None, "not trained under the conditions that are shown")


def test_a_gain_that_the_paper_prints_stands_beside_ours_folds_paired(session: Session) -> None:
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


def test_one_fold_has_its_lowest_error_and_no_error_of_it(session: Session) -> None:
    arm = of(session, "dac-resnet-cifar10").arms[0]
    assert arm.ours is not None
    assert (arm.ours.value, arm.ours.n) == (pytest.approx(TABLE1["resnet20-v1"][0].min()), 1)
    assert (arm.ours.stderr, arm.ours.low) == (None, None)
    assert arm.ours.interval_missing == "one replicate: an interval needs two"


def test_a_metric_that_only_some_have_says_of_the_others_why_not(session: Session) -> None:
    reasons = defaultdict(set)
    for item in compare(session, dataset="cifar100", metric="window_error"):
        for arm in item.arms:
            reasons[item.experiment].add(arm.reason if arm.ours is None else "ours")
    assert reasons["dac-resnet-cifar100"] == {"ours", "not trained under the conditions that are shown"}
    assert reasons["ninformer-cifar100"] == {"not run yet"}
    lone = of(session, "dac-resnet-cifar100", metric="perplexity")
    assert lone.arms[0].reason == "its runs have no test perplexity" and lone.reason is not None


OURS_AND_PRINTED = ("ours.value", "ours.stderr", "ours.epoch", "printed.stderr", "printed.n")


def test_the_table_holds_both_errors_the_epoch_and_the_reason(session: Session) -> None:
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


def test_metrics_of_arms_as_wholes_are_those_of_the_verdicts() -> None:
    assert tuple(info.name for info in METRICS.values() if info.of_arm) == ARM_METRICS


def test_the_verdict_of_a_printed_error_has_the_comparison_s_number(session: Session) -> None:
    """Two ways from curves to a number would be two numbers."""
    judged = find_judged(session, "dac.table1.c100.v1.r20.base")
    arm = of(session, "dac-resnet-cifar100").arms[0]
    assert arm.ours is not None and judged.verdict.ours == pytest.approx(arm.ours.value)


def test_every_row_of_the_export_gives_its_value(session: Session) -> None:
    rows = session.query(ArmMetric).all()
    assert {(row.experiment, row.metric) for row in rows} >= {
        ("dac-resnet-cifar100", "min_error"),
        ("dac-vgg-cifar100", "window_error"),
    }
    for row in rows:
        assert np.mean([share for _, share in row.shares]) == pytest.approx(row.value)
