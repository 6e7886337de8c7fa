"""A claim's box says for which part of a grid it holds, what is open and why, and when its rule was written."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.pages.concluding import Trend, conclude, qualify, range_of, tell_other_reading, tell_trend
from service.pages.legend import A_PART, part_of
from stages.recording.reporting import results_page
from stages.results import Claim, ClaimChange, ClaimRecord, PairGain, VerdictRow
from stages.verdicts import Scope
from tests.service.test_published_pages import text_of

TITLES = {"a-5": "NiNformer, 5 layers", "a-8": "NiNformer, 8 layers", "b": "ViT"}
GRID = {"id": "x", "metric": "selected_log_mse", "arm": "a-*", "baseline_arm": "b-*", "unit": "nats", "value": 0.25}
NUMBERS = {"estimate": 0.223, "low": 0.206, "high": 0.239}
PART = vars(Scope(pairs=14, planned_pairs=35, factor="depth", ran=(5, 8), missing=(6, 11, 16)))


def record(claim: Claim, status: str = "unresolved", changes: tuple[ClaimChange, ...] = (), **own: Any) -> ClaimRecord:
    verdict = VerdictRow(claim="x", status=status, basis="results", confidence=0.967, **own)
    none: dict[str, Any] = dict.fromkeys(("runs", "arms", "pairs", "deviations", "same_error"), ())
    places: dict[str, Any] = {"experiments": (), "datasets": (), "family": None, "changes": changes}
    return ClaimRecord(claim=claim, verdict=verdict, **places, **none)


def test_a_conclusion_says_which_way_and_by_how_much() -> None:
    titles = {"a": "NiNformer", "b": "ViT"}
    order = Claim(id="x", kind="order", metric="accuracy", unit="fraction", arm="a", baseline_arm="b")
    assert conclude(record(order, estimate=-0.0123, low=-0.03, high=0.01), titles) == (
        "NiNformer is worse than ViT by 1.23 pp (96.7 % interval −3.00 to 1.00 pp)."
    )
    value = Claim(id="x", kind="value", metric="accuracy", unit="fraction", value=0.9712, arm="a")
    assert conclude(record(value, estimate=-0.001, low=-0.006, high=0.004, ours=0.9702), titles) == (
        "We find 97.02 %, 0.10 pp below the paper’s 97.12 % (of the difference: 96.7 % interval −0.60 to +0.40 pp)."
    )
    assert conclude(record(value), titles) is None, "nothing was measured"
    by_width = Claim(id="x", kind="uniform", metric="selected_log_mse", value=0.25, unit="nats", factor="width")
    assert conclude(record(by_width, estimate=0.18179, low=0.0989, high=0.3158, margin=0.0625), titles) == (
        "The largest and the smallest gain by width differ by 0.18 nats (96.7 % interval 0.10 to 0.32 nats); "
        "up to 0.0625 nats would count as alike."
    )


def test_a_conclusion_on_part_of_a_grid_names_the_part() -> None:
    gain = Claim(kind="difference", **GRID)
    assert conclude(record(gain, "supported", scope=PART, **NUMBERS), TITLES) == (
        "At 5 and 8 layers NiNformer is better than its baseline by 0.223 nats "
        "(96.7 % interval 0.206 to 0.239 nats; 14 of 35 pairs)."
    )
    by_batch = {**PART, "factor": "batch", "ran": [32], "planned_pairs": 21}
    assert conclude(record(gain, scope=by_batch, **NUMBERS), TITLES).startswith("At batch 32 NiNformer is better")
    low = Claim(kind="behind_up_to", **{**GRID, "value": 1e4, "unit": "parameters"})
    few = vars(Scope(pairs=4, models=29, planned_models=111))
    numbers = {"estimate": -0.15339, "low": -0.19124, "high": -0.11555}
    assert conclude(record(low, "supported", scope=few, **numbers), TITLES) == (
        "Up to 10,000 parameters NiNformer is worse than its baseline by 0.153 nats, as the paper says (96.7 % "
        "interval −0.191 to −0.116 nats; mean of 4 pairs of equal size; 29 of the 111 models of the grid ran)."
    )
    high = Claim(kind="ahead_from", **{**GRID, "value": 1e5, "unit": "parameters"})
    one = vars(Scope(pairs=1))
    said = conclude(record(high, "unresolved", scope=one, **NUMBERS), TITLES)
    assert said is not None and said.startswith("From 100,000 parameters on NiNformer is better than its baseline by")
    assert "as the paper says" not in said and said.endswith("; mean of 1 pair of equal size).")


def test_the_box_says_what_is_open_and_why_and_the_interval_of_the_whole_grid() -> None:
    gain = Claim(kind="difference", **GRID)
    size = {"status": "inconclusive", "low": -0.055, "high": 0.0, "margin": 0.0625}
    whole = {**PART, "whole_low": -0.05, "whole_high": 0.49, "whole_confidence": 0.967}
    assert qualify(record(gain, "supported", scope=whole, size=size, **NUMBERS)) == [
        "6, 11 and 16 layers are not all trained; for the whole grid the 96.7 % interval is −0.05 to 0.49 nats, "
        "so no gain at all is still possible.",
        "Whether it is as large as the paper’s 0.25 nats is open: within the margin so far, but 21 of 35 pairs are "
        "not in it yet.",
        f"So “holds” applies only at 5 and 8 layers: {A_PART}.",
    ]
    wide = {**size, "low": -0.1}
    assert qualify(record(gain, "supported", scope=PART, size=wide, **NUMBERS)) == [
        "6, 11 and 16 layers are not all trained.",
        "Whether it is as large as the paper’s 0.25 nats is open: 21 of 35 pairs are not in it yet.",
        f"So “holds” applies only at 5 and 8 layers: {A_PART}.",
    ]
    assert qualify(record(gain, "supported", size=wide, **NUMBERS)) == [
        "Whether it is as large as the paper’s 0.25 nats is open: the interval lies neither within the margin nor "
        "wholly outside."
    ]
    alike = Claim(kind="uniform", factor="depth", **GRID)
    inside = {"estimate": 0.036, "low": 0.011, "high": 0.061, "margin": 0.0625}
    assert qualify(record(alike, "inconclusive", scope=PART, **inside))[-2:] == [
        "Whether it is alike at all is open: within the margin so far, but 21 of 35 pairs are not in it yet.",
        f"That is not enough for a verdict on the whole grid: {A_PART}.",
    ]
    against = qualify(record(Claim(kind="difference", **GRID), "reversed", scope=PART, **NUMBERS))[-1]
    assert against == f"So “fails” applies only at 5 and 8 layers: {A_PART}."


def test_sizes_that_were_compared_are_named_and_of_others_nothing_is_said() -> None:
    high = Claim(kind="ahead_from", **{**GRID, "value": 1e5, "unit": "parameters"})
    few = vars(Scope(pairs=2, models=29, planned_models=111))
    found = replace(record(high, "supported", scope=few, **NUMBERS), sizes=(143_801, 163_984))
    said = conclude(found, TITLES)
    assert said is not None and said.startswith(
        "From 100,000 parameters on, compared at 144,000 and 164,000 parameters,"
    )
    assert part_of(found) == "at 144,000 and 164,000 parameters"
    assert qualify(found)[0] == "82 of the 111 models were not trained; the verdict doesn’t cover other sizes."
    whole = vars(Scope(pairs=2))
    assert part_of(replace(record(high, "supported", scope=whole, **NUMBERS), sizes=(1, 2))) == ""
    many = replace(found, sizes=tuple(range(1000, 8000, 1000)))
    assert part_of(many) == "at 7 sizes from 1,000 to 7,000 parameters"
    grid = Claim(kind="difference", **GRID)
    assert part_of(record(grid, scope=vars(Scope(pairs=3, planned_pairs=9)), **NUMBERS)) == "3 of 9 pairs"
    assert part_of(record(grid, scope=vars(Scope(pairs=9, planned_pairs=9)), **NUMBERS)) == ""


def test_a_metric_changed_after_pairs_had_been_seen_is_said_with_what_the_first_one_says() -> None:
    gain = Claim(kind="difference", **GRID)
    first = {"metric": "log_mse", "status": "unresolved", "size": None, "ours": 0.2, "low": -0.0016, "high": 0.4269}
    best = {**first, "metric": "min_log_mse", "status": "supported"}
    metric = {"changed": {"metric": ("log_mse", "selected_log_mse")}, "date": "2026-11-22", "after_evidence": True}
    change = ClaimChange(subject="claim", seen=None, why="Appendix B; more", **metric)
    rule = ClaimChange(subject="rule", changed={}, seen=8, date="2026-11-22", why="Decision 0021: of older seeds.")
    (told,) = qualify(record(gain, "supported", (change, rule), variants=[first, best], **NUMBERS))
    assert told == (
        "It was first listed by another metric, “log of the test mean squared error, last epoch”: by that it is "
        "open (−0.002 to 0.427 nats). The metric was changed on 2026-11-22, after 8 pairs had been seen "
        "(decision 0021: of older seeds)."
    )
    (told,) = qualify(record(gain, "supported", (change,), variants=[best], **NUMBERS))
    assert told.endswith("The metric was changed on 2026-11-22, after results had been published (appendix B).")
    (told,) = qualify(record(gain, "supported", variants=[first, best], **NUMBERS))
    assert told == "By “log of the test mean squared error, last epoch” it is open (−0.002 to 0.427 nats)."


def test_a_gain_that_grows_says_so_and_one_that_wavers_does_not() -> None:
    widths = {18: 0.156, 25: 0.127, 35: 0.178, 50: 0.206, 71: 0.275, 100: 0.309, 141: 0.307}
    alike = Claim(kind="uniform", factor="width", **GRID)
    grows = trend_of(widths)
    assert grows.p_value == pytest.approx(2 * (1 + 6 + 20) / 5040), "two of the 21 pairs of widths are reversed"
    assert grows.rises is True
    assert tell_trend(grows, alike) == (
        "The gain grows with width, from 0.156 nats at 18 units to 0.307 nats at 141 units."
    )
    falls = trend_of(dict(zip(widths, [-gain for gain in widths.values()], strict=True)))
    assert falls.rises is False and tell_trend(falls, alike).startswith("The gain falls with width")
    wavers = trend_of(dict(zip(widths, (0.2, 0.3, 0.1, 0.4, 0.2, 0.3, 0.15), strict=True)))
    assert wavers.rises is None and tell_trend(wavers, alike) == ""
    assert trend_of({5: 0.1, 8: 0.2}).rises is None, "two levels show no trend"
    assert range_of(grows, alike) == "0.127 to 0.309 nats"
    assert tell_other_reading(grows).endswith(
        "“better at every width”, all 7 trained pairs agree, each with an interval above 0; "
        "we don’t judge that reading."
    )


def trend_of(gains: dict[int, float]) -> Trend:
    near = {"experiment": "e", "against": "b", "n": 5}
    pairs = tuple(
        (level, PairGain(arm=f"a-{level}", gain=gain, low=gain - 0.05, high=gain + 0.05, **near))
        for level, gain in gains.items()
    )
    return Trend(factor="width", gains=dict(gains), pairs=pairs)


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ("reproduced", ["It is also as large as the paper prints, within the margin."]),
        ("not reproduced", ["It is not as large as the paper prints."]),
        (None, []),
    ],
)
def test_a_difference_says_whether_it_is_as_large_as_printed(status: str | None, told: list[str]) -> None:
    size = None if status is None else {"status": status}
    assert qualify(record(Claim(kind="difference", **GRID), "supported", size=size, **NUMBERS)) == told


def test_a_rule_written_after_results_had_been_seen_is_said_in_the_box() -> None:
    gain = Claim(kind="difference", **GRID)
    changes = tuple(
        ClaimChange(subject="rule", seen=seen, why=why) for seen, why in ((8, "The metric."), (14, "The part."))
    )
    seen = record(gain, "supported", changes, seen_before_rule=14, **NUMBERS)
    assert qualify(seen) == ["Judged by a rule written after 14 pairs had been seen (the part)."]
    value = Claim(id="x", kind="value", metric="accuracy", arm="a")
    assert qualify(record(value, seen_before_rule=1)) == ["Judged by a rule written after 1 result had been seen."]


@pytest.fixture(scope="module")
def client(published_client: TestClient) -> TestClient:
    return published_client


def test_a_claim_s_page_begins_with_what_came_out_for_the_part_that_ran(client: TestClient) -> None:
    html = client.get("/claims/dac.sgemm.gain").text
    box = unescape(html[html.index('<div class="fidelity') :].partition("</div>")[0])
    verdict = client.get("/api/v1/claims/dac.sgemm.gain").json()["verdict"]
    scope = verdict["scope"]
    assert (scope["ran"], scope["missing"], scope["pairs"], scope["planned_pairs"]) == ([5, 8], [6, 11, 16], 14, 35)
    assert scope["whole_low"] < 0 < verdict["low"] < verdict["high"] < scope["whole_high"]
    sentence = re.search(r"<strong>(.*?)</strong>", box)
    assert sentence is not None
    assert re.fullmatch(
        r"At 5 and 8 layers DAC is better than its baseline by 0\.22\d* nats "
        r"\(99\.98 % interval 0\.1\d* to 0\.2\d* nats; 14 of 35 pairs\)\.",
        sentence[1],
    )
    limits = re.findall(r"<li>(.*?)</li>", box)
    assert limits[0].endswith("so no gain at all is still possible.")
    assert limits[1].startswith("Whether it is as large as the paper’s 0.25 nats is open: within the margin so far")
    assert limits[2] == f"So “holds” applies only at 5 and 8 layers: {A_PART}."
    assert re.search(r"“log of the test mean squared error, last epoch”: by that it is open .*8 pairs", limits[3])
    assert "We trained both models again" in box and verdict["explanation"] not in box.partition("<summary>")[0]


def test_a_reading_that_misses_the_number_is_not_said_to_leave_either_answer(client: TestClient) -> None:
    """It is inconclusive since a reading of ours refutes nothing, not since its runs are too few."""
    claim = client.get("/api/v1/claims/nmn.ext.mnist.invert.yat").json()
    assert claim["verdict"]["status"] == "inconclusive" and claim["verdict"]["high"] < -claim["verdict"]["margin"]
    page = client.get("/claims/nmn.ext.mnist.invert.yat").text
    assert "a reading can’t refute it" in page and "either answer possible" not in page


def test_a_spread_of_printed_numbers_is_told_in_points_and_compares_no_models(client: TestClient) -> None:
    page = text_of(client.get("/claims/nmn.ext.mnist.frameworks").text)
    assert re.search(
        r"The 4 printed numbers span 1\.31 pp; as many seeds of ours usually span 0\.\d\d pp at most "
        r"\(\S+ % interval 0\.\d\d to \d\.\d\d pp\)\.",
        page,
    )
    assert "1.31 pp between the largest and the smallest of 4" in page
    assert "both models" not in page and " fraction we find" not in page
    assert "they alone don’t explain what the paper prints" in page and "the other model is better" not in page


def test_no_page_calls_a_rule_fixed_beforehand_that_was_not(client: TestClient, published: str) -> None:
    claims = client.get("/api/v1/claims?limit=1000").json()
    later = {claim["id"]: claim for claim in claims if claim["verdict"]["seen_before_rule"] is not None}
    assert {"dac.sgemm.uniform", "dac.sgemm.crossover_low", "dac.sgemm.crossover_high"} <= set(later)
    method = unescape(client.get("/method").text)
    for name, claim in later.items():
        seen, what = claim["verdict"]["seen_before_rule"], "pair" if claim["baseline_arm"] else "result"
        told = f"Judged by a rule written after {seen} {what}{'' if seen == 1 else 's'} had been seen"
        box = unescape(client.get(f"/claims/{name}").text).partition('<dl class="tiles">')[0]
        assert told in box and "beforehand" not in box, name
        assert re.search(rf'{told}: <a href="/claims/{name}">', method), name
    assert "beforehand" not in method
    results = results_page(published)
    rows = dict(re.findall(r"(?m)^\| `([^`]+)` \|(.*)$", results))
    assert {name for name, row in rows.items() if "Judged by a rule written after" in row} == set(later)
