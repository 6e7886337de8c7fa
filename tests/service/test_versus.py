"""Comparing two models: one sentence from the judge of printed orders, and an image-by-image test."""

import re
from html import unescape
from math import comb
from typing import Any

import pytest
from fastapi.testclient import TestClient

from stages.results import Array, Result, open_results
from stages.runs.evidence import unpack_correct
from tests.service.test_errors import BROWSER, assert_page, assert_problem

ADDRESS = "/api/v1/versus"


def ask(client: TestClient, dataset: str, a: str, b: str) -> dict[str, Any]:
    answer = client.get(ADDRESS, params={"dataset": dataset, "a": a, "b": b})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_answer_agrees_with_the_claims_verdict_for_every_printed_order(
    published_client: TestClient,
) -> None:
    """On the order only, because the size of a printed difference has a separate verdict."""
    claims = published_client.get("/api/v1/claims?limit=1000").json()
    seen = 0
    for claim in claims:
        verdict = claim["verdict"]
        is_pair = claim["kind"] in ("order", "difference") and "*" not in (claim["arm"] or "*")
        if not is_pair or verdict["basis"] != "results" or verdict["low"] is None or claim["reading"]:
            continue
        (dataset,), experiment = claim["datasets"], claim["experiment"]
        found = ask(published_client, dataset, f"{experiment}.{claim['arm']}", f"{experiment}.{claim['baseline_arm']}")
        assert claim["id"] in found["claims"] and found["status"] == verdict["status"]
        for name in ("confidence", "p_value"):
            assert found[name] == pytest.approx(verdict[name])
        assert [found["gain"][end] for end in ("low", "high")] == pytest.approx([verdict["low"], verdict["high"]])
        seen += 1
    assert seen >= 2


def test_swapping_the_models_reverses_the_one_sentence_answer(published_client: TestClient) -> None:
    yes, no = (ask(published_client, "sgemm", *pair) for pair in (PAIR, PAIR[::-1]))
    assert (yes["word"], no["word"], yes["a"]["title"]) == ("holds", "fails", no["b"]["title"])
    assert yes["gain"]["low"] == pytest.approx(-no["gain"]["high"]) and yes["p_value"] == pytest.approx(no["p_value"])
    size = f"{yes['gain']['value']:.3f}"
    titles = rf"{yes['a']['title']} beats {yes['b']['title']} on .*"
    sentence = rf"{titles} by {size} nats \(96.7 % interval .* to .* nats, 5 runs of each\)\."
    assert re.fullmatch(f"Yes: {sentence}", yes["sentence"]) and re.fullmatch(f"No: {sentence}", no["sentence"])
    assert yes["missing"] == 0 and yes["detectable"] > 0 and yes["spread_source"] == "measured"


PAIR = ("dac-mlp-141x5", "mlp-141x5")


def test_untrained_models_get_power_and_cost(computed_client: TestClient) -> None:
    found = ask(computed_client, "cifar10", "NiNformer", "vit")
    assert found["word"] == "not tested" and found["gain"] is None and found["missing"] == 10 and found["cut"]
    hours = found["hours"]["cuda"]
    assert f"10 trainings ({hours:.2g} hours of one GPU or " in found["sentence"]
    assert f"if they differ by {100 * found['detectable']:.2f} pp" in found["sentence"]
    never = ask(computed_client, "imagenette", "dac-resnet20-v1", "resnet20-v1")
    assert never["a"]["ours"] is None and never["hours"] is None
    apart = ask(computed_client, "cifar10", "hyperbf", "ninformer")
    assert apart["sentence"].startswith("Not known yet: no experiment trains both HyperBF (")


def test_correct_answers_are_compared_image_by_image(published_client: TestClient, published: str) -> None:
    """Counted here from the bitmaps; the exact test is a sum of binomial coefficients."""
    found = ask(published_client, "mnist", "ninformer", "vit")
    (pair,) = found["images"]
    with open_results(published)() as session:
        kept = {
            row.arm: unpack_correct(array.content, row.test_images)
            for row, array in session.query(Result, Array).join(Array, Array.result_id == Result.id)
            if row.experiment == "ninformer-mnist" and array.kind == "correct"
        }
    ours, theirs = kept["ninformer"], kept["vit"]
    ahead, behind = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    assert (pair["a_alone"], pair["b_alone"], pair["images"]) == (ahead, behind, len(ours))
    tail = sum(comb(ahead + behind, k) for k in range(min(ahead, behind) + 1)) / 2 ** (ahead + behind)
    assert pair["p_value"] == pytest.approx(2 * tail, rel=1e-6)
    page = unescape(published_client.get("/versus?dataset=mnist&a=ninformer&b=vit").text)
    assert f"alone is right on {ahead:,} and ViT alone on {behind:,} (of shortened runs, p < 0.0001" in page


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("dataset=imagenet&a=vit&b=ninformer", 404, "known: mnist, cifar10, cifar100"),
        ("dataset=mnist&a=resnet&b=ninformer", 404, "known: vit, mlp-mixer"),
        ("dataset=mnist&a=vit&b=ViT", 422, "are the same model; name two different ones"),
        ("dataset=mnist&a=vit", 422, "query.b"),
        ("dataset=mnist&a=&b=vit", 422, "query.a"),
        (f"dataset=mnist&a={'x' * 121}&b=vit", 422, "query.a"),
        ("a=vit&b=ninformer", 422, "query.dataset"),
        ("dataset=mnist&a=vit&b=ninformer&metric=loss", 422, "metric"),
    ],
)
def test_invalid_question_is_a_problem_in_the_api_and_a_page_in_a_browser(
    client: TestClient, query: str, status: int, words: str
) -> None:
    assert_problem(client.get(f"{ADDRESS}?{query}"), status, words)
    if all(name in query for name in ("a=v", "&b=", "dataset=")) and "metric" not in query:
        assert_page(client.get(f"/versus?{query}", headers=BROWSER), client.get(f"/versus?{query}"))


def test_page_asks_answers_and_links_to_the_papers_claims(published_client: TestClient) -> None:
    form = published_client.get("/versus").text
    assert 'action="/versus"' in form and "<option>NiNformer</option>" in form and 'class="conclusion"' not in form
    html = unescape(published_client.get(f"/versus?dataset=sgemm&a={PAIR[0]}&b={PAIR[1]}").text)
    assert ask(published_client, "sgemm", *PAIR)["sentence"] in html and 'class="track interval"' in html
    assert 'href="/claims/dac.sgemm.best"' in html
