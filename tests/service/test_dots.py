"""Printed numbers against ours: places of dots, intervals and margins on inline SVG."""

import re
from html import unescape
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.pages.dots import WIDTH, draw_claim, draw_lines, draw_strip, share_of
from stages.results import Claim, JudgedClaim, VerdictRow


def judge(
    name: str, *, kind: str = "value", value: float | None = 1.0, basis: str = "results", **verdict: Any
) -> JudgedClaim:
    claim = Claim(id=name, kind=kind, metric="accuracy", unit="nats", value=value, better="higher")
    row = VerdictRow(claim=name, basis=basis, is_decidable=True, **{"status": "inconclusive", **verdict})
    return JudgedClaim(claim=claim, verdict=row, experiments=(), datasets=())


def test_our_number_is_a_share_of_the_printed_one_with_its_interval() -> None:
    value = judge("a", value=0.5, ours=0.4, estimate=-0.1, low=-0.2, high=0.0)
    assert share_of(value) == pytest.approx((0.8, 0.6, 1.0)), "of a value the interval is of the difference"
    gain = judge("b", kind="difference", value=0.5, ours=0.4, estimate=0.4, low=0.3, high=0.6)
    assert share_of(gain) == pytest.approx((0.8, 0.6, 1.2)), "of a gain it is of the gain"
    lower = judge("c", kind="gap", value=-0.5, ours=-0.4, estimate=-0.4, low=-0.6, high=-0.3)
    assert share_of(lower) == pytest.approx((0.8, 0.6, 1.2)), "its ends rise also below zero"
    within = judge("d", value=0.15, basis="finding", ours=0.25)
    within.claim.high = 0.25
    assert share_of(within) == (1.0, None, None)
    assert share_of(judge("e", value=None, ours=1.0)) is share_of(judge("f", basis="params", ours=1.0)) is None


def test_numbers_that_fall_together_are_one_dot_and_an_interval_that_is_seen_stands_alone() -> None:
    exact = [judge(name, basis="finding", status="holds", ours=1.0 + 0.001 * n) for n, name in enumerate("abc")]
    false = judge("d", basis="finding", status="contradicted", ours=0.3)
    wide = judge("e", ours=0.8, estimate=-0.2, low=-0.5, high=0.1)
    names = {name: name.upper() for name in "abcde"}
    strip = draw_strip([*exact, false, wide], names)
    assert sorted((dot.claim, dot.count, dot.side) for dot in strip.dots) == [
        *(("a", 3, "for"), ("d", 1, "against"), ("e", 1, "open"))
    ]
    by_claim = {dot.claim: dot for dot in strip.dots}
    assert by_claim["a"].x == pytest.approx(WIDTH / 1.5, abs=0.1) and by_claim["d"].label == "1 nats → 0.3 nats"
    assert (by_claim["e"].low, by_claim["e"].high) == pytest.approx((WIDTH / 3, WIDTH * 1.1 / 1.5), abs=0.1)
    ordered = [row.claim.id for row, _ in draw_lines([*exact, false, wide], names)]
    assert ordered == [*"deabc"], "what fails comes first"
    far = draw_strip([judge("f", basis="finding", ours=4.2)], {"f": "F"}).dots[0]
    assert far.x == WIDTH and far.label == "4.2 × ▸"


def test_a_claim_is_drawn_in_its_unit_with_the_margin_around_the_printed_number() -> None:
    gain = judge("a", kind="difference", value=0.25, ours=0.2, estimate=0.2, low=0.1, high=0.3, margin=0.05)
    plot = draw_claim(gain, "A")
    assert plot is not None and plot.same == pytest.approx((0.2, 0.3))
    assert [plot.low, plot.ours, plot.printed, plot.high] == pytest.approx([0.1, 0.2, 0.25, 0.3])
    (zero,) = [tick for tick in plot.axis.ticks if tick.text == "0"]
    assert zero.place == plot.axis.at(0) and any(tick.text.endswith(" nats") for tick in plot.axis.ticks)
    value = draw_claim(judge("b", value=0.9, ours=0.92, estimate=0.02, low=0.01, high=0.03), "B")
    assert value is not None and value.same is None and "0" not in [tick.text for tick in value.axis.ticks]
    assert [value.printed, value.low, value.ours, value.high] == pytest.approx([0.9, 0.91, 0.92, 0.93])
    assert draw_claim(judge("c", basis="finding", ours=1.0), "C") is None, "computed without training: no interval"
    alike = judge("d", kind="equivalence", value=0.016, estimate=-0.002, low=-0.004, high=0.0, margin=0.005)
    drawn = draw_claim(alike, "D")
    assert drawn is not None and drawn.printed == 0, "comparable arms differ by nothing"


def test_the_claim_page_has_printed_ours_interval_and_verdict_first_and_two_caveats(
    published_client: TestClient,
) -> None:
    html = unescape(published_client.get("/claims/dac.sgemm.gain").text)
    first = html.partition("<summary>More about this verdict")[0]
    parts = (">The paper says<", ">we find<", ">verdict<", 'class="track interval"', "<strong>")
    order = [first.index(part) for part in parts]
    assert order == sorted(order)
    assert len(re.findall("<li>", first.partition('class="told"')[2])) == 2
