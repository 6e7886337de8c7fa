"""Searching the published claims with realistic questions."""

import re
from collections import Counter

import pytest
from fastapi.testclient import TestClient


def find(client: TestClient, asked: str, **more: str) -> list[str]:
    html = client.get("/claims", params={"q": asked, **more}).text
    return re.findall(r'<th scope="row"><a href="/claims/([^"]+)"', html)


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ("beats ViT", "ninformer.text.c10.acc_vs_vit"),
        ("does NiNformer beat ViT?", "ninformer.text.c10.acc_vs_vit"),
        ("NiNformer ViT", "ninformer.text.c10.acc_vs_vit"),
        ("vit versus ninformer: which is faster", "ninformer.text.c10.time_vs_vit"),
        ("HyperBF better", "hyperbf.text.c10.gap"),
        ("HyperBF speed", "hyperbf.text.c10.gap"),
        ("how fast is NiNformer on MNIST", "ninformer.table3.mnist.ninformer"),
        ("LocalViT CIFAR-100", "ninformer.table2.c100.localvit"),
        ("mlp mixer vs vit cifar10", "ninformer.rank.c10.mlpmixer"),
        ("is DAC better than its baseline on CIFAR-100?", "dac.table1.c100.v1.r20.order"),
        ("0.25 nats at equal width", "dac.sgemm.gain"),
        ("GPT memory", "nmn.gpt.memory"),
        ("Brownian motion", "brownian.motion"),
        ("Theorem C.1(1)", "dac.thm.c1.1"),
        ("activation", "nmn.theory.activation"),
        ("normalisation", "nmn.theory.selfreg"),
        ("do I need activations?", "nmn.theory.activation"),
        ("linear complexity", "ninformer.complexity.linear"),
        ("uniform improvement", "dac.sgemm.uniform"),
    ],
)
def test_wanted_claim_is_among_the_first_three(published_client: TestClient, asked: str, wanted: str) -> None:
    assert wanted in find(published_client, asked)[:3]


def test_papers_title_in_a_question_is_only_a_hint(published_client: TestClient) -> None:
    html = published_client.get("/claims?q=gating").text
    assert 'Papers with it in their title: <a href="/papers/ninformer">' in html
    assert find(published_client, "gating") == []


@pytest.mark.parametrize(
    ("asked", "meant"),
    [("mixre", "mixer"), ("ninfomer", "ninformer"), ("hyprbf", "hyperbf")],
)
def test_typing_error_finds_claims_with_the_most_similar_word(
    published_client: TestClient, asked: str, meant: str
) -> None:
    html = published_client.get("/claims", params={"q": asked}).text
    assert f'Did you mean <a href="/claims?q={meant}">{meant}</a>' in html and "come closest" in html
    assert set() < set(find(published_client, asked)) <= set(find(published_client, meant))


def test_claims_are_found_by_words_in_any_order_and_by_verdict(client: TestClient) -> None:
    times = find(client, "MNIST inference time")
    assert times == [f"ninformer.table3.mnist.{arm}" for arm in ("vit", "mlp-mixer", "local-vit", "ninformer")]
    assert find(client, "time inference mnist") == times == find(client, "mnist time zebra"), "most of the words"
    assert find(client, "mnist time", verdict="contradicted") == ["ninformer.table3.mnist.vit"]
    assert "<b>zebra" not in client.get("/claims", params={"q": "<b>zebra"}).text


def test_unknown_word_lists_the_papers(published_client: TestClient) -> None:
    html = published_client.get("/claims?q=qqzzx").text
    assert "Did you mean" not in html and all(
        f'<li><a href="/papers/{paper}">' in html for paper in ("hyperbf", "ninformer", "nmn", "brownian", "dac")
    )


