"""data/claims.csv has every statement of the five papers, with its experiment or a reason and the correct sign."""

import csv
import dataclasses
import fnmatch
import math
import re
from collections import Counter
from pathlib import Path

import pytest

from stages.claims import ClaimLine, ClaimsError, param_values, place_claims, read_claims
from stages.claims.kinds import Kind, TallyKind, TrainedKind
from stages.claims.lines import parse_claims
from stages.params.experiment import ExperimentParams, Params, load_params
from stages.verdicts.kinds import KINDS
from tests.project import computed_findings

ROOT = Path(__file__).resolve().parent.parent
CLAIMS = ROOT / "data" / "claims.csv"
COUNTS = tuple(name for name, facts in KINDS.items() if facts.by == "orders")
COMPARED = ("order", "difference", "gap", "equivalence")
FIVE = {"hyperbf": 48, "ninformer": 59, "nmn": 69, "brownian": 23, "dac": 188}
NO_SIZE = ["dac.sgemm.more_efficient", "dac.sgemm.small"]
"""Orders whose sentences print no size."""


@pytest.fixture(scope="module")
def claims() -> dict[str, ClaimLine]:
    return {claim.id: claim for claim in read_claims(CLAIMS)}


@pytest.fixture(scope="module")
def five(claims: dict[str, ClaimLine]) -> dict[str, ClaimLine]:
    """Claims of the papers that the counts below cover; a new paper brings its own tests."""
    return {name: claim for name, claim in claims.items() if claim.paper in FIVE}


@pytest.fixture(scope="module")
def params() -> Params:
    return load_params(ROOT)


def experiments_of(claim: ClaimLine, params: Params) -> list[ExperimentParams]:
    names = fnmatch.filter(params.experiments, claim.experiment) if claim.experiment else []
    return [params.experiments[name] for name in names]


def is_computed(claim: ClaimLine) -> bool:
    return not (claim.experiment or claim.family or claim.reason)


def test_all_claims_of_the_five_papers_and_implied_orders_are_listed(
    five: dict[str, ClaimLine],
) -> None:
    implied = {i for i in five if i.endswith(".order") or i.startswith("ninformer.rank.")}
    assert Counter(claim.paper for i, claim in five.items() if i not in implied) == FIVE
    assert len(implied) == 41
    assert Counter(five[i].kind for i in implied) == {"order": 39, "gap": 2}, "two tables show one arm behind"


