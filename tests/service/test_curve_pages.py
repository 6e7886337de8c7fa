"""Learning curves of several models, runs and experiments in one chart."""

import csv
import html as markup
import re

import pytest
from fastapi.testclient import TestClient

from service.pages.models import MOST_LINES
from tests.service.drawn import drawings, drawn

MIXER, VIT, NINFORMER = "ninformer-mnist.mlp-mixer", "ninformer-mnist.vit", "ninformer-mnist.ninformer"
FAR = "ninformer-cifar100.vit"


def run_of(client: TestClient, arm: str) -> str:
    key: str = client.get(f"/api/v1/runs?experiment=ninformer-mnist&arm={arm}&limit=1").json()[0]["run_key"]
    return key


def test_chart_combines_models_and_runs_of_several_experiments(client: TestClient) -> None:
    key = run_of(client, "vit")
    html = client.get(f"/curves?line={NINFORMER}&line={FAR}&line={key[:7]}&curve=test_loss").text
    found = drawn(html, "overlay")
    assert list(found.inks) == [
        "NiNformer (ninformer-mnist)",
        "ViT (ninformer-cifar100)",
        f"ViT, run {key[:7]} (ninformer-mnist)",
    ]
    first, second, third = found.lines.values()
    for (experiment, arm), line in ((("mnist", "ninformer"), first), (("cifar100", "vit"), second)):
        address = f"/api/v1/experiments/ninformer-{experiment}/curves?curve=test_loss&arm={arm}&limit=500"
        points = client.get(address).json()
        assert [x for x, _ in line] == pytest.approx([point["epoch"] for point in points], abs=0.05)
        assert [y for _, y in line] == pytest.approx([point["mean"] for point in points], rel=0.01)
    (table,) = re.findall(r'As data: <a href="([^"]+)">CSV', html)
    rows = [*csv.DictReader(client.get(markup.unescape(table)).text.splitlines())]
    assert [row["arm"] for row in rows] == [
        name for name, at in zip((NINFORMER, FAR, key[:7]), found.lines.values(), strict=True) for _ in at
    ]
    assert [float(row["mean"]) for row in rows] == pytest.approx(
        [y for at in found.lines.values() for _, y in at], rel=0.01
    )
    (result,) = client.get(f"/api/v1/runs/{key}").json()["results"]
    assert [y for _, y in third] == pytest.approx([row["test_loss"] for row in result["curves"]], rel=0.01)


def test_model_has_one_colour_everywhere_and_its_lines_differ_in_dashes(client: TestClient) -> None:
    inks = drawn(client.get(f"/curves?line={FAR}&line={VIT}&line={NINFORMER}&line={MIXER}").text, "overlay").inks
    (colour, dash), (near, other) = inks["ViT (ninformer-cifar100)"], inks["ViT (ninformer-mnist)"]
    assert colour == near and dash != other
    assert len({colour for colour, _ in inks.values()}) == 3
    html = client.get("/experiments/ninformer-cifar100").text
    known = drawn(html, "bands").inks
    assert known["NiNformer"] == inks["NiNformer (ninformer-mnist)"]
    assert re.search(rf'<g class="point" color="{known["ViT"][0]}"><title>ViT: ', html), "its cost, too"
    for address in ("/?dataset=cifar100", "/leaderboard?dataset=mnist"):
        html = client.get(address).text
        for title in ("ViT", "LocalViT"):
            assert re.search(rf'stroke="{known[title][0]}"[^>]*/></svg>(<a [^>]*>)?{title}', html), (address, title)


def test_lines_are_added_and_removed_by_links_only(client: TestClient) -> None:
    """Without JavaScript, browsers send the form's own fields, with an empty one for no choice."""
    html = client.get("/curves").text
    assert drawings(html) == [] and f'<option value="{VIT}">ViT</option>' in html
    html = client.get("/curves", params=[("line", VIT), ("line", "")]).text
    kept = re.findall(r'type="hidden" name="line" value="([^"]+)"', html)
    assert kept == [VIT]
    html = client.get("/curves", params=[*(("line", name) for name in kept), ("line", FAR), ("line", " ")]).text
    kept = re.findall(r'type="hidden" name="line" value="([^"]+)"', html)
    assert kept == [VIT, FAR]
    (left,) = re.findall(r'href="([^"]+)" aria-label="Leave out ViT \(ninformer-mnist\)"', html)
    html = client.get(markup.unescape(left)).text
    assert re.findall(r'type="hidden" name="line" value="([^"]+)"', html) == [FAR]


def test_placeholder_curves_are_not_drawn(client: TestClient) -> None:
    html = client.get(f"/curves?line=ninformer-cifar10.vit&line={FAR}").text
    assert "no curve on real data" in html
    assert list(drawn(html, "overlay").inks) == ["ViT (ninformer-cifar100)"]
    html = client.get("/curves?line=ninformer-cifar10.vit").text
    assert drawings(html) == [] and "there is nothing to draw" in html
    (run,) = client.get("/api/v1/runs?experiment=ninformer-cifar10&arm=vit&limit=1").json()
    assert drawings(client.get(f"/curves?line={run['run_key']}").text) == []


def test_loss_in_nats_and_squared_error_have_separate_axes(published_client: TestClient) -> None:
    sgemm = re.findall(r'<option value="(dac-sgemm\.[^"]+)"', published_client.get("/curves").text)[0]
    html = published_client.get(f"/curves?line=ninformer-mnist.vit&line={sgemm}&curve=test_loss").text
    assert list(drawn(html, "overlay").inks) == ["ViT (ninformer-mnist)"]
    assert "it has no such curve in the same unit" in html


@pytest.mark.parametrize(
    ("line", "status", "detail"),
    [
        ("ninformer-mnist.nothing", 404, "unknown arm 'nothing'; known: vit"),
        ("nothing.vit", 404, "unknown experiment 'nothing'"),
        ("0" * 64, 404, "unknown run"),
        ("<script>", 404, "unknown run"),
        (".", 404, "unknown experiment ''"),
    ],
)
def test_missing_line_is_explained(client: TestClient, line: str, status: int, detail: str) -> None:
    answer = client.get("/curves", params={"line": line})
    assert answer.status_code == status and detail in answer.json()["detail"]


def test_more_lines_than_colours_are_refused_but_repeated_lines_count_once(client: TestClient) -> None:
    names = [f"ninformer-mnist.{number}" for number in range(MOST_LINES + 1)]
    answer = client.get("/curves", params={"line": names})
    assert answer.status_code == 422 and answer.json()["detail"] == "9 lines; one chart shows at most 8"
    assert client.get("/curves", params={"line": [VIT] * (MOST_LINES + 1)}).status_code == 200


def test_full_and_placeholder_runs_are_not_previews(client: TestClient) -> None:
    cells = {
        claim: cell
        for cell in client.get("/papers/ninformer").text.split("<td")
        for claim in re.findall(r'href="/claims/(ninformer\.table2\.[^"]+)"', cell)
    }
    for name, is_look in (("cifar100.vit", True), ("mnist.vit", False), ("cifar10.vit", False)):
        assert ("first-look" in cells[f"ninformer.table2.{name}"]) == is_look, name