@pytest.mark.parametrize(
    "spellings",
    [
        ("LocalViT", "Local-ViT", "local vit"),
        ("bias", "biases"),
        ("MSE", "mean squared error"),
        ("tinyimagenet", "Tiny ImageNet", "tiny-imagenet"),
        ("nanosecond", "nanoseconds", "ns"),
        ("vision transformer", "ViT"),
    ],
)
def test_all_spellings_find_the_same_claims(published_client: TestClient, spellings: tuple[str, ...]) -> None:
    first, *others = [find(published_client, spelling) for spelling in spellings]
    assert first and all(found == first for found in others)


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        (
            "Local-ViT",
            {"ninformer.table2.c100.localvit", "ninformer.rank.c10.localvit", "ninformer.text.c10.time_vs_localvit"},
        ),
        ("tinyimagenet", {"hyperbf.table2.tin.vit", "hyperbf.comparable.tin"}),
        ("MSE", {"dac.sgemm.gain", "dac.sgemm.uniform", "dac.sgemm.crossover_low"}),
        ("nanosecond", {f"ninformer.table3.{name}.ninformer" for name in ("mnist", "c10", "c100")}),
    ],
)
def test_papers_own_term_finds_all_its_claims(published_client: TestClient, asked: str, wanted: set[str]) -> None:
    if asked == "Local-ViT":
        claims = [row["id"] for row in published_client.get("/api/v1/claims?limit=1000").json()]
        wanted = wanted | {name for name in claims if "localvit" in name}
        assert len(wanted) >= 12
    assert wanted <= set(find(published_client, asked))
    assert asked != "nanosecond" or all(
        name.startswith("ninformer.table3.") for name in find(published_client, asked)[:9]
    )


def test_list_of_claims_has_pages_and_starts_with_trained_ones(published_client: TestClient) -> None:
    everything = {row["id"]: row["verdict"] for row in published_client.get("/api/v1/claims?limit=1000").json()}
    found: list[str] = []
    for number in range(1, 7):
        html = published_client.get(f"/claims?page={number}").text
        found += re.findall(r'<th scope="row"><a href="/claims/([^"]+)"', html)
    assert sorted(found) == sorted(everything)
    trained = {name for name, verdict in everything.items() if verdict["basis"] == "results"}
    trained -= {name for name in trained if everything[name]["word"] not in ("holds", "fails")}
    assert {everything[name]["status"] for name in trained} >= {"supported", "reproduced", "reversed"}
    sections = published_client.get("/claims").text.split('<section class="experiment"')[1:]
    firsts = [re.findall(r'<th scope="row"><a href="/claims/([^"]+)"', section) for section in sections]
    assert trained == {name for names in firsts for name in names[: len(trained & set(names))]}
    assert "There is no such page" in html and "page 5 of 5" in published_client.get("/claims?page=5").text


@pytest.mark.parametrize("column", ["claim", "paper", "ours", "verdict"])
def test_claims_are_sorted_by_each_column_and_back(published_client: TestClient, column: str) -> None:
    judged = {row["id"]: row for row in published_client.get("/api/v1/claims?limit=1000").json()}
    listed = find(published_client, "yat", sort=column)
    back = find(published_client, "yat", sort=column, reverse="true")
    assert sorted(listed) == sorted(back) == sorted(find(published_client, "yat")) and listed != back
    words, rows = ("holds", "fails", "open", "not tested"), [judged[name] for name in listed]
    ordered = {
        "paper": [(row["unit"], row["value"]) for row in rows if row["value"] is not None],
        "verdict": [words.index(row["verdict"]["word"]) for row in rows],
    }.get(column, [])
    assert ordered == sorted(ordered)
    html = published_client.get("/claims", params={"q": "yat", "sort": column, "reverse": "true"}).text
    assert html.count("aria-sort") == html.count('<table class="claims') == 1, "one table for all papers"
    assert f'<a href="/claims?q=yat&amp;sort={column}">' in html, "links back to the first order"


def test_only_occurring_verdicts_can_be_chosen(published_client: TestClient) -> None:
    html = published_client.get("/claims").text
    words = [row["verdict"]["word"] for row in published_client.get("/api/v1/claims?limit=1000").json()]
    chosen = dict(re.findall(r'verdict=[^"]+">([a-z ()]+) (\d+)</a>', html))
    assert {word: int(number) for word, number in chosen.items()} == Counter(words)
    assert set(chosen) == {"holds", "fails", "open", "not tested"}
