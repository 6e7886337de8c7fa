"""data/claims.csv: every statement of the five papers, where it is tested or why it isn't, and with the right sign."""

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
# Experiments that claims wait for; one that params.yaml has is taken off this list.
TO_BE_BUILT: set[str] = set()


@pytest.fixture(scope="module")
def claims() -> dict[str, ClaimLine]:
    return {claim.id: claim for claim in read_claims(CLAIMS)}


@pytest.fixture(scope="module")
def five(claims: dict[str, ClaimLine]) -> dict[str, ClaimLine]:
    """The claims of the papers that the counts below cover; a new paper brings its own tests."""
    return {name: claim for name, claim in claims.items() if claim.paper in FIVE}


@pytest.fixture(scope="module")
def params() -> Params:
    return load_params(ROOT)


def experiments_of(claim: ClaimLine, params: Params) -> list[ExperimentParams]:
    names = fnmatch.filter(params.experiments, claim.experiment) if claim.experiment else []
    return [params.experiments[name] for name in names]


def is_computed(claim: ClaimLine) -> bool:
    return not (claim.experiment or claim.family or claim.reason)


def test_all_claims_of_the_five_papers_and_the_orders_that_their_tables_imply_are_here(
    five: dict[str, ClaimLine],
) -> None:
    implied = {i for i in five if i.endswith(".order") or i.startswith("ninformer.rank.")}
    assert Counter(claim.paper for i, claim in five.items() if i not in implied) == FIVE
    assert len(implied) == 41
    assert Counter(five[i].kind for i in implied) == {"order": 39, "gap": 2}, "two tables print one arm behind"


def test_no_two_claims_of_a_paper_read_alike(claims: dict[str, ClaimLine]) -> None:
    """A claim is shown by its own words or, without any, by arms, metric and data sets."""
    names = Counter(
        (claim.paper, claim.statement or (claim.experiment, claim.arm, claim.baseline_arm, claim.metric, claim.place))
        for claim in claims.values()
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_every_claim_is_tested_in_one_place_or_says_why_not(claims: dict[str, ClaimLine]) -> None:
    for claim in claims.values():
        places = [claim.experiment is not None, claim.reason is not None, is_computed(claim)]
        assert sum(places) + (claim.facts.by == "orders") == 1, claim.id
        assert (claim.family is not None) >= (claim.facts.by == "orders"), claim.id
        assert claim.value is not None or claim.statement, f"{claim.id} says nothing"
        if claim.experiment is None:
            assert claim.arm is None and claim.baseline_arm is None, claim.id
        if claim.arm is None:
            assert claim.baseline_arm is None, claim.id


def test_computed_claims_are_those_with_a_finding(claims: dict[str, ClaimLine]) -> None:
    """A finding may also stand beside a row that is measured (NiNformer's times), never the other way round."""
    found = computed_findings().keys()
    assert {i for i, claim in claims.items() if is_computed(claim)} - found == set()
    assert found - set(claims) == set()


def test_every_experiment_of_a_claim_is_in_the_params_files_or_announced(
    claims: dict[str, ClaimLine], params: Params
) -> None:
    missing = {c.experiment for c in claims.values() if c.experiment and not experiments_of(c, params)}
    assert missing == TO_BE_BUILT - set(params.experiments), "TO_BE_BUILT names what params.yaml lacks, and no more"


def test_every_claim_is_placed_at_an_arm_of_its_paper(claims: dict[str, ClaimLine], params: Params) -> None:
    placed = place_claims(CLAIMS, list(claims.values()), params)
    waiting = [claim for claim in placed if claim.reason and claim.reason.endswith("is not in the params files yet")]
    assert {claims[claim.id].experiment for claim in waiting} <= TO_BE_BUILT
    assert all(claim.experiment is None for claim in waiting)


def test_a_comparison_stands_where_the_params_file_puts_the_arm(claims: dict[str, ClaimLine], params: Params) -> None:
    """The proposed arm against the one that its file names, unless the paper compares it with several."""
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


def test_settings_and_counts_name_what_the_params_files_hold(claims: dict[str, ClaimLine], params: Params) -> None:
    """All but the parameters of a grid, which results count."""
    for claim in claims.values():
        is_printed = claim.kind in ("setup", "count") and not claim.metric.endswith("(parameters)")
        if is_printed and experiments_of(claim, params):
            assert param_values(claim, params), claim.id


def test_differences_have_the_sign_and_size_of_the_papers_own_rows(claims: dict[str, ClaimLine]) -> None:
    """Gain = proposed − baseline, better positive, wherever the paper prints both."""
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


def test_a_loss_is_a_size_and_never_a_claimed_order(claims: dict[str, ClaimLine]) -> None:
    """No paper claims that its own arm is worse; a printed loss is a number, and only its size is judged."""
    compared = [claim for claim in claims.values() if claim.kind in ("order", "difference")]
    assert [claim.id for claim in compared if claim.value is not None and claim.value <= 0] == []
    assert [claim.id for claim in compared if claim.value is None and claim.paper in FIVE] == NO_SIZE
    losses = {claim.id for claim in claims.values() if claim.kind == "gap" and (claim.value or 0) < 0}
    assert losses >= {"hyperbf.text.c100.gap", "dac.table3.c10.v1.abs", "dac.table1.c100.v1.r44.order"}


def test_what_a_paper_calls_comparable_covers_its_own_losses(
    claims: dict[str, ClaimLine], five: dict[str, ClaimLine]
) -> None:
    for claim in five.values():
        if claim.kind == "equivalence" and claim.family and claim.value is not None:
            gap = claims[claim.id.replace(".comparable.", ".text.") + ".gap"]
            places = [(one.experiment, one.arm, one.baseline_arm, one.metric, one.better) for one in (claim, gap)]
            assert places[0] == places[1] and claim.value >= -gap.value > 0, claim.id


def test_relative_claims_have_the_sign_and_size_of_the_papers_own_rows(claims: dict[str, ClaimLine]) -> None:
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


def test_shares_of_dacs_gain_agree_with_its_gain(claims: dict[str, ClaimLine]) -> None:
    """Table 3's relative column over its absolute one gives DAC's gain, near Table 1's."""
    for data, cut in (("c10", "cifar10"), ("c100", "cifar100")):
        for version in ("v1", "v2"):
            absolute, share = (claims[f"dac.table3.{data}.{version}.{part}"] for part in ("abs", "rel"))
            assert math.copysign(1, absolute.value) == math.copysign(1, share.value)
            assert share.baseline_arm == f"dac-{absolute.baseline_arm}"
            assert absolute.experiment == share.experiment == f"dac-resnet-{cut}"
            order = claims[f"dac.table1.{data}.{version}.r20.order"]
            assert absolute.value / share.value == pytest.approx(order.value, abs=0.0015)


def test_families_are_the_orders_of_a_table(five: dict[str, ClaimLine]) -> None:
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
    assert len(positive) == five["dac.resnet.wins"].value, "Table 1 has one exception, as Figure 6 has"


def test_units_are_fractions_and_never_percent(claims: dict[str, ClaimLine]) -> None:
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


def test_kinds_are_a_closed_set_of_which_each_is_in_use_and_has_its_judge(claims: dict[str, ClaimLine]) -> None:
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


def test_an_unknown_kind_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ClaimsError, match=r"claims\.csv, line 2: kind: Input should be 'value', .* or 'qualitative'"):
        parse_claims(CLAIMS.read_text().replace(",value,0.7561,", ",proportion,0.7561,", 1), tmp_path / "claims.csv")


