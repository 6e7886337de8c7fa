"""Every verdict word has one explanation."""

import csv
import re
from html import unescape

from fastapi.testclient import TestClient

from service.pages.concluding import name_share
from service.pages.formats import as_confidence, upper_first
from service.pages.wording import (
    BY_WORD,
    COLOURS,
    MEANINGS,
    NEVER,
    NEVER_ON_HARDWARE,
    REASONS,
    TO_BE_SHOWN,
    WAITING,
    side_of,
)
from stages.params.experiment import load_params
from stages.results import ICONS, WORD_OF, Status, Word
from tests.service.results_factory import REPOSITORY


def test_every_status_has_one_of_four_words_a_reason_and_an_explanation() -> None:
    keys = [key for several in BY_WORD.values() for key in several]
    explained = {Status.NOT_TESTED, Status.OTHER_HARDWARE}
    assert sorted(keys) == sorted({*Status, WAITING, TO_BE_SHOWN, NEVER, NEVER_ON_HARDWARE} - explained)
    assert set(MEANINGS) == set(REASONS) == set(keys) and set(WORD_OF) == set(Status)
    assert len(set(MEANINGS.values())) == len(set(REASONS.values())) == len(keys)
    assert list(BY_WORD) == list(ICONS) == ["holds", "fails", "open", "not tested"]
    assert not set(REASONS.values()) & {*Status, *Word}, "a reason is no verdict"
    assert [side_of(key) for key in ("supported", "reversed", "holds under a reading", WAITING)] == [
        *("for", "against", "open", "waiting")
    ]


def test_headlines_use_only_the_four_words(published_client: TestClient) -> None:
    """On badges, tabs and headings of every kind of page; sentences may contain a status of the API."""
    pages = ["/", "/method", "/claims", "/claims?verdict=reversed", "/?dataset=sgemm", "/?dataset=mnist", "/papers/dac"]
    pages += ["/papers/nmn", "/papers/ninformer", "/claims/dac.sgemm.gain", "/claims/nmn.ext.mnist.frameworks"]
    pages += ["/experiments/dac-sgemm", "/versus?dataset=sgemm&a=dac-mlp-141x5&b=mlp-141x5"]
    seen = set()
    for address in pages:
        html = unescape(published_client.get(address).text)
        badges = re.findall(r'class="badge verdict (\w+)"[^>]*>([^<]+)<', html)
        tabs = re.findall(r'href="/(?:claims|papers)[^"]*verdict=[^"]*"[^>]*>([a-z ]+?)(?: \d+)?</a>', html)
        assert len(badges) == html.count('class="badge verdict'), address
        assert all(COLOURS[Word(word)] == side for side, word in badges) and set(tabs) <= set(Word), address
        headings = re.findall(r"<h[123][^>]*>([^<]*)</h[123]>", html)
        assert not {heading.lower() for heading in headings} & ({*Status, *MEANINGS} - {*Word}), address
        seen |= {word for _, word in badges}
    assert seen == set(Word)


def test_method_page_explains_every_word(client: TestClient) -> None:
    page, sheet = client.get("/method").text, client.get("/static/style.css").text
    assert not {"&lt;span", "&lt;br", "<!--"} & {*re.findall(r"&lt;\w+|<!--", page)}
    html = unescape(page)
    for key, meaning in MEANINGS.items():
        assert f"<code>{key}</code>" in html and meaning in html and upper_first(REASONS[key]) in html
    for word, icon in ICONS.items():
        assert f'verdict {COLOURS[word]}">{word}</span>' in html
        assert f'.badge.verdict.{COLOURS[word]}::before {{ content: "{icon} " / ""; }}' in sheet


def test_method_page_has_every_margin_and_level_of_the_rules(published_client: TestClient) -> None:
    html = unescape(published_client.get("/method").text)
    rules = load_params(REPOSITORY).verdicts
    margins = html[html.index('id="how-wide-margins-are"') : html.index('id="interim-analyses"')]
    for text in (
        f"{100 * rules.margins.error_points:.2f} pp, but no more than {name_share(rules.margins.error_share)}",
        f"{name_share(rules.margins.difference_share)} of the printed difference, but at least "
        f"{100 * rules.margins.difference_points:.2f} pp",
        f"{100 * rules.margins.comparable_points:.2f} pp",
        f"{name_share(rules.margins.log_mse_share)} of the printed change",
        f"{name_share(rules.margins.loss_share)} of the paper’s loss",
    ):
        assert text in margins, text
    levels = html[html.index('id="interim-analyses"') : html.index('id="kinds-of-claims"')]
    claims = published_client.get("/api/v1/claims?limit=1000").json()
    verdicts = [claim["verdict"] for claim in claims if claim["verdict"]["confidence"] and claim["verdict"]["n"]]
    # Parts of a grid share an analysis's level, which the table gives undivided.
    used = {(verdict["confidence"], verdict["n"]) for verdict in verdicts if verdict["scope"] is None}
    used |= {(verdict["size"]["confidence"], verdict["size"]["n"]) for verdict in verdicts if verdict["size"]}
    assert len({level for level, _ in used}) > 1
    for level, n in used:
        assert f"{as_confidence(level)} after {n}" in levels, "a verdict has a level that the table lacks"


