"""Titles of claims, their order on pages, and summaries of papers."""

import csv
import re
from typing import Any

import pytest

from service.pages.concluding import WIDTH, describe_chance_of_truth, plan_in_words, strip_of
from service.pages.formats import by_reading, in_terms_of, print_value, span
from service.pages.printed import IN_THE_TEXT, Cell, count_errors, group_by_place, lay_out, take_apart
from service.pages.wording import (
    agreement,
    as_run,
    name_claim,
    name_metric,
    ours_in_words,
    print_ours,
    read_terms,
    span_of,
    verdict_in_words,
)
from stages.claims.judging import DEFENSIBLE
from stages.results import Claim, JudgedClaim, VerdictRow
from stages.verdicts import Scope
from tests.service.results_factory import REPOSITORY


def judge(name: str, status: str, basis: str = "finding", ours: float | None = None) -> JudgedClaim:
    verdict = VerdictRow(claim=name, status=status, is_decidable=True, basis=basis, ours=ours)
    return JudgedClaim(claim=Claim(id=name), verdict=verdict, experiments=(), datasets=())


@pytest.mark.parametrize(
    ("answers", "provenances", "expected"),
    [
        (["7", "7", "7"], ["full"] * 3, "all 3 say 7"),
        (["7", "1", "7"], ["full"] * 3, "2 of 3 say 7"),
        (["7", "1"], ["full"] * 2, "they differ"),
        (["7", "7", "1"], ["full", "full", "embedded"], "both say 7"),
        (["7", "7"], ["full", "embedded"], "–"),
    ],
)
def test_agreement_is_of_models_of_real_images(answers: list[str], provenances: list[str], expected: str) -> None:
    assert agreement(answers, provenances) == expected


def test_every_claim_has_a_title_in_words() -> None:
    with (REPOSITORY / "data" / "claims.csv").open(newline="") as file:
        metrics = {row["metric"] for row in csv.DictReader(file) if not row["statement"]}
    assert [name for name in map(name_metric, metrics) if not re.fullmatch("[A-Z][A-Za-z0-9, -]+", name)] == []
    alternatives = {metric for group in DEFENSIBLE for metric in group}
    assert set(read_terms("metric")) <= metrics | alternatives, "no word is unused"
    claim = Claim(id="x", arm="vit", metric="flops_per_image")
    judged = JudgedClaim(claim=claim, verdict=VerdictRow(), experiments=(), datasets=("mnist",))
    assert name_claim(judged, {"mnist": "MNIST"}, {}) == "vit: FLOPs per image (MNIST)"


def test_result_is_printed_in_its_own_unit() -> None:
    by_size = Claim(id="x", kind="behind_up_to", metric="selected_log_mse", value=1e4, unit="parameters")
    by_width = Claim(id="x", kind="uniform", metric="selected_log_mse", value=0.25, unit="nats", factor="width")
    assert (print_value(by_size), print_value(by_width)) == ("worse up to 10,000 parameters", "0.25 nats")
    assert (in_terms_of(-0.153, by_size), in_terms_of(0.127, by_width)) == ("−0.153 nats", "0.127 nats")
    wins = Claim(id="x", kind="wins", metric="window_error", unit="orders")
    gain = Claim(id="x", kind="ratio", metric="accuracy", unit="relative gain")
    assert (as_run(0.07, wins), as_run(0.5, gain), as_run(-5.1, by_size)) == ("7.00 %", "50.00 %", "−5.1 nats")