def test_claims_of_a_paper_have_distinct_texts(claims: dict[str, ClaimLine]) -> None:
    """A claim is displayed with its own text or, failing that, its arms, metric and data sets."""
    names = Counter(
        (claim.paper, claim.statement or (claim.experiment, claim.arm, claim.baseline_arm, claim.metric, claim.place))
        for claim in claims.values()
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_every_claim_has_one_experiment_or_a_reason(claims: dict[str, ClaimLine]) -> None:
    for claim in claims.values():
        places = [claim.experiment is not None, claim.reason is not None, is_computed(claim)]
        assert sum(places) + (claim.facts.by == "orders") == 1, claim.id
        assert (claim.family is not None) >= (claim.facts.by == "orders"), claim.id
        assert claim.value is not None or claim.statement, f"{claim.id} has no statement"
        if claim.experiment is None:
            assert claim.arm is None and claim.baseline_arm is None, claim.id
        if claim.arm is None:
            assert claim.baseline_arm is None, claim.id


def test_computed_claims_are_those_with_a_finding(claims: dict[str, ClaimLine]) -> None:
    """A measured claim (NiNformer's times) may also have a finding, but every computed claim needs one."""
    found = computed_findings().keys()
    assert {i for i, claim in claims.items() if is_computed(claim)} - found == set()
    assert found - set(claims) == set()


def test_every_claim_is_placed_in_an_experiment_of_its_paper(claims: dict[str, ClaimLine], params: Params) -> None:
    placed = place_claims(list(claims.values()), params)
    assert {claim.id: claim.reason for claim in placed if claim.reason != claims[claim.id].reason} == {}


def test_comparison_uses_the_baseline_of_the_params_file(claims: dict[str, ClaimLine], params: Params) -> None:
    """Exception: arms that the paper compares with several others."""
    across = ("ninformer.", "dac.shallower.", "dac.v1_worse.", "dac.sgemm.", "dac.fig3.")
    for claim in claims.values():
        for experiment in experiments_of(claim, params) if claim.kind in COMPARED else []:
            assert claim.arm is not None and claim.baseline_arm is not None and claim.arm != claim.baseline_arm
            is_across = claim.id.startswith(across) or claim.id.endswith("below_dac")
            for name in fnmatch.filter(experiment.arms, claim.arm) if not is_across else []:
                against = experiment.arms[name].against
                others = {name for name, arm in experiment.arms.items() if arm.role == "baseline"}
                others = {against} if claim.paper in FIVE else others  # another paper may have several baselines
                assert fnmatch.filter(filter(None, others), claim.baseline_arm), claim.id
                assert experiment.arms[against].role == "baseline", claim.id


def test_settings_and_counts_are_found_in_the_params_files(claims: dict[str, ClaimLine], params: Params) -> None:
    """Except a grid's numbers of parameters, which come from results; raw files may be in a folder of any name."""
    renamed = {name: dataclasses.replace(source, folder="shared") for name, source in params.datasets.items()}
    elsewhere = dataclasses.replace(params, datasets=renamed)
    for claim in claims.values():
        is_printed = claim.kind in ("setup", "count") and not claim.metric.endswith("(parameters)")
        if is_printed and experiments_of(claim, params):
            assert param_values(claim, params) and param_values(claim, elsewhere), claim.id


def test_differences_agree_with_the_papers_tables(claims: dict[str, ClaimLine]) -> None:
    """Gain = proposed − baseline (positive is better) wherever the paper prints both."""
    printed = {(c.experiment, c.arm, c.metric): c for c in claims.values() if c.kind == "value" and not c.reason}
    checked = 0
    for claim in claims.values():
        if claim.kind not in ("order", "difference", "gap"):
            continue
        ours = printed.get((claim.experiment, claim.arm, claim.metric))
        baseline = printed.get((claim.experiment, claim.baseline_arm, claim.metric))
        if ours is None or baseline is None:
            continue
        sign = 1 if claim.better == "higher" else -1
        assert ours.better == baseline.better == claim.better, claim.id
        assert claim.value == pytest.approx(sign * (ours.value - baseline.value), abs=1e-9), claim.id
        errors = [one.stderr for one in (ours, baseline) if one.stderr is not None]
        if claim.kind in ("order", "gap") and len(errors) == 2:
            assert claim.stderr == pytest.approx(math.hypot(*errors), abs=1e-6), claim.id
        checked += claim.paper in FIVE
    words = "implied orders; HyperBF's gaps; NMN's gains; its inversion; ISIC's gains; DAC's smaller networks"
    assert checked == 41 + 3 + 3 + 1 + 2 + 3 + 8, words


def test_printed_loss_is_a_size_and_never_an_order(claims: dict[str, ClaimLine]) -> None:
    """No paper claims that its own arm is worse, so only the size of a printed loss is judged."""
    compared = [claim for claim in claims.values() if claim.kind in ("order", "difference")]
    assert [claim.id for claim in compared if claim.value is not None and claim.value <= 0] == []
    assert [claim.id for claim in compared if claim.value is None and claim.paper in FIVE] == NO_SIZE
    losses = {claim.id for claim in claims.values() if claim.kind == "gap" and (claim.value or 0) < 0}
    assert losses >= {"hyperbf.text.c100.gap", "dac.table3.c10.v1.abs", "dac.table1.c100.v1.r44.order"}


def test_comparable_margin_covers_the_papers_own_losses(
    claims: dict[str, ClaimLine], five: dict[str, ClaimLine]
) -> None:
    for claim in five.values():
        if claim.kind == "equivalence" and claim.family and claim.value is not None:
            gap = claims[claim.id.replace(".comparable.", ".text.") + ".gap"]
            places = [(one.experiment, one.arm, one.baseline_arm, one.metric, one.better) for one in (claim, gap)]
            assert places[0] == places[1] and claim.value >= -gap.value > 0, claim.id


def test_relative_claims_agree_with_the_papers_tables(claims: dict[str, ClaimLine]) -> None:
    printed = {(c.experiment, c.arm, c.metric): c.value for c in claims.values() if c.kind == "value" and not c.reason}
    checked = set()
    for claim in claims.values():
        ours = printed.get((claim.experiment, claim.arm, claim.metric))
        baseline = printed.get((claim.experiment, claim.baseline_arm, claim.metric))
        if claim.kind not in ("ratio", "inconsistent") or ours is None or baseline is None:
            continue
        computed = {
            "relative gain": ours / baseline - 1 if claim.better == "higher" else baseline / ours - 1,
            "relative reduction": 1 - ours / baseline,
        }[claim.unit]
        assert (abs(computed - claim.value) < claim.precision) == (claim.kind == "ratio"), claim.id
        if claim.paper in FIVE:
            checked.add(claim.id)
    assert checked == {i for i in claims if i.startswith("ninformer.text.")} | {"nmn.gpt.valloss.rel", "nmn.gpt.speed"}


def test_relative_gains_of_dac_agree_with_absolute_ones(claims: dict[str, ClaimLine]) -> None:
    """Table 3's absolute column divided by its relative one gives DAC's gain, close to Table 1's."""
    for data, cut in (("c10", "cifar10"), ("c100", "cifar100")):
        for version in ("v1", "v2"):
            absolute, share = (claims[f"dac.table3.{data}.{version}.{part}"] for part in ("abs", "rel"))
            assert math.copysign(1, absolute.value) == math.copysign(1, share.value)
            assert share.baseline_arm == f"dac-{absolute.baseline_arm}"
            assert absolute.experiment == share.experiment == f"dac-resnet-{cut}"
            order = claims[f"dac.table1.{data}.{version}.r20.order"]
            assert absolute.value / share.value == pytest.approx(order.value, abs=0.0015)


def test_families_have_the_expected_numbers_of_orders(five: dict[str, ClaimLine]) -> None:
    orders = Counter(c.family for c in five.values() if c.family and c.kind in COMPARED)
    assert orders == {
        "hyperbf.comparable": 3,
        "ninformer.table2": 9,
        "nmn.resnet18": 4,
        "dac.table1": 16,
        "dac.table2": 8,
        "dac.shallower": 3,
        "dac.vgg": 4,
        "dac.mba": 4,
        "dac.isic": 2,
    }
    tallies = {c.id: (c.value, c.trials, orders[c.family]) for c in five.values() if c.family and c.trials}
    assert tallies == {
        "hyperbf.comparable": (3, 3, 3),
        "ninformer.rank": (9, 9, 9),
        "dac.shallower": (1, 3, 3),
        "dac.resnet.wins": (15, 16, 16),
        "dac.resnet.significant": (9, 16, 16),
        "dac.vgg.significant": (4, 4, 4),
    }
    positive = [c for c in five.values() if c.family == "dac.table1" and c.kind == "order" and c.value > 0]
    assert len(positive) == five["dac.resnet.wins"].value, "Table 1 has one exception, like Figure 6"


def test_units_are_fractions_not_percent(claims: dict[str, ClaimLine]) -> None:
    for claim in claims.values():
        assert "%" not in (claim.unit or ""), claim.id
        if claim.unit == "fraction" and claim.kind == "value":
            assert 0 <= claim.value <= 1, claim.id
        if claim.kind in ("value", "ratio", "range", *COMPARED) and claim.value is not None:
            assert claim.precision is not None and claim.precision > 0, claim.id
        if claim.kind in ("value", *COMPARED):
            assert claim.better in ("higher", "lower"), claim.id
        assert (claim.high is not None) == (claim.kind == "range"), claim.id
        assert (claim.trials is not None) == (claim.kind in ("failures", "noise", *COUNTS)), claim.id
        assert (claim.factor is not None) == (claim.kind == "uniform"), claim.id


def test_every_kind_is_used_and_has_a_judge(claims: dict[str, ClaimLine]) -> None:
    assert {claim.kind for claim in claims.values()} == KINDS.keys() == Kind.classes.keys()
    trained = {claim.kind for claim in claims.values() if claim.experiment and not claim.reason}
    assert {name for name in trained if KINDS[name].by == "training"} == {
        name for name, of_kind in Kind.classes.items() if issubclass(of_kind, TrainedKind)
    }
    for name, of_kind in Kind.classes.items():
        assert (
            bool(of_kind.test)
            == (KINDS[name].by in ("training", "orders"))
            == issubclass(of_kind, TrainedKind | TallyKind)
        )


def test_unknown_kind_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ClaimsError, match=r"claims\.csv, line 2: kind: Input should be 'value', .* or 'qualitative'"):
        parse_claims(
            CLAIMS.read_text(encoding="utf-8").replace(",value,0.7561,", ",proportion,0.7561,", 1),
            tmp_path / "claims.csv",
        )


