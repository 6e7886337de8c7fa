"""Shortened runs rank nothing and say how short they are; a model that learnt nothing is said to be at chance."""

from __future__ import annotations

import re
from html import unescape

import pytest
from fastapi.testclient import TestClient

from service.pages.chance import ERRORS
from service.pages.first_looks import FirstLook, describe_looks
from service.pages.wording import ours_is
from stages.results import Claim, JudgedClaim, VerdictRow


def test_a_model_at_chance_is_said_to_be_and_no_other(published_client: TestClient) -> None:
    (classes,) = (
        item["classes"] for item in published_client.get("/api/v1/datasets").json() if item["name"] == "cifar10"
    )
    html = unescape(published_client.get("/?dataset=cifar10").text)
    said = set(re.findall(r"<strong>([^<]+) is at chance: it is right on ([\d.]+ %)", html))
    guess = 1 / classes
    most = guess + ERRORS * (guess * (1 - guess) / 10_000) ** 0.5
    compared = published_client.get("/compare?dataset=cifar10").json()["comparisons"]
    ours = {arm["title"]: arm["ours"]["value"] for item in compared for arm in item["arms"] if arm["ours"]}
    assert said == {(title, f"{100 * value:.2f} %") for title, value in ours.items() if value <= most} != set()
    assert len(ours) > 10 and "is at chance" not in published_client.get("/?dataset=mnist").text


def test_wherever_a_number_at_chance_stands_the_page_says_so(published_client: TestClient) -> None:
    """On the pages of the paper, the experiment and each claim; a difference with such a model is not told."""
    (comparison,) = [
        item
        for item in published_client.get("/compare?dataset=cifar10").json()["comparisons"]
        if item["experiment"] == "nmn-resnet-cifar10"
    ]
    (lost,) = (arm for arm in comparison["arms"] if arm["arm"] == "aether-resnet18")
    number, said = f"{100 * lost['ours']['value']:.2f} %", f"{lost['title']} is at chance"
    claims = published_client.get("/api/v1/claims?experiment=nmn-resnet-cifar10&limit=1000").json()
    about = [claim for claim in claims if lost["arm"] in (claim["arm"], claim["baseline_arm"])]
    addresses = [f"/claims/{claim['id']}" for claim in about if claim["metric"] == comparison["metric"]["name"]]
    assert len(addresses) > 1
    for address in (*addresses, "/papers/nmn", "/experiments/nmn-resnet-cifar10"):
        html = unescape(published_client.get(address).text)
        looks = re.findall(r'(?s)<small class="first-look"[^>]*>(.*?)</small>', html)
        assert not [look for look in looks if number in look and "no better than guessing" not in look], address
        assert said in html and "With one thing changed it learns: " in html, address
    (gap,) = (claim["id"] for claim in about if claim["kind"] == "gap")
    assert "no difference told: AetherResNet-18 learnt nothing" in published_client.get(f"/claims/{gap}").text


@pytest.mark.parametrize("dataset", ["mnist", "cifar10", "cifar100"])
def test_no_order_is_told_of_shortened_runs(published_client: TestClient, dataset: str) -> None:
    compared = published_client.get(f"/compare?dataset={dataset}").json()["comparisons"]
    assert any(item["cut"] and item["order"]["agrees"] is not None for item in compared)
    assert "The models finish" not in published_client.get(f"/?dataset={dataset}").text


def test_a_paper_s_page_says_how_short_the_grey_numbers_runs_are(published_client: TestClient) -> None:
    html = unescape(published_client.get("/papers/ninformer").text)
    (note,) = re.findall(r'(?s)<p class="note"><span class="first-look">(.*?)</p>', html)
    for name, title in (("mnist", "MNIST"), ("cifar10", "CIFAR-10"), ("cifar100", "CIFAR-100")):
        (comparison,) = published_client.get(f"/compare?dataset={name}&paper=ninformer").json()["comparisons"]
        assert f"{title}: {comparison['cut']}" in note


def test_each_way_of_shortening_is_told_once() -> None:
    def judged(name: str, dataset: str) -> JudgedClaim:
        return JudgedClaim(claim=Claim(id=name), verdict=VerdictRow(), experiments=(), datasets=(dataset,))

    rows = [judged("a", "x"), judged("b", "y"), judged("c", "z"), judged("d", "x"), judged("e", "x")]
    looks = {name: FirstLook(value=1.0, n=1, cut="3 of 9 epochs") for name in "abd"}
    looks["c"] = FirstLook(value=1.0, n=1, cut="bfloat16")
    assert describe_looks(looks, rows, {"x": "X", "y": "Y", "z": "Z"}) == ["X and Y: 3 of 9 epochs", "Z: bfloat16"]


def test_a_badge_of_full_length_runs_says_how_many_models_ran(published_client: TestClient) -> None:
    (comparison,) = published_client.get("/compare?dataset=sgemm").json()["comparisons"]
    trained, planned = comparison["trained_models"], comparison["planned_models"]
    assert 0 < trained < planned
    for address in ("/", "/experiments/dac-sgemm", "/?dataset=sgemm"):
        assert f"full-length training, {trained} of {planned} models" in published_client.get(address).text
    assert ">as printed</span>" not in published_client.get("/").text, "that is a verdict on a setting"


def test_our_number_is_called_what_it_is(published_client: TestClient) -> None:
    def called(basis: str, kind: str) -> str:
        return ours_is(VerdictRow(basis=basis), Claim(id="x", kind=kind))

    assert called("finding", "inconsistent") == "from its other numbers"
    assert (called("finding", "ratio"), called("params", "count"), called("params", "setup")) == (
        *("we compute", "we count"),
        "we set",
    )
    assert "<dt>we find</dt>" in published_client.get("/claims/dac.sgemm.gain").text
    assert "<dt>we count</dt>" in published_client.get("/claims/hyperbf.table1.c10.train").text


def test_what_is_observed_says_what_it_is_before_training(published_client: TestClient) -> None:
    html = unescape(published_client.get("/claims/hyperbf.obs.sigma_order.c10").text)
    box = html[html.index('<div class="fidelity') :].partition("</div>")[0]
    assert re.search(r"before training it is [\d.]+ already", box)
    assert len(re.findall("before training it is", html)) == 1, "it isn't told twice"
