"""Vega-Lite specs: what is drawn, and on which axes."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from fastapi.testclient import TestClient

from service.charts import MOST_TICKS, _epochs, _scale, forest_chart, gain_chart
from stages.grid import Role
from stages.results import Claim, JudgedClaim, Verdict
from tests.service.results_factory import REPOSITORY


def judge(name: str, estimate: float, low: float, high: float, margin: float | None) -> JudgedClaim:
    verdict = Verdict(claim=name, status="inconclusive", estimate=estimate, low=low, high=high, margin=margin)
    return JudgedClaim(claim=Claim(id=name), verdict=verdict, experiments=(), datasets=())


def test_every_role_has_a_mark_of_its_own() -> None:
    script = (REPOSITORY / "service" / "static" / "page.js").read_text()
    for kind in ("category", "symbol"):
        found = re.search(rf"{kind}: \[(.*?)\]", script)
        assert found is not None and len(set(found[1].split(", "))) >= len(get_args(Role)), kind


def test_the_forest_is_drawn_in_margins() -> None:
    judged = [judge("a", 0.002, 0.001, 0.003, margin=0.002), judge("b", 0.5, 0.4, 0.6, margin=None)]
    chart = forest_chart("Table 1", judged, {"a": "A", "b": "B"})
    assert chart is not None
    (row,) = chart["layer"][1]["data"]["values"]
    assert (row["claim"], row["estimate"], row["low"], row["high"]) == ("A", 1.0, 0.5, 1.5)
    assert forest_chart("Table 1", judged[1:], {"b": "B"}) is None, "no margin, nothing to hold it against"


def test_a_gain_is_drawn_beside_the_paper_s_and_no_gain() -> None:
    gain = judge("a", 0.214, 0.168, 0.26, margin=None)
    gain.verdict.basis, gain.verdict.size = "results", {"status": "inconclusive", "margin": 0.0625}
    assert gain_chart("A", gain) is None, "a value is no gain"
    gain.claim.kind, gain.claim.unit, gain.claim.value = "difference", "nats", 0.25
    chart = gain_chart("A", gain)
    assert chart is not None
    ours, paper = chart["data"]["values"]
    assert ours == {"side": "ours", "value": 0.214, "low": 0.168, "high": 0.26}
    assert paper == {"side": "paper", "value": 0.25}
    band, zero, _ = chart["layer"]
    assert band["data"]["values"] == [{"low": 0.1875, "high": 0.3125}] and zero["data"]["values"] == [{"value": 0}]
    gain.claim.unit = "fraction"
    in_points = gain_chart("A", gain)
    assert in_points is not None and in_points["data"]["values"][1] == {"side": "paper", "value": 25}
    gain.claim.value, gain.verdict.size, gain.verdict.margin = 0.0, None, 0.01
    comparable = gain_chart("A", gain)
    assert comparable is not None and comparable["layer"][0]["data"]["values"] == [{"low": -1.0, "high": 1.0}]
    gain.verdict.basis = "finding"
    assert gain_chart("A", gain) is None, "computed without training: no interval"


@pytest.mark.parametrize(
    ("values", "scale"),
    [([0.01, 0.2], "log"), ([1.0, 9.0], None), ([0.0, 5.0], None), ([-3.0, 90.0], None), ([7], None)],
)
def test_what_reaches_over_more_than_a_decade_has_a_logarithmic_axis(values: list[float], scale: str | None) -> None:
    assert _scale(values).get("type") == scale


def test_a_few_epochs_are_whole_on_their_axis() -> None:
    assert _epochs([{"epoch": epoch} for epoch in (1, 2, 3, 2)])["axis"]["values"] == [1, 2, 3]
    assert "values" not in _epochs([{"epoch": epoch} for epoch in range(MOST_TICKS + 1)])["axis"]


def test_nothing_to_draw_is_no_chart(client: TestClient) -> None:
    assert "data-chart" in client.get("/?dataset=cifar10").text, "the paper's values"
    assert "data-chart" not in client.get("/?dataset=cifar10&metric=calibration_error").text, "stand-ins alone"