@pytest.mark.parametrize(
    ("value", "kind", "metric", "unit", "better", "expected"),
    [
        (0.0036, "order", "min_error", "fraction", "lower", "0.36 pp lower"),
        (-0.0002, "order", "min_error", "fraction", "lower", "0.02 pp higher"),
        (0.0388, "order", "accuracy", "fraction", "higher", "3.88 pp higher"),
        (-0.04, "ratio", "train_tokens_per_second", "relative gain", "higher", "4 % lower"),
        (0.36, "ratio", "inference_time", "relative gain", "lower", "36 % longer"),
        (-0.01, "ratio", "inference_time", "relative gain", "lower", "1 % shorter"),
    ],
)
def test_difference_states_its_direction(
    value: float, kind: str, metric: str, unit: str, better: str, expected: str
) -> None:
    """A gain in error means fewer errors, a relative gain in time is the other model's extra time."""
    assert print_value(Claim(id="x", kind=kind, metric=metric, value=value, unit=unit, better=better)) == expected


def test_error_at_several_places_counts_once() -> None:
    rows = [judge(name, "contradicted") for name in "abc"]
    for row in rows[:2]:
        row.claim.finding = {"error": "unit", "explanation": "The unit can't be right. By its peak."}
    assert count_errors([*rows, judge("d", "holds")]) == {"fails": (3, 2)}
    assert count_errors(rows[1:]) == {}


def test_each_of_several_readings_that_hold_has_its_number() -> None:
    readings = [{"name": "as all", "ours": 0.9997, "holds": True}, {"name": "as used", "ours": 1.0149, "holds": True}]
    claim = Claim(id="x", kind="ratio", metric="parameters_ratio", value=1.0, unit="of the baseline")
    claim.finding = {"status": "holds", "readings": readings}
    verdict = VerdictRow(ours=1.0149, basis="finding")
    assert by_reading(claim) == [("as all", "0.9997 times the baseline’s"), ("as used", "1.015 times the baseline’s")]
    assert print_ours(verdict, claim) == "0.9997 to 1.015 times the baseline’s"
    claim.finding = {"status": "holds under a reading", "readings": readings}
    assert len(by_reading(claim)) == 2 and print_ours(verdict, claim) == "1.015 times the baseline’s"
    verdict.status = "holds under a reading"
    judged = JudgedClaim(claim=claim, verdict=verdict, experiments=(), datasets=())
    assert ours_in_words(judged) == "0.9997 times the baseline’s (as all); 1.015 times the baseline’s (as used)"
    readings[1] |= {"ours": None, "brief": "less from 7 tokens on"}
    assert ours_in_words(judged) == "0.9997 times the baseline’s (as all); less from 7 tokens on (as used)"


def test_number_has_the_precision_of_its_interval() -> None:
    claim = Claim(id="x", kind="difference", metric="selected_log_mse", unit="nats")
    verdict = VerdictRow(ours=0.222512, low=0.205793, high=0.239232)
    assert print_ours(verdict, claim) == "0.223 nats higher"
    assert print_ours(VerdictRow(ours=0.222512), claim) == "0.2225 nats higher", "no interval"
    assert span_of(-0.00159, 0.42686, claim) == "−0.002 to 0.427 nats"
    assert span(-4.225, -4.1061, "nats") == "−4.225 to −4.106 nats"
    assert span(60_000.0, 60_010.0, "") == "60,000 to 60,010"
    fraction = Claim(id="x", kind="value", metric="accuracy", unit="fraction")
    assert print_ours(VerdictRow(ours=0.97123, low=0.9705, high=0.9719), fraction) == "97.12 %"


def test_short_verdict_mentions_an_open_size() -> None:
    def words_of(status: str | None, scope: Scope | None = None) -> str:
        size, part = {"status": status} if status else None, vars(scope) if scope else None
        verdict = VerdictRow(status="supported", size=size, scope=part)
        return verdict_in_words(JudgedClaim(claim=Claim(id="x"), verdict=verdict, experiments=(), datasets=()))

    assert words_of("inconclusive") == words_of("undecidable at this margin") == "holds, size open"
    assert words_of("not reproduced") == "holds, size fails"
    assert words_of(None) == "holds"
    part = Scope(pairs=2, planned_pairs=4, factor="depth", ran=(5,), missing=(8,))
    assert words_of("inconclusive", part) == "holds, size open, at 5 layers"


