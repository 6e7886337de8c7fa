"""Vega-Lite specs: the marks drawn, and their axes."""

import re
from typing import get_args

import pytest
from fastapi.testclient import TestClient

from service.pages import charts
from service.pages.charts import MOST_TICKS, _epochs
from service.pages.claim_charts import arms_charts, pairs_chart
from stages.params.experiment import Role, load_params
from stages.results import Claim, ClaimRecord, JudgedClaim, PairGain, VerdictArm, VerdictRow
from tests.service.results_factory import REPOSITORY


def judge(name: str, estimate: float, low: float, high: float, margin: float | None) -> JudgedClaim:
    verdict = VerdictRow(claim=name, status="inconclusive", estimate=estimate, low=low, high=high, margin=margin)
    return JudgedClaim(claim=Claim(id=name), verdict=verdict, experiments=(), datasets=())


def test_every_role_has_a_mark_of_its_own() -> None:
    script = (REPOSITORY / "service" / "static" / "page.js").read_text()
    for kind in ("category", "symbol"):
        found = re.search(rf"{kind}: \[(.*?)\]", script)
        assert found is not None and len(set(found[1].split(", "))) >= len(get_args(Role)), kind


def test_arms_of_a_figure_are_drawn_by_experiment_where_two_have_a_cost() -> None:
    def arm(name: str, experiment: str, flops: float | None) -> VerdictArm:
        numbers = {"n": 5, "value": 0.08, "stderr": 0.001, "low": 0.078, "high": 0.082, "epoch": 6, "epochs": 9}
        return VerdictArm(experiment=experiment, arm=name, role="proposed", flops=flops, parameters=None, **numbers)

    plain = judge("a", 0.0, 0.0, 0.0, margin=None)
    arms = (arm("one", "e", 5e8), arm("two", "e", 9e8), arm("one", "f", 5e8), arm("two", "f", None))
    record = ClaimRecord(
        **{name: getattr(plain, name) for name in ("claim", "verdict", "experiments", "datasets")},
        runs=(),
        arms=arms,
        pairs=(),
        deviations=(),
        changes=(),
        family=None,
        same_error=(),
    )
    charts = arms_charts(record, {"one": "One", "two": "Two"})
    assert list(charts) == ["e"]
    rows = charts["e"]["data"]["values"]
    assert [(row["arm"], row["flops"], row["value"]) for row in rows] == [("One", 0.5, 8.0), ("Two", 0.9, 8.0)]


def test_pairs_are_drawn_one_below_the_other_beside_the_paper_s_gain() -> None:
    pairs = [
        PairGain(experiment="e", arm=arm, against=f"{arm}-base", gain=gain, low=gain - 0.1, high=gain + 0.1, n=5)
        for arm, gain in (("a", 0.2), ("b", -0.1))
    ]
    titles = {"a": "A", "b": "B"}
    chart = pairs_chart("Gain", pairs, titles, Claim(id="c", kind="order", unit="fraction", value=0.25))
    assert chart is not None
    first, second = chart["data"]["values"]
    assert (first["pair"], first["value"], second["pair"], second["value"]) == ("A", 20.0, "B", -10.0)
    upright = [layer["data"]["values"][0]["value"] for layer in chart["layer"] if "data" in layer]
    assert upright == [0, 25]
    lines = chart["layer"][0]["encoding"]["x"]["title"]
    assert lines[0] == "gain (percentage points)" and max(map(len, lines)) <= 44, "whole on a telephone"
    no_number = pairs_chart("Gain", pairs, titles, Claim(id="c", kind="order", unit="nats", value=None))
    assert no_number is not None and len(no_number["layer"]) == 2
    assert pairs_chart("Gain", [], titles, Claim(id="c")) is None


def test_the_pairs_of_a_grid_have_whole_names() -> None:
    grid = load_params(REPOSITORY).experiments["dac-sgemm"].arms.values()
    longest = max(len(arm.title) for arm in grid if re.fullmatch(r"dac-mlp-\d+x\d+", arm.name))
    pair = PairGain(experiment="e", arm="a", against="b", gain=0.2, low=0.1, high=0.3, n=5)
    chart = pairs_chart("Gain", [pair], {"a": "A"}, Claim(id="c", kind="order", unit="nats"))
    assert chart is not None
    assert chart["layer"][-1]["encoding"]["y"]["axis"]["labelLimit"] > 6.3 * longest, "pixels a letter"


@pytest.mark.parametrize(
    ("values", "scale"),
    [([0.01, 0.2], "log"), ([1.0, 9.0], None), ([0.0, 5.0], None), ([-3.0, 90.0], None), ([7], None)],
)
def test_what_reaches_over_more_than_a_decade_has_a_logarithmic_axis(values: list[float], scale: str | None) -> None:
    assert charts.scale_of(values).get("type") == scale


def test_a_few_epochs_are_whole_on_their_axis() -> None:
    assert _epochs([{"epoch": epoch} for epoch in (1, 2, 3, 2)])["axis"]["values"] == [1, 2, 3]
    assert "values" not in _epochs([{"epoch": epoch} for epoch in range(MOST_TICKS + 1)])["axis"]


def test_nothing_to_draw_is_no_chart(client: TestClient) -> None:
    assert "plot-cell" in client.get("/?dataset=cifar10").text, "the paper's values"
    assert "plot-cell" not in client.get("/?dataset=cifar10&metric=calibration_error").text, "stand-ins alone"
