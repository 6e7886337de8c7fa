"""Every verdict word is explained once."""

from __future__ import annotations

import re
from html import unescape

from fastapi.testclient import TestClient

from service.pages.formats import as_confidence
from service.pages.legend import MEANINGS, SIDES, address_of
from service.pages.rules_table import name_share
from service.pages.wording import side_of
from stages.params.experiment import load_params
from stages.results import Paper, Status
from tests.service.results_factory import REPOSITORY


def test_every_word_is_explained_once_and_stands_on_its_side() -> None:
    listed = [status for statuses in SIDES.values() for status in statuses]
    assert sorted(listed) == sorted(Status) and len(set(listed)) == len(listed)
    assert set(MEANINGS) == set(Status) and len(set(MEANINGS.values())) == len(MEANINGS)
    for side, name in (
        ("For the paper", "for"),
        ("True as read in one way", "reading"),
        ("Against it", "against"),
        ("Open", "open"),
        ("Waiting", "waiting"),
    ):
        assert {side_of(status) for status in SIDES[side]} == {name}


def test_the_method_s_page_explains_every_word(client: TestClient) -> None:
    html = client.get("/method").text
    for status in Status:
        assert f">{status}</span>" in html and MEANINGS[status] in html


def test_claims_are_found_by_every_word_in_any_order(client: TestClient) -> None:
    def found(address: str) -> list[str]:
        return re.findall(r'href="/claims/([^"]+)"', client.get(address).text)

    times = found("/claims?q=MNIST+inference+time")
    assert times == [f"ninformer.table3.mnist.{arm}" for arm in ("vit", "mlp-mixer", "local-vit", "ninformer")]
    assert found("/claims?q=time+inference+mnist") == times
    assert found("/claims?q=mnist+time&verdict=contradicted") == ["ninformer.table3.mnist.vit"]
    everything = client.get("/api/v1/claims?limit=1000").json()
    assert set(found("/claims")) == {claim["id"] for claim in everything}
    assert found("/claims?q=mnist+time+zebra") == times, "those with most of the words"
    assert "No claim has every word of “mnist time zebra”" in client.get("/claims?q=mnist+time+zebra").text
    vit = found("/claims?q=vit+mnist")
    names = [row for row in vit if row.startswith("ninformer.")]
    assert "vit" in names[0] and len(vit) > len(names[:1]), "whose own name has both words"
    nothing = client.get("/claims", params={"q": "<b>zebra"})
    assert "No claim has a word of" in nothing.text and "<b>zebra" not in nothing.text
    assert 'href="/papers/ninformer"' in nothing.text, "on no match the papers' pages"
    assert client.get("/claims?verdict=maybe").status_code == 422


def test_a_paper_is_linked_to_where_its_title_says_it_is() -> None:
    with_number = Paper(name="dac", title="Increasing biases (Metta et al. 2024, arXiv 2301.00924v3)")
    assert address_of(with_number) == "https://arxiv.org/abs/2301.00924v3"
    assert address_of(Paper(name="x", title="A paper of 2021")) is None


def test_the_method_s_page_has_each_margin_and_level_of_the_rules(published_client: TestClient) -> None:
    html = unescape(published_client.get("/method").text)
    rules = load_params(REPOSITORY).verdicts
    margins = html[html.index('id="margins-title"') : html.index('id="levels-title"')]
    for told in (
        f"{100 * rules.margins.error_points:.2f} pp, but no more than {name_share(rules.margins.error_share)}",
        f"{name_share(rules.margins.difference_share)} of the printed difference, but at least "
        f"{100 * rules.margins.difference_points:.2f} pp",
        f"{100 * rules.margins.comparable_points:.2f} pp",
        f"{name_share(rules.margins.log_mse_share)} of the printed change",
        f"{name_share(rules.margins.loss_share)} of the paper’s loss",
    ):
        assert told in margins, told
    levels = html[html.index('id="levels-title"') : html.index('id="computing-title"')]
    claims = published_client.get("/api/v1/claims?limit=1000").json()
    verdicts = [claim["verdict"] for claim in claims if claim["verdict"]["confidence"] and claim["verdict"]["n"]]
    used = {(verdict["confidence"], verdict["n"]) for verdict in verdicts}
    used |= {(verdict["size"]["confidence"], verdict["size"]["n"]) for verdict in verdicts if verdict["size"]}
    assert len({level for level, _ in used}) > 2
    for level, n in used:
        assert f"{as_confidence(level)} after {n}" in levels, "a verdict has a level that the table lacks"


def test_the_margin_of_each_plan_leads_to_the_table(published_client: TestClient) -> None:
    html = published_client.get("/claims/ninformer.text.c10.acc_vs_vit").text
    assert "The margin is" in html and 'href="/method#margins-title"' in html