STRETCHES = [
    {"start": 0.0, "status": "not reproduced"},
    {"start": 0.004, "status": "inconclusive"},
    {"start": 0.016, "status": "reproduced"},
]


def judged_at(kind: str = "value", **verdict: Any) -> JudgedClaim:
    claim = Claim(id="x", kind=kind, unit="fraction", metric="accuracy", factor="width" if kind == "uniform" else None)
    return JudgedClaim(claim=claim, verdict=VerdictRow(**verdict), experiments=(), datasets=())


def test_strip_shows_the_margins_and_the_one_in_use() -> None:
    strip = strip_of(judged_at(by_margin=STRETCHES, margin=0.01))
    assert strip is not None
    assert [(part.status, part.side, part.label) for part in strip.parts] == [
        ("fails", "against", ""),
        ("open", "open", "0.40 pp"),
        ("holds", "for", "1.60 pp"),
    ]
    assert [part.x for part in strip.parts] == pytest.approx([0, WIDTH / 5, WIDTH * 4 / 5])
    assert strip.parts[-1].x + strip.parts[-1].width == WIDTH and strip.at == WIDTH / 2


def test_strip_and_chance_are_omitted_if_undefined() -> None:
    assert strip_of(judged_at(by_margin=[], margin=0.01)) is None and strip_of(judged_at()) is None
    assert describe_chance_of_truth(judged_at()) == ""


VALUE = {"kind": "value", "metric": "accuracy", "unit": "fraction", "value": 0.75, "arm": "a"}
GAIN = {**VALUE, "kind": "order", "baseline_arm": "b"}


def tell(claim: dict[str, Any], **power: Any) -> str | None:
    names = ("supported", "reproduced", "not_reproduced", "needed", "needed_for_size", "margin", "paper_error", "most")
    names += ("supported_at_half",)
    whole = {**dict.fromkeys(names), "planned": 5, "can_reproduce": True, "source": "printed", **power}
    plan = plan_in_words(Claim(id="x", **claim), VerdictRow(power=whole))
    return None if plan is None else " ".join([plan[0], *plan[1]])


@pytest.mark.parametrize("claim", [VALUE, GAIN, {**GAIN, "kind": "equivalence"}, {**GAIN, "kind": "uniform"}])
def test_chance_by_an_assumed_spread_is_marked_and_never_near_certainty(claim: dict[str, Any]) -> None:
    sure = {"reproduced": 0.9999, "not_reproduced": 0.9999, "margin": 0.3, "most": 1.0, "paper_error": 0.001}
    if claim is not VALUE and claim["kind"] != "uniform":
        sure |= {"supported": 0.9999}
    guessed, known = tell(claim, source="assumed", **sure), tell(claim, source="measured", **sure)
    assert guessed is not None and known is not None
    assert "more than 95 %, if runs vary as we assume." in guessed and "99 %" not in guessed
    assert "more than 99 %." in known and "assume" not in known
    close = tell(claim, source="assumed", **{name: value and 0.97 for name, value in sure.items() if name != "margin"})
    assert close is not None and "more than 95 %, if runs vary" in close and "97 %" not in close


def test_chance_is_omitted_if_no_spread_is_known() -> None:
    assert tell({**VALUE, "kind": "observed"}) is None
    assert plan_in_words(Claim(id="x", **VALUE), VerdictRow(power=None)) is None


def at_place(place: str, kind: str = "value", basis: str = "none", arm: str | None = "vit") -> JudgedClaim:
    claim = Claim(id=f"{place} {kind}", place=place, kind=kind, arm=arm, experiment=arm and "x")
    return JudgedClaim(claim=claim, verdict=VerdictRow(basis=basis), experiments=(), datasets=())


def grouped(*places: str) -> dict[str, list[str]]:
    found = group_by_place([at_place(place) for place in places])
    return {title: [row.claim.place for row in rows] for title, rows in found.items()}


