"""How pages name a claim, which claims they show first, and how they sum up a paper."""

import csv
import re

import pytest

from service.pages.formats import by_reading, flops, imply, in_terms_of, span
from service.pages.printed import count_errors
from service.pages.wording import (
    _WORDS,
    agreement,
    as_run,
    caption_all,
    count_verdicts,
    name_claim,
    name_metric,
    name_reading,
    ours_in_words,
    print_ours,
    print_value,
    shared_errors,
    span_of,
    tell_verdicts,
    verdict_in_words,
)
from stages.claims.judging import DEFENSIBLE
from stages.results import Claim, Counts, Discoveries, JudgedClaim, Outlook, Tally, VerdictRow
from stages.verdicts import Scope
from tests.service.results_factory import REPOSITORY


def judge(name: str, status: str, basis: str = "finding", ours: float | None = None) -> JudgedClaim:
    verdict = VerdictRow(claim=name, status=status, is_decidable=True, basis=basis, ours=ours)
    return JudgedClaim(claim=Claim(id=name), verdict=verdict, experiments=(), datasets=())


@pytest.mark.parametrize(
    ("answers", "provenances", "told"),
    [
        (["7", "7", "7"], ["full"] * 3, "all 3 say 7"),
        (["7", "1", "7"], ["full"] * 3, "2 of 3 say 7"),
        (["7", "1"], ["full"] * 2, "they differ"),
        (["7", "7", "1"], ["full", "full", "embedded"], "both say 7"),
        (["7", "7"], ["full", "embedded"], "–"),
    ],
)
def test_agreement_is_of_models_that_saw_real_images(answers: list[str], provenances: list[str], told: str) -> None:
    assert agreement(answers, provenances) == told


def test_a_place_begins_with_how_many_of_its_claims_are_decided() -> None:
    waiting, read, against = judge("a", "not tested"), judge("b", "holds under a reading"), judge("c", "contradicted")
    assert tell_verdicts([waiting, judge("d", "not tested")], {"a"}) == (
        "None of these 2 claims is decided yet (2 not tested). For 1 we have a first indication, which decides nothing."
    )
    assert tell_verdicts([against]) == "All 1 claims are decided (1 fails)."
    assert tell_verdicts([read, against]).endswith("(1 fails), the others are not (1 open).")
    assert tell_verdicts([waiting, against]) == (
        "1 of these 2 claims is decided (1 fails), the others are not (1 not tested)."
    )
    assert count_verdicts([judge("a", "as printed"), waiting]) == (
        "a setting, and ours is the same: 1; not trained or computed yet: 1"
    )


def test_an_error_at_several_places_is_named_once_a_place_of_the_paper() -> None:
    first, other, alone = (judge(name, "contradicted") for name in "abc")
    for row, error in ((first, "unit"), (other, "unit"), (alone, "slip")):
        row.claim.finding = {"error": error}
    none = Counts(decidable=0, in_favour=0, under_reading=0, against=0, open=0, waiting=0)
    outlook = Outlook(waiting=0, hopeless=0, order_only=0, unlikely=0, unknown=0, assumed=0)
    parts = {"trained": none, "computed": none, "data": none, "outlook": outlook, "settings": 0, "untestable": 0}
    parts["discoveries"] = Discoveries(tested=0, decided=0, survive=0, without=0)
    tally = Tally(paper="p", claims=3, **vars(none), **parts, errors={"unit": 2})
    assert shared_errors([first, other, alone], tally) == {"unit": first}
    assert shared_errors([alone], tally) == {}


def test_large_numbers_have_a_prefix_and_no_exponent() -> None:
    assert [flops(number) for number in (2.2e8, 1.52e15, 2.9e17, 3e18)] == [
        "220 MFLOP",
        "1.52 PFLOP",
        "290 PFLOP",
        "3 EFLOP",
    ]


def test_what_was_computed_is_written_as_people_write_it() -> None:
    computed = {"flops_per_image": 286790656.0, "times_peak": 149.5234, "share": 0.11329294}
    told = [("operations for an image", "287 MFLOP"), ("over the card’s peak", "149.5 times"), ("share", "0.1133")]
    assert caption_all(computed, "ninformer") == told


def test_every_claim_is_named_in_words() -> None:
    with (REPOSITORY / "data" / "claims.csv").open(newline="") as file:
        metrics = {row["metric"] for row in csv.DictReader(file) if not row["statement"]}
    assert [name for name in map(name_metric, metrics) if not re.fullmatch("[A-Z][A-Za-z0-9, -]+", name)] == []
    alternatives = {metric for group in DEFENSIBLE for metric in group}
    assert set(_WORDS) <= metrics | alternatives, "no word without a claim"
    claim = Claim(id="x", arm="vit", metric="flops_per_image")
    judged = JudgedClaim(claim=claim, verdict=VerdictRow(), experiments=(), datasets=("mnist",))
    assert name_claim(judged, {"mnist": "MNIST"}, {}) == "vit: FLOPs per image (MNIST)"


