"""Shortened runs aren't ranked and state how short they are; models at chance are labelled."""

import re
from html import unescape

from fastapi.testclient import TestClient
from sqlalchemy import select

from service.pages.models import ERRORS, first_looks
from stages.results import (
    Claim,
    ClaimFilter,
    Dataset,
    JudgedClaim,
    Question,
    VerdictRow,
    compare,
    list_judged,
    open_results,
)


def test_only_models_at_chance_are_labelled_so(published_client: TestClient) -> None:
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


def test_every_number_at_chance_is_labelled_on_all_pages(published_client: TestClient, published: str) -> None:
    """On the experiment's page, in the leaderboard, and with claims about the model."""
    (comparison,) = [
        item
        for item in published_client.get("/compare?dataset=cifar10").json()["comparisons"]
        if item["experiment"] == "nmn-resnet-cifar10"
    ]
    (lost,) = (arm for arm in comparison["arms"] if arm["arm"] == "aether-resnet18")
    said = f"{lost['title']} is at chance"
    html = unescape(published_client.get("/experiments/nmn-resnet-cifar10").text)
    assert said in html and "With one thing changed it learns: " in html
    table = published_client.get("/leaderboard?dataset=cifar10").text
    (row,) = (row for row in table.split("<tr>") if "no better than guessing" in row)
    assert f"{100 * lost['ours']['value']:.2f} %" in row and said in unescape(table)
    claim = Claim(id="x", arm=lost["arm"], kind="value", unit="fraction", metric=comparison["metric"]["name"])
    row = JudgedClaim(
        claim=claim,
        verdict=VerdictRow(status="not tested", ours=None),
        experiments=("nmn-resnet-cifar10",),
        datasets=("cifar10",),
    )
    with open_results(published)() as session:
        (look,) = first_looks(
            "nmn", [row], lambda question: compare(session, question), session.scalars(select(Dataset))
        ).values()
    assert look.text == f"{100 * lost['ours']['value']:.2f} %, no better than guessing,"
    assert look.chance is not None and said in look.chance


def test_shortened_and_placeholder_runs_have_no_difference(published: str) -> None:
    """Neither with a printed number nor with another model, in any metric."""
    with open_results(published)() as session:
        for metric in (None, "accuracy", "best_epoch_accuracy", "min_error"):
            for comparison in compare(session, Question(metric=metric)):
                shortened = comparison.cut is not None and "epochs" in comparison.cut
                for arm in comparison.arms:
                    told = arm.difference is not None or (arm.gain is not None and arm.gain.ours is not None)
                    if shortened or not comparison.is_real:
                        assert not told and (arm.no_difference or not arm.run_keys), (comparison.experiment, arm.arm)


def test_previews_show_no_differences_or_times(published: str) -> None:
    with open_results(published)() as session:
        datasets = list(session.scalars(select(Dataset)))
        for paper in ("hyperbf", "ninformer", "nmn", "brownian", "dac"):
            judged = list_judged(session, ClaimFilter(paper=paper))
            looks = first_looks(paper, judged, lambda question: compare(session, question), datasets)
            kinds = {row.claim.kind for row in judged if row.claim.id in looks}
            assert kinds <= {"value", "qualitative"}
            assert not [row for row in judged if row.claim.id in looks and row.claim.metric == "inference_time"]


def test_preview_of_a_model_includes_the_best_of_its_table(published_client: TestClient) -> None:
    """CG-FAC's accuracy after a shortened run appears with K-FAC's wherever a claim about it is listed."""
    for address in ("/papers/brownian", "/claims/brownian.second_order_accuracy"):
        html = unescape(published_client.get(address).text)
        assert "27.31" in html
        for look in re.findall(r'(?s)<(?:small|p) class="first-look"[^>]*>(.*?)</(?:small|p)>', html):
            assert ("27.31" in look) <= ("39.57" in look), address


def test_papers_page_states_how_short_preview_runs_are(published_client: TestClient) -> None:
    html = unescape(published_client.get("/papers/ninformer").text)
    (note,) = re.findall(r'(?s)<p class="note"><span class="first-look">(.*?)</p>', html)
    for name, title in (("mnist", "MNIST"), ("cifar10", "CIFAR-10"), ("cifar100", "CIFAR-100")):
        (comparison,) = published_client.get(f"/compare?dataset={name}&paper=ninformer").json()["comparisons"]
        assert f"{title}: {comparison['cut']}" in note