def test_claims_are_ordered_by_tables_then_figures_then_text() -> None:
    found = grouped("section 5", "Figure 10", "abstract", "section 3.2", "Table 2", "Figure 3", "section 3.10")
    assert list(found) == ["Table 2", "Figure 3", "Figure 10", IN_THE_TEXT]
    assert found[IN_THE_TEXT] == ["abstract", "section 3.2", "section 3.10", "section 5"]


def test_statements_about_a_table_are_grouped_with_it() -> None:
    assert grouped("Table 1", "section 5, Table 1", "section 5, Figure 9", "Figures 6 and 11") == {
        "Table 1": ["Table 1", "section 5, Table 1"],
        "Figures 6 and 11": ["Figures 6 and 11"],
        "Figure 9": ["section 5, Figure 9"],
    }


def test_sections_with_several_claims_keep_their_headings() -> None:
    assert list(grouped("section 4", *["section 5"] * 3)) == ["Section 4", "Section 5"]
    assert list(grouped("AetherGPT", "AetherGPT, Efficiency", "AetherGPT", "AetherResNet")) == [
        "AetherGPT",
        "AetherResNet",
    ]


def test_computed_number_of_a_model_is_grouped_with_results() -> None:
    cell, theorem = at_place("Table 3", basis="finding"), at_place("section 4", "theorem", "finding", arm=None)
    setting, size = at_place("section 3", "setup", "params"), at_place("section 3", "count", "params")
    operations = at_place("Table 2", basis="finding", arm=None)
    parts = take_apart([setting, cell, size, theorem, operations])
    assert parts.results == {"Table 3": [cell]}
    assert (parts.computed, parts.settings, parts.counted) == ([theorem, operations], [setting], [size])


def test_claims_outside_the_table_keep_their_order() -> None:
    titles = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
    arms = {(f"x-{dataset}", arm): arm.upper() for dataset in titles for arm in ("vit", "mixer")}

    def claim(name: str, arm: str | None, dataset: str, kind: str = "value", metric: str = "accuracy") -> JudgedClaim:
        row = Claim(id=name, kind=kind, arm=arm, metric=metric)
        return JudgedClaim(claim=row, verdict=VerdictRow(), experiments=(f"x-{dataset}",), datasets=(dataset,))

    a, b, c = claim("a", "vit", "mnist"), claim("b", "vit", "cifar10"), claim("c", "mixer", "cifar10")
    order, lone = claim("order", "vit", "mnist", "order"), claim("lone", "vit", "mnist", metric="loss")
    twice, foreign = claim("twice", "vit", "mnist"), claim("foreign", "resnet", "mnist")
    (table,), rest = lay_out([lone, a, order, b, twice, c, foreign], titles, arms)
    assert (table.metric, table.columns) == ("Test accuracy, last epoch", ("MNIST", "CIFAR-10"))
    assert table.rows == (("VIT", (Cell(a), Cell(b))), ("MIXER", (None, Cell(c))))
    assert [row.claim.id for row in rest] == ["lone", "order", "twice", "foreign"]
    for row in (order, gain := claim("gain", "vit", "cifar10", "gap", metric="loss")):
        row.claim.baseline_arm = "mixer"
    more = claim("more", "vit", "mnist", "ratio", metric="loss")
    more.claim.baseline_arm = "mixer"
    (table, pairs), rest = lay_out([a, order, b, gain, c, more], titles, arms)
    assert table.rows[0] == ("VIT", (Cell(a, [("MIXER", order)]), Cell(b))), "a gain is shown with the model's number"
    assert pairs.rows == (("VIT against MIXER", (Cell(None, [("", gain)]), Cell(None, [("", more)]))),)
    assert (pairs.is_of_pairs, pairs.columns, rest) == (True, ("CIFAR-10", "MNIST"), [])
