"""Numbers of findings are told in words with their units, not under the names of the code."""

import re

from fastapi.testclient import TestClient

from service.pages.wording import captions, find_caption
from tests.service.test_published_pages import text_of


def test_every_number_that_a_finding_computed_has_a_caption_without_a_name_of_the_code(
    computed_client: TestClient,
) -> None:
    claims = computed_client.get("/api/v1/claims?limit=1000").json()
    names = {(claim["paper"], name) for claim in claims if claim["finding"] for name in claim["finding"]["computed"]}
    assert len(names) > 150
    for paper, name in sorted(names):
        found = find_caption(paper, name)
        assert found is not None, f"{paper}: {name} has no caption in {captions.__module__}"
        assert not re.search(r"_|\b(c10|c100|vit|k\d|n\d+|bf16|pct)\b|percent|\{", found[0]), found[0]


def test_every_caption_is_of_a_number_that_there_is(computed_client: TestClient) -> None:
    claims = computed_client.get("/api/v1/claims?limit=1000").json()
    names = {(claim["paper"], name) for claim in claims if claim["finding"] for name in claim["finding"]["computed"]}
    for row in captions():
        assert any(row.paper in (None, paper) and row.pattern.fullmatch(name) for paper, name in names), row.text


def test_arithmetic_with_printed_numbers_lists_no_set_up(computed_client: TestClient) -> None:
    page = text_of(computed_client.get("/claims/ninformer.text.c10.acc_vs_localvit").text)
    assert "relative gain over LocalViT, CIFAR-10" in page and "Where we depart from the paper" not in page
    assert "Where we depart from the paper" in text_of(computed_client.get("/claims/nmn.theory.uat").text)
