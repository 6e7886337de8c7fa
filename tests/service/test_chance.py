"""Shortened runs rank nothing and say how short they are; a model that learnt nothing is said to be at chance."""

import re
from html import unescape

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from service.pages.models import ERRORS, FirstLook, describe_looks, first_looks
from service.pages.wording import ours_is
from stages.results import Claim, ClaimFilter, Dataset, JudgedClaim, VerdictRow, compare, list_judged, open_results


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


def test_wherever_a_number_at_chance_stands_the_page_says_so(published_client: TestClient, published: str) -> None:
    """On the experiment's page, and next to a claim that the model had."""
    (comparison,) = [
        item
        for item in published_client.get("/compare?dataset=cifar10").json()["comparisons"]
        if item["experiment"] == "nmn-resnet-cifar10"
    ]
    (lost,) = (arm for arm in comparison["arms"] if arm["arm"] == "aether-resnet18")
    said = f"{lost['title']} is at chance"
    html = unescape(published_client.get("/experiments/nmn-resnet-cifar10").text)
    assert said in html and "With one thing changed it learns: " in html
    claim = Claim(id="x", arm=lost["arm"], kind="value", unit="fraction", metric=comparison["metric"]["name"])
    row = JudgedClaim(
        claim=claim,
        verdict=VerdictRow(status="not tested", ours=None),
        experiments=("nmn-resnet-cifar10",),
        datasets=("cifar10",),
    )
    with open_results(published)() as session:
        (look,) = first_looks(
            "nmn", [row], lambda question: compare(session, **vars(question)), session.scalars(select(Dataset))
        ).values()
    assert look.text == f"{100 * lost['ours']['value']:.2f} %, no better than guessing,"
    assert look.chance is not None and said in look.chance


def test_no_shortened_or_placeholder_run_has_a_difference(published: str) -> None:
    """Neither against a printed number nor against another model, in any metric."""
    with open_results(published)() as session:
        for metric in (None, "accuracy", "best_epoch_accuracy", "min_error"):
            for comparison in compare(session, metric=metric):
                shortened = comparison.cut is not None and "epochs" in comparison.cut
                for arm in comparison.arms:
                    told = arm.difference is not None or (arm.gain is not None and arm.gain.ours is not None)
                    if shortened or not comparison.is_real:
                        assert not told and (arm.no_difference or not arm.run_keys), (comparison.experiment, arm.arm)


def test_no_first_look_is_of_a_difference_or_a_time(published: str) -> None:
    with open_results(published)() as session:
        datasets = list(session.scalars(select(Dataset)))
        for paper in ("hyperbf", "ninformer", "nmn", "brownian", "dac"):
            judged = list_judged(session, ClaimFilter(paper=paper))
            looks = first_looks(paper, judged, lambda question: compare(session, **vars(question)), datasets)
            kinds = {row.claim.kind for row in judged if row.claim.id in looks}
            assert kinds <= {"value", "qualitative"}
            assert not [row for row in judged if row.claim.id in looks and row.claim.metric == "inference_time"]


def test_a_model_is_not_shown_without_the_best_of_its_table(published_client: TestClient) -> None:
    """CG-FAC's accuracy after a shortened run stands with K-FAC's wherever a claim about it is listed."""
    for address in ("/papers/brownian", "/claims/brownian.second_order_accuracy"):
        html = unescape(published_client.get(address).text)
        assert "27.31" in html
        for look in re.findall(r'(?s)<(?:small|p) class="first-look"[^>]*>(.*?)</(?:small|p)>', html):
            assert ("27.31" in look) <= ("39.57" in look), address


@pytest.mark.parametrize("dataset", ["mnist", "cifar10", "cifar100"])
def test_no_order_is_told_of_shortened_runs(published_client: TestClient, dataset: str) -> None:
    compared = published_client.get(f"/compare?dataset={dataset}").json()["comparisons"]
    assert any(item["cut"] and item["order"]["agrees"] is not None for item in compared)
    html = published_client.get(f"/?dataset={dataset}").text
    for item in compared:
        section = html[html.index(f'<section class="experiment" id="{item["experiment"]}"') :].partition("</section>")[
            0
        ]
        is_told = item["order"]["agrees"] is not None and not item["cut"]
        assert ("The models finish" in section) == is_told, item["experiment"]


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
