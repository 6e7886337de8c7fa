"""Experiment pages and their curves."""

import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.pages.formats import percent, points
from service.settings import Settings
from stages.recording.builder import record
from tests.service.conftest import reading
from tests.service.drawn import drawings, drawn
from tests.service.test_pages import Page


def test_curves_are_mean_minimum_and_maximum_of_the_compared_replicates(client: TestClient) -> None:
    points = client.get("/api/v1/experiments/ninformer-mnist/curves?arm=vit&curve=test_loss").json()
    (comparison,) = client.get("/compare?dataset=mnist").json()["comparisons"]
    keys = next(item["run_keys"] for item in comparison["arms"] if item["arm"] == "vit")
    replicates = [client.get(f"/api/v1/runs/{key}").json()["results"][0]["curves"] for key in keys]
    assert len(replicates) == 3 and len(points) == len(replicates[0]) == 100
    for point, rows in zip(points, zip(*replicates, strict=True), strict=True):
        values = [row["test_loss"] for row in rows]
        assert point["mean"] == pytest.approx(sum(values) / 3)
        assert (point["arm"], point["epoch"], point["replicates"]) == ("vit", rows[0]["epoch"], 3)
        assert (point["low"], point["high"]) == (min(values), max(values))


def test_band_is_drawn_from_the_curves(client: TestClient) -> None:
    html = client.get("/experiments/ninformer-mnist?curve=test_accuracy&arm=vit&arm=ninformer").text
    found = drawn(html, "bands")
    points = client.get("/api/v1/experiments/ninformer-mnist/curves?arm=vit&arm=ninformer&limit=500").json()
    own = [[point for point in points if point["arm"] == arm] for arm in ("vit", "ninformer")]
    assert set(found.inks) == {"ViT", "NiNformer"} and len(found.bands) == 2
    for curve, line, band in zip(own, found.lines.values(), found.bands, strict=True):
        ends = [point["high"] for point in curve] + [point["low"] for point in curve[::-1]]
        assert [y for _, y in line] == pytest.approx([point["mean"] for point in curve], abs=1e-3)
        assert [y for _, y in band] == pytest.approx(ends, abs=1e-3)
    last = own[0][-1]
    assert f"ViT, epoch {last['epoch']}: {percent(last['mean'])}" in html
    assert re.findall(r'name="arm" value="([^"]+)" checked', html) == ["vit", "ninformer"]


def test_single_replicate_has_no_band_and_placeholder_run_no_curve(client: TestClient) -> None:
    assert drawn(client.get("/experiments/ninformer-cifar100").text, "bands").bands == []
    html = client.get("/experiments/ninformer-cifar10").text
    assert drawings(html) == [] and "models were trained on placeholder data only" in html


def test_profile_without_curves_still_offers_other_profiles(client: TestClient) -> None:
    html = client.get("/experiments/ninformer-cifar100?profile=smoke").text
    assert "models were trained on placeholder data only" in html and 'name="curve"' not in html
    assert re.findall(r'<option value="(quick|smoke)"( selected)?>', html) == [("quick", ""), ("smoke", " selected")]
    assert 'formaction="/experiments/ninformer-cifar100#curves-title"' in html
    lone = client.get("/experiments/ninformer-cifar10").text
    assert 'name="profile"' not in lone and "#curves-title" not in lone, "no choice, so no form"


def test_cost_is_plotted_against_the_compared_metric(client: TestClient) -> None:
    html = client.get("/experiments/ninformer-mnist?cost=latency_seconds_per_sample").text
    (comparison,) = client.get("/compare?dataset=mnist").json()["comparisons"]
    points = {title.partition(": ")[0]: point for title, point in drawn(html, "cost").points.items()}
    for arm in comparison["arms"]:
        cost, value, interval = points[arm["title"]]
        assert cost == pytest.approx(arm["cost"]["latency_seconds_per_sample"], rel=0.02)
        assert value == pytest.approx(arm["ours"]["value"], abs=1e-3)
        assert interval == pytest.approx((arm["ours"]["low"], arm["ours"]["high"]), abs=1e-3)


def test_metric_plotted_against_cost_can_be_chosen(client: TestClient) -> None:
    html = client.get("/experiments/ninformer-mnist?metric=loss&cost=parameters").text
    assert re.findall(r'<option value="(\w+)" selected>Test loss', html) == ["loss"]
    (comparison,) = client.get("/compare?dataset=mnist&metric=loss").json()["comparisons"]
    values = {title.partition(": ")[0]: point[1] for title, point in drawn(html, "cost").points.items()}
    assert values == {arm["title"]: pytest.approx(arm["ours"]["value"], abs=0.01) for arm in comparison["arms"]}
    unmeasured = client.get("/experiments/ninformer-mnist?metric=mse").text
    assert "No model has both" in unmeasured and '<select name="metric">' in unmeasured
    refused = client.get("/experiments/ninformer-mnist?metric=acc")
    assert refused.status_code == 422 and "known: accuracy" in refused.text


def test_only_differences_between_two_arms_are_shown_by_default(client: TestClient) -> None:
    chosen = "/experiments/ninformer-mnist?left=vit&right=ninformer"
    experiment = client.get("/api/v1/experiments/ninformer-mnist").json()
    vit, ninformer = (next(arm for arm in experiment["arms"] if arm["name"] == name) for name in ("vit", "ninformer"))
    leaves = ("model.", "protocol.")
    shown = {row[0]: row[1:3] for row in Page(client.get(chosen).text).rows if row[0].startswith(leaves)}
    assert shown["model.name"] == [vit["model"]["name"], ninformer["model"]["name"]]
    assert all(left != right for left, right in shown.values())
    everything = Page(client.get(f"{chosen}&everything=true").text).rows
    whole = {row[0]: row[1:3] for row in everything if row[0].startswith(leaves)}
    assert shown.items() <= whole.items()
    assert whole["protocol.batch_size"] == ["128", "128"] and "protocol.batch_size" not in shown
    same = client.get("/experiments/ninformer-mnist?left=vit&right=vit").text
    assert "Nothing: both have the same values." in same


def test_claims_about_its_models_are_shown_with_verdicts(own_root: Path) -> None:
    with (own_root / "data" / "claims.csv").open("a", encoding="utf-8") as file:
        file.write(
            "rank,ninformer,Table 2,ninformer-mnist,ninformer,accuracy,order,0.0082,fraction,,,,local-vit,higher,\n"
        )
    record(own_root, "data/results.db")
    with reading(Settings(root=own_root)) as client:
        html = client.get("/experiments/ninformer-mnist").text
        verdict = client.get("/api/v1/claims/rank").json()["verdict"]
        assert 'id="claims-title"' not in client.get("/experiments/ninformer-cifar100").text
    table = html[html.index('<table class="claims rows">') :].partition("</table>")[0]
    assert re.findall('href="/claims/([^"]+)"', table) == ["rank"], "values and settings are shown elsewhere"
    (cells,) = Page(table).rows[1:]
    assert verdict["size"]["status"] == "inconclusive"
    assert cells[1:5] == [
        *("0.82 pp higher", f"{points(verdict['ours']['value']).removeprefix('+')} higher", "n = 3", verdict["word"])
    ]