def test_what_is_found_is_in_its_own_unit_and_no_number_of_parameters() -> None:
    by_size = Claim(id="x", kind="behind_up_to", metric="selected_log_mse", value=1e4, unit="parameters")
    by_width = Claim(id="x", kind="uniform", metric="selected_log_mse", value=0.25, unit="nats", factor="width")
    assert (print_value(by_size), print_value(by_width)) == (
        "worse up to 10,000 parameters",
        "0.25 nats",
    )
    assert (in_terms_of(-0.153, by_size), in_terms_of(0.127, by_width)) == ("−0.153 nats", "0.127 nats")
    wins = Claim(id="x", kind="wins", metric="window_error", unit="orders")
    gain = Claim(id="x", kind="ratio", metric="accuracy", unit="relative gain")
    assert (as_run(0.07, wins), as_run(0.5, gain), as_run(-5.1, by_size)) == ("7.00 %", "50.00 %", "−5.1 nats")


def test_a_difference_tells_its_way_whichever_way_is_better() -> None:
    """A gain in error is fewer errors, a relative gain in time is what the other model takes longer."""

    def printed(value: float, kind: str, metric: str, unit: str, better: str) -> str:
        return print_value(Claim(id="x", kind=kind, metric=metric, value=value, unit=unit, better=better))

    assert printed(0.0036, "order", "min_error", "fraction", "lower") == "0.36 pp lower"
    assert printed(-0.0002, "order", "min_error", "fraction", "lower") == "0.02 pp higher"
    assert printed(0.0388, "order", "accuracy", "fraction", "higher") == "3.88 pp higher"
    assert printed(0.24, "ratio", "accuracy", "relative gain", "higher") == "24 % higher"
    assert printed(-0.04, "ratio", "train_tokens_per_second", "relative gain", "higher") == "4 % lower"
    assert printed(0.36, "ratio", "inference_time", "relative gain", "lower") == "36 % longer"
    assert printed(-0.01, "ratio", "inference_time", "relative gain", "lower") == "1 % shorter"
    span = Claim(id="x", kind="range", metric="loss", value=0.15, high=0.25, unit="relative reduction", better="lower")
    assert print_value(span) == "15 to 25 % lower"
    of_time = Claim(id="x", metric="inference_time", unit="relative gain", better="lower", arm="a", baseline_arm="b")
    judged = JudgedClaim(claim=of_time, verdict=VerdictRow(), experiments=("e",), datasets=())
    titles = {("e", "a"): "NiNformer", ("e", "b"): "ViT"}
    assert name_claim(judged, {}, titles) == "ViT against NiNformer: inference time per sample"


def test_a_number_says_what_it_is_of_and_none_stands_where_none_is_printed() -> None:
    tally = Claim(id="x", kind="tally", metric="accuracy", value=9, trials=9, unit="orders")
    assert print_value(tally) == "9 of 9 comparisons"
    seen = Claim(id="x", kind="observed", metric="kernel_width_gap", value=0.0, better="higher")
    assert (print_value(seen), imply(seen)) == ("–", "ln σ(feed-forward) − ln σ(attention) above 0")
    assert imply(tally) is None


def test_one_error_at_several_places_counts_once() -> None:
    rows = [judge(name, "contradicted") for name in "abc"]
    for row in rows[:2]:
        row.claim.finding = {"error": "unit", "explanation": "The unit can't be right. By its peak."}
    assert count_errors([*rows, judge("d", "holds")]) == {"fails": (3, 2)}
    assert count_errors(rows[1:]) == {}


def test_of_readings_that_all_hold_each_has_its_number() -> None:
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


def test_a_number_is_as_precise_as_its_interval() -> None:
    claim = Claim(id="x", kind="difference", metric="selected_log_mse", unit="nats")
    verdict = VerdictRow(ours=0.222512, low=0.205793, high=0.239232)
    assert print_ours(verdict, claim) == "0.223 nats higher"
    assert print_ours(VerdictRow(ours=0.222512), claim) == "0.2225 nats higher", "there is no interval"
    assert span_of(-0.00159, 0.42686, claim) == "−0.002 to 0.427 nats"
    assert span(-4.225, -4.1061, "nats") == "−4.225 to −4.106 nats"
    assert span(60_000.0, 60_010.0, "") == "60,000 to 60,010"
    fraction = Claim(id="x", kind="value", metric="accuracy", unit="fraction")
    assert print_ours(VerdictRow(ours=0.97123, low=0.9705, high=0.9719), fraction) == "97.12 %"


def test_a_verdict_that_travels_says_that_its_size_is_open() -> None:
    def told(status: str | None, scope: Scope | None = None) -> str:
        size, part = {"status": status} if status else None, vars(scope) if scope else None
        verdict = VerdictRow(status="supported", size=size, scope=part)
        return verdict_in_words(JudgedClaim(claim=Claim(id="x"), verdict=verdict, experiments=(), datasets=()))

    assert told("inconclusive") == told("undecidable at this margin") == "holds, size open"
    assert told("not reproduced") == "holds, size fails"
    assert told(None) == "holds"
    part = Scope(pairs=2, planned_pairs=4, factor="depth", ran=(5,), missing=(8,))
    assert told("inconclusive", part) == "holds, size open, at 5 layers"


def test_what_holds_as_read_in_one_way_says_which() -> None:
    row = judge("a", "holds under a reading")
    readings = [("as growth", True), ("at the paper's sizes", False), ("with one product", False)]
    row.claim.finding = {"readings": [{"name": name, "holds": holds} for name, holds in readings]}
    assert name_reading(row) == "only if read as growth, not at the paper's sizes or with one product"
    assert name_reading(judge("a", "holds")) is None
    assert name_reading(judge("a", "holds under a reading")) is None, "comparable arms have no named reading"