def test_every_metric_has_one_better_direction(claims: dict[str, ClaimLine], five: dict[str, ClaimLine]) -> None:
    ways = {(claim.metric, claim.better) for claim in claims.values() if claim.better}
    twice = [metric for metric, times in Counter(metric for metric, _ in ways).items() if times > 1]
    assert twice == []
    assert {claim.metric for claim in five.values() if claim.better == "higher"} == {
        *("accuracy", "best_epoch_accuracy", "accuracy_after_inversion", "train_tokens_per_second"),
        *("epoch_1_test_accuracy", "epoch_2_test_accuracy"),
        "kernel_width_gap",
    }


def test_arithmetic_in_notes_is_correct(claims: dict[str, ClaimLine]) -> None:
    sums = [
        (claim.paper in FIVE, *found)
        for claim in claims.values()
        for found in re.findall(r"(?<![\d.])(1 - )?([\d.]+) / ([\d.]+)( - 1)? = (-?[\d.]+\d)", claim.note or "")
    ]
    assert sum(is_of_five for is_of_five, *_ in sums) == 8
    for _, less, numerator, denominator, minus_one, result in sums:
        ratio = float(numerator) / float(denominator)
        value = 1 - ratio if less else ratio - 1 if minus_one else ratio
        assert f"{value:.{len(result.partition('.')[2])}f}" == result


def test_claims_file_is_reviewable_plain_text() -> None:
    text = CLAIMS.read_text(encoding="utf-8")
    with CLAIMS.open(newline="") as file:
        header = csv.DictReader(file).fieldnames
    assert header is not None and set(header) == {field.name for field in dataclasses.fields(ClaimLine)}
    assert max(map(len, text.splitlines())) < 400
    assert "\r" not in text


def toy(**change: object) -> ClaimLine:
    plain = {field.name: None for field in dataclasses.fields(ClaimLine)}
    row = {"id": "x", "paper": "dac", "place": "Table 1", "metric": "min_error", "kind": "value"}
    return ClaimLine(**(plain | row | change))


def test_claim_reports_its_missing_experiment(params: Params) -> None:
    (placed,) = place_claims(
        [toy(experiment="dac-not-yet", arm="mlp", better="lower", value=0.1, unit="fraction")], params
    )
    assert (placed.experiment, placed.reason) == (None, "its experiment dac-not-yet is not in the params files yet")


def test_star_matches_several_experiments_and_arms(params: Params) -> None:
    claim = toy(experiment="dac-resnet-*", arm="dac-resnet*-v1", value=0.1, unit="fraction", better="lower")
    assert place_claims([claim], params) == [claim]