def test_waiting_and_undecidable_claims_are_distinguished_everywhere(published_client: TestClient) -> None:
    claims = published_client.get("/api/v1/claims?limit=1000").json()
    for claim in claims:
        verdict, standing = claim["verdict"], claim["verdict"]["standing"]
        assert (standing == "waiting") == (verdict["status"] == "not tested" and verdict["is_decidable"])
        assert (standing == "untestable") == (claim["kind"] != "setup" and not verdict["is_decidable"])
        if (
            claim["paper"] == "nmn"
            and verdict["status"] == "not tested"
            and claim["kind"] not in ("figure", "qualitative")
        ):
            page = unescape(published_client.get(f"/claims/{claim['id']}").text)
            assert f">{REASONS[WAITING if standing == 'waiting' else NEVER]}</small>" in page, claim["id"]
    counts = published_client.get("/api/v1/verdicts").json()["papers"]
    for standing, number in (("waiting", "waiting"), ("untestable", "untestable"), ("setting", "settings")):
        own = published_client.get(f"/api/v1/claims?standing={standing}&limit=1000").json()
        assert {claim["verdict"]["standing"] for claim in own} == {standing}
        assert len(own) == sum(paper[number] for paper in counts)
    assert published_client.get("/api/v1/claims?standing=never").status_code == 422
    never = published_client.get("/claims/nmn.ext.vits.c10.base").text
    assert (
        f">{REASONS[NEVER]}</small>" in never
        and "yet" not in re.findall(r'(?s)<div class="conclusion">(.*?)</div>', never)[0]
    )


def test_tab_and_its_page_have_the_same_number_of_claims(published_client: TestClient) -> None:
    for paper in published_client.get("/api/v1/verdicts").json()["papers"]:
        assert f">all {paper['claims']}</a>" in published_client.get(f"/papers/{paper['paper']}").text
    html = published_client.get("/papers/nmn").text
    tabs = re.findall(r'<a href="(/papers/nmn\?verdict=[^"]+)"[^>]*>(.*?) (\d+)</a>', html)
    assert [word for _, word, _ in tabs] == [word for word in Word if f">{word} " in html] and len(tabs) > 1
    for address, word, number in tabs:
        page = published_client.get(unescape(address)).text
        assert len(set(re.findall(r'href="/claims/(nmn[^"]+)"', page))) == int(number), address
        (data,) = re.findall(r'href="(/api/v1/claims[^"]+limit=1000)"', unescape(page))
        rows = published_client.get(data).json()
        assert len(rows) == int(number) and {row["verdict"]["word"] for row in rows} == {word}
    for before in ("holds under a reading", "waiting", "can’t be tested here", "reproduced"):
        assert published_client.get("/papers/nmn", params={"verdict": before}).status_code == 200, "old links"


def test_titles_mark_our_choices(published_client: TestClient) -> None:
    titles = {claim["id"]: claim["title"] for claim in published_client.get("/api/v1/claims?limit=1000").json()}
    assert all(titles.values())
    for name, title in titles.items():
        prints_every_epoch = name.startswith("nmn.ext.mnist.accuracy.")
        if ("last epoch" in title or "best epoch" in title) and not prints_every_epoch:
            assert "paper names no" in title or "guide names none" in title or "the paper names none" in title, name
        if "OpenWebText" in title and "validation loss" in title:
            assert "our choice" in title, name


def test_csv_has_claim_titles_and_units(published_client: TestClient) -> None:
    rows = list(csv.DictReader(published_client.get("/api/v1/claims?format=csv").text.splitlines()))
    assert len(rows) > 300 and all(row["title"] for row in rows)
    of_training = [row for row in rows if row["verdict.estimate"] and row["verdict.basis"] == "results"]
    assert of_training and all(row["verdict.unit"] for row in of_training)
    for paper in published_client.get("/api/v1/verdicts").json()["papers"]:
        assert paper["plainly"] == paper["in_favour"] - paper["under_reading"]