def test_the_one_better_way_of_each_metric(claims: dict[str, ClaimLine], five: dict[str, ClaimLine]) -> None:
    ways = {(claim.metric, claim.better) for claim in claims.values() if claim.better}
    twice = [metric for metric, times in Counter(metric for metric, _ in ways).items() if times > 1]
    assert twice == []
    assert {claim.metric for claim in five.values() if claim.better == "higher"} == {
        *("accuracy", "best_epoch_accuracy", "accuracy_after_inversion", "train_tokens_per_second"),
        *("epoch_1_test_accuracy", "epoch_2_test_accuracy"),
        "kernel_width_gap",
    }


def test_arithmetic_in_the_notes_is_right(claims: dict[str, ClaimLine]) -> None:
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


def test_the_file_is_plain_text_that_a_person_can_review() -> None:
    text = CLAIMS.read_text()
    with CLAIMS.open(newline="") as file:
        header = csv.DictReader(file).fieldnames
    assert header is not None and set(header) == {field.name for field in dataclasses.fields(ClaimLine)}
    assert max(map(len, text.splitlines())) < 400
    assert "\r" not in text


def toy(**change: object) -> ClaimLine:
    plain = {field.name: None for field in dataclasses.fields(ClaimLine)}
    row = {"id": "x", "paper": "dac", "place": "Table 1", "metric": "min_error", "kind": "value"}
    return ClaimLine(**(plain | row | change))


def test_a_claim_waits_for_its_experiment_and_says_so(params: Params) -> None:
    (placed,) = place_claims(CLAIMS, [toy(experiment="dac-not-yet", arm="mlp")], params)
    assert (placed.experiment, placed.reason) == (None, "its experiment dac-not-yet is not in the params files yet")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"experiment": "dac-resnet-cifar10", "arm": "resnet21-v1"}, "x: dac-resnet-cifar10 has no arm 'resnet21-v1'"),
        ({"experiment": "dac-resnet-*", "baseline_arm": "mba2-*"}, "x: dac-resnet-cifar10 has no arm 'mba2-"),
        ({"experiment": "ninformer-mnist", "arm": "vit"}, "x is of dac; ninformer-mnist is of ninformer"),
    ],
)
def test_a_claim_that_points_nowhere_is_refused(params: Params, change: dict[str, str], message: str) -> None:
    with pytest.raises(ClaimsError, match=re.escape(message)):
        place_claims(CLAIMS, [toy(**change)], params)


def test_a_star_stands_for_every_match(params: Params) -> None:
    claim = toy(experiment="dac-resnet-*", arm="dac-resnet*-v1")
    assert place_claims(CLAIMS, [claim], params) == [claim]
