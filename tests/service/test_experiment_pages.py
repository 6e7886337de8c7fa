"""An experiment's page and the curves behind it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.pages.formats import points
from service.settings import Settings
from stages.recording import record
from tests.service.conftest import reading
from tests.service.results_factory import make_root
from tests.service.test_pages import Page


def chart(html: str, name: str) -> dict[str, Any]:
    found = re.search(rf'data-chart="{name}">(.*?)</script>', html)
    assert found is not None, name
    spec: dict[str, Any] = json.loads(found[1])
    return spec


def curves_of(client: TestClient, arm: str) -> list[list[dict[str, Any]]]:
    """The curves of each compared replicate, as its run has them."""
    (comparison,) = client.get("/compare?dataset=mnist").json()["comparisons"]
    keys = next(item["run_keys"] for item in comparison["arms"] if item["arm"] == arm)
    return [client.get(f"/api/v1/runs/{key}").json()["results"][0]["curves"] for key in keys]


def test_curves_are_mean_lowest_and_highest_of_the_compared_replicates(client: TestClient) -> None:
    points = client.get("/api/v1/experiments/ninformer-mnist/curves?arm=vit&curve=test_loss").json()
    replicates = curves_of(client, "vit")
    assert len(replicates) == 3 and len(points) == len(replicates[0]) == 100
    for point, rows in zip(points, zip(*replicates, strict=True), strict=True):
        values = [row["test_loss"] for row in rows]
        assert point["mean"] == pytest.approx(sum(values) / 3)
        assert (point["arm"], point["epoch"], point["replicates"]) == ("vit", rows[0]["epoch"], 3)
        assert (point["low"], point["high"]) == (min(values), max(values))


def test_the_band_is_drawn_from_the_curves(client: TestClient) -> None:
    html = client.get("/experiments/ninformer-mnist?curve=test_accuracy&arm=vit&arm=ninformer").text
    spec = chart(html, "bands")
    points = client.get("/api/v1/experiments/ninformer-mnist/curves?arm=vit&arm=ninformer&limit=500").json()
    rows = spec["data"]["values"]
    assert [(row["epoch"], row["high"]) for row in rows] == [
        (point["epoch"], pytest.approx(100 * point["high"])) for point in points
    ]
    assert {row["model"] for row in rows} == {"ViT", "NiNformer"}
    assert any(layer["mark"]["type"] == "area" for layer in spec["layer"])
    assert re.findall(r'name="arm" value="([^"]+)" checked', html) == ["vit", "ninformer"]


def test_lines_are_running_means_if_asked(client: TestClient) -> None:
    address = "/experiments/ninformer-mnist?arm=vit"
    assert chart(client.get(address).text, "bands")["transform"] == []
    html = client.get(f"{address}&smooth=5").text
    (window,) = chart(html, "bands")["transform"]
    assert (
        window["frame"] == [-2, 2]
        and window["groupby"] == ["model"]
        and [item["as"] for item in window["window"]] == ["mean", "low", "high"]
    )
    assert '<option value="5" selected>running mean of 5 epochs' in html and "over 5 epochs" in html
    assert client.get(f"{address}&smooth=4").status_code == 422


def test_one_replicate_has_no_band_and_a_stand_in_no_curve(client: TestClient) -> None:
    spec = chart(client.get("/experiments/ninformer-cifar100").text, "bands")
    assert all(layer["mark"]["type"] != "area" for layer in spec["layer"])
    html = client.get("/experiments/ninformer-cifar10").text
    assert "data-chart" not in html and "models were trained on placeholder data only" in html


def test_a_profile_without_curves_leaves_the_choice_of_another(client: TestClient) -> None:
    html = client.get("/experiments/ninformer-cifar100?profile=smoke").text
    assert "models were trained on placeholder data only" in html and 'name="curve"' not in html
    assert re.findall(r'<option value="(quick|smoke)"( selected)?>', html) == [("quick", ""), ("smoke", " selected")]
    assert 'formaction="/experiments/ninformer-cifar100#curves-title"' in html
    lone = client.get("/experiments/ninformer-cifar10").text
    assert 'name="profile"' not in lone and "#curves-title" not in lone, "nothing to choose, nothing to send"


def test_cost_stands_against_the_compared_metric(client: TestClient) -> None:
    html = client.get("/experiments/ninformer-mnist?cost=latency_seconds_per_sample").text
    (comparison,) = client.get("/compare?dataset=mnist").json()["comparisons"]
    rows = {row["model"]: row for row in chart(html, "cost")["data"]["values"]}
    for arm in comparison["arms"]:
        row = rows[arm["title"]]
        assert row["cost"] == arm["cost"]["latency_seconds_per_sample"]
        assert row["value"] == pytest.approx(100 * arm["ours"]["value"])
        assert (row["low"], row["high"]) == pytest.approx((100 * arm["ours"]["low"], 100 * arm["ours"]["high"]))


def test_the_result_that_a_cost_stands_against_can_be_chosen(client: TestClient) -> None:
    html = client.get("/experiments/ninformer-mnist?metric=loss&cost=parameters").text
    assert re.findall(r'<option value="(\w+)" selected>Test loss', html) == ["loss"]
    (comparison,) = client.get("/compare?dataset=mnist&metric=loss").json()["comparisons"]
    rows = {row["model"]: row["value"] for row in chart(html, "cost")["data"]["values"]}
    assert rows == {arm["title"]: pytest.approx(arm["ours"]["value"]) for arm in comparison["arms"]}
    unmeasured = client.get("/experiments/ninformer-mnist?metric=mse").text
    assert "No model has both" in unmeasured and '<select name="metric">' in unmeasured
    refused = client.get("/experiments/ninformer-mnist?metric=acc")
    assert refused.status_code == 422 and "known: accuracy" in refused.text


def test_only_what_differs_between_two_arms_is_shown_unless_all_is_asked_for(client: TestClient) -> None:
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


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/experiments/x", 404),
        ("/experiments/ninformer-mnist?arm=resnet", 404),
        ("/experiments/ninformer-mnist?left=resnet", 404),
        ("/experiments/ninformer-mnist?curve=weights", 422),
        ("/experiments/ninformer-mnist?profile=slow", 422),
        ("/api/v1/experiments/x/curves", 404),
        ("/api/v1/experiments/ninformer-mnist/curves?curve=lr", 422),
    ],
)
def test_what_is_not_there_is_said(client: TestClient, address: str, status: int) -> None:
    response = client.get(address)
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")


def test_the_table_s_page_leads_to_the_experiment_s(client: TestClient) -> None:
    assert 'href="/experiments/ninformer-mnist"' in client.get("/?dataset=mnist").text


@pytest.mark.parametrize("path", ["/experiments/ninformer-mnist", "/experiments/ninformer-cifar10"])
def test_the_page_asks_no_other_host_and_its_links_lead_somewhere(client: TestClient, path: str) -> None:
    page = Page(client.get(path).text)
    assert page.inline == []
    for address in {address.partition("#")[0] for address in page.addresses} - {""}:
        if not address.startswith("/static/vega.js"):
            assert address.startswith("/") and client.get(address).status_code == 200, address


def test_what_is_claimed_of_its_models_stands_with_its_verdict(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    with (root / "data" / "claims.csv").open("a") as file:
        file.write(
            "rank,ninformer,Table 2,ninformer-mnist,ninformer,accuracy,order,0.0082,fraction,,,,local-vit,higher,\n"
        )
    record(root, "data/results.db")
    with reading(Settings(root=root)) as client:
        html = client.get("/experiments/ninformer-mnist").text
        verdict = client.get("/api/v1/claims/rank").json()["verdict"]
        assert 'id="claims-title"' not in client.get("/experiments/ninformer-cifar100").text
    table = html[html.index('<table class="claims rows">') :].partition("</table>")[0]
    assert re.findall('href="/claims/([^"]+)"', table) == ["rank"], "values and settings stand elsewhere"
    (cells,) = Page(table).rows[1:]
    ours = points(verdict["ours"]["value"])
    assert verdict["size"]["status"] == "inconclusive"
    assert cells == [
        "NiNformer against LocalViT: test accuracy, last epoch (MNIST)",
        "0.82 pp higher",
        f"{ours.removeprefix('+')} higher",
        "n = 3",
        verdict["word"],
        "our training agrees; size open",
        "exploratory",
    ]
