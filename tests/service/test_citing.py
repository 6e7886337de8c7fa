"""Citing a claim: BibTeX, JSON-LD, badges."""

import itertools
import json
import re
import sqlite3
from contextlib import closing
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import mlcroissant
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from service.app import create_app
from service.pages.citing import COLOURS, badge, paper_badge
from service.pages.formats import is_web_address
from service.settings import Settings
from stages.results import ClaimFilter, tally
from tests.service.conftest import reading
from tests.service.results_factory import REPOSITORY

GAIN = "/claims/dac.sgemm.gain"


def linked_data(client: TestClient, address: str) -> dict[str, Any]:
    found = re.search(r'(?s)<script type="application/ld\+json">(.*?)</script>', client.get(address).text)
    assert found is not None
    read: dict[str, Any] = json.loads(found[1])
    return read


def test_decided_claim_is_a_review_for_search_engines(published_client: TestClient) -> None:
    review, claim = linked_data(published_client, GAIN), published_client.get(f"/api/v1{GAIN}").json()
    assert (review["@context"], review["@type"]) == ("https://schema.org", "ClaimReview")
    assert (claim["verdict"]["status"], claim["verdict"]["size"]["status"]) == (
        "supported",
        "undecidable at this margin",
    )
    assert review["reviewRating"]["alternateName"] == "holds, size open, at 18, 25 and 35 units, exploratory"
    assert review["reviewRating"]["ratingValue"] == review["reviewRating"]["bestRating"] - 1, "its size is open"
    part = linked_data(published_client, "/claims/dac.sgemm.crossover_low")["reviewRating"]
    assert part["ratingValue"] == part["bestRating"] - 1, "its statement covers four sizes only"
    (counted,) = published_client.get("/api/v1/claims?verdict=holds&limit=1").json()
    whole = linked_data(published_client, f"/claims/{counted['id']}")["reviewRating"]
    assert whole["ratingValue"] == whole["bestRating"] == 5
    assert review["itemReviewed"]["appearance"]["url"] == "https://arxiv.org/abs/2301.00924v3"
    assert review["url"] == f"http://127.0.0.1{GAIN}" and re.fullmatch(r"\d{4}-\d\d-\d\d", review["datePublished"])
    assert "reviewRating" not in linked_data(published_client, "/claims/dac.sgemm.uniform"), "it is open"
    against = linked_data(published_client, "/claims/nmn.ext.mnist.frameworks")
    assert against["reviewRating"]["alternateName"] in ("fails, exploratory", "fails, confirmatory")
    assert against["reviewRating"]["ratingValue"] == against["reviewRating"]["worstRating"] == 1


def test_claim_is_cited_with_verdict_and_digest(published_client: TestClient) -> None:
    found = re.search(r"(?s)@misc\{.*?\n\}", published_client.get(GAIN).text)
    assert found is not None
    entry, verdict = unescape(found[0]), published_client.get(f"/api/v1{GAIN}").json()["verdict"]
    assert entry.startswith("@misc{claimcheck-dac-sgemm-gain,")
    assert (
        "falls by 0.25: holds, size open, at 18, 25 and 35 units, exploratory}}" in entry
        and verdict["digest"][:12] in entry
        and "year = {2026}" in entry
    )
    assert entry.count("{") == entry.count("}") and "url =" not in entry, "the answering host is no permanent address"


def test_citations_use_the_configured_permanent_address(published_client: TestClient, published: str) -> None:
    settings = Settings(root=REPOSITORY, database=published, address="https://claims.example/check/")
    own = TestClient(create_app(settings), base_url="http://127.0.0.1")
    digest = published_client.get(f"/api/v1{GAIN}").json()["verdict"]["digest"][:12]
    for page, url in (
        (GAIN, f"{GAIN}?cited={digest}"),
        ("/papers/dac", "/papers/dac"),
        ("/experiments/dac-sgemm", "/experiments/dac-sgemm"),
    ):
        entries = re.findall(r"(?s)@misc\{.*?\n\}", own.get(page).text)
        assert len(entries) == 1 and f"url = {{https://claims.example/check{url}}}" in entries[0]


def test_cited_address_reports_a_changed_verdict(published_client: TestClient) -> None:
    digest = published_client.get(f"/api/v1{GAIN}").json()["verdict"]["digest"]
    assert "Nothing has changed since" in published_client.get(f"{GAIN}?cited={digest[:12]}").text
    html = published_client.get(f"{GAIN}?cited=0123456789ab").text
    assert "cited with the verdict 0123456789ab, which has changed since" in html and 'href="#changes-title"' in html
    assert "was cited" not in published_client.get(GAIN).text


def test_pairs_and_tables_have_the_same_numbers_as_compare(published_client: TestClient) -> None:
    pairs = published_client.get(f"/api/v1{GAIN}").json()["pairs"]
    assert len(pairs) == 15
    for ours in (pair["ours"] for pair in pairs):
        assert list(ours) == ["value", "low", "high", "n"]
        assert ours["low"] < ours["value"] < ours["high"] and ours["n"] == 5
    tables = published_client.get("/api/v1/verdicts").json()["tables"]
    assert tables and not {"gain", "low", "high"} & set(tables[0]) and "ours" in tables[0]


def test_claim_states_the_number_of_trainings_and_environments(published_client: TestClient, published: str) -> None:
    keys = {run["run_key"] for run in published_client.get(f"/api/v1{GAIN}").json()["runs"]}
    with closing(sqlite3.connect(published)) as database:
        found = dict(database.execute("SELECT run_key, environment_digest FROM results"))
    places = {found[key] for key in keys}
    assert f">{len(keys)} trainings in {len(places)} environments</dd>" in published_client.get(GAIN).text
    assert len(keys) > len(places) > 1
    assert "trainings in" not in published_client.get("/claims/ninformer.table2.mnist.vit").text


def test_table_is_cited_with_the_digest_of_all_results(published_client: TestClient) -> None:
    found = re.search(r"(?s)@misc\{.*?\n\}", published_client.get("/experiments/dac-sgemm").text)
    assert found is not None
    entry, content = unescape(found[0]), published_client.get("/health/ready").json()["detail"][len("results ") :][:12]
    assert entry.startswith("@misc{claimcheck-dac-sgemm,") and f"results {content}" in entry
    assert "full-length training on official data" in entry and "url =" not in entry


def test_badges_show_the_verdict_and_are_valid_svg(published_client: TestClient) -> None:
    answer = published_client.get(f"{GAIN}/badge.svg")
    assert answer.headers["content-type"] == "image/svg+xml"
    title = ElementTree.fromstring(answer.text).findtext("{http://www.w3.org/2000/svg}title")
    assert title is not None and re.fullmatch(
        r"claim: holds, size open, at 18, 25 and 35 units, exploratory, n = 5, 2026-\d\d", title
    )
    (counts,) = published_client.get("/api/v1/verdicts?paper=dac").json()["papers"]
    paper = published_client.get("/papers/dac/badge.svg").text
    parts = [counts["plainly"], counts["opposed"], counts["open"] + counts["under_reading"], counts["waiting"]]
    told = [
        f"{number} {word}" for number, word in zip(parts, ("hold", "fail", "open", "not tested"), strict=True) if number
    ]
    assert f"claims: {', '.join(told)}<" in paper
    front = re.findall(r'title="(\d+) (?:holds|fails|open|not tested)"', published_client.get("/").text)
    assert [*map(str, parts)] in [front[at : at + 4] for at in range(0, len(front), 4)], "counted as on the front page"
    fills = re.findall(r'<rect x="[^"]+" width="\d+" height="22" fill="([^"]+)"', paper)
    sides = [side for number, side in zip(parts, ("for", "against", "open", "waiting"), strict=True) if number]
    assert fills[1:] == [COLOURS[side] for side in sides], "each part has its own colour"
    with published_client.app.state.claimcheck.reading.sessions() as session:  # type: ignore[attr-defined]
        nothing = tally(session, ClaimFilter(experiment="none"))[0]
    assert paper_badge(nothing).count("<rect x=") == 2
    for address in ("/claims/x/badge.svg", "/papers/x/badge.svg"):
        assert published_client.get(address).status_code == 404
    ElementTree.fromstring(badge("a<b", [('c&d"', "#000")]))


SCHEMES = ("javascript:", "data:text/html,", "vbscript:", "file:", "//", "http:", "https:/")


@given(st.text(" \t\n\r\0\x01\x0b\x1f\xa0", max_size=3), st.sampled_from(SCHEMES), st.data())
def test_executable_address_is_not_a_web_address(before: str, scheme: str, data: st.DataObject) -> None:
    """Browsers ignore leading controls and blanks, tabs and line feeds anywhere, and case."""
    changed = "".join(data.draw(st.sampled_from([c, c.upper(), f"\t{c}", f"{c}\n"])) for c in scheme)
    assert not is_web_address(f"{before}{changed}alert(1)")


OURS = {"address", "paper.repository", "repository", "contact_link"}
"""Values from elsewhere: the first two are linked if they are web addresses, the others are validated settings."""
MADE_HERE = {"here(column)", "without(line.name)", "line.address", "problem.type", "picture"} | {
    *("image.address", "image.sample.address", "item.address"),
    *("here(word=none)", "here(word=word)", "here(number)", "here(by=column, back=column == sort and not reverse)"),
    *('with("profile", name)', 'with("metric", name)', 'with("metric", "")', 'with("curve", name)'),
}


def test_links_to_stored_addresses_are_checked() -> None:
    templates = REPOSITORY / "service" / "templates"
    begun = re.compile(r"""\b(?:href|src|\w*action|poster|srcset|data)=["']?\{[{%] *([^}%|]+?) *[}%|]""")
    found = {name: begun.findall(name.read_text(encoding="utf-8")) for name in templates.rglob("*.html")}
    assert set().union(*found.values()) == OURS | MADE_HERE
    parts = (templates / "parts.html").read_text(encoding="utf-8")
    for guarded in ("address", "paper.repository"):
        assert parts.count(f'href="{{{{ {guarded} }}}}"') == parts.count(f"if {guarded} | is_web_address %}}"), guarded


def test_executable_address_is_not_linked(own_root: Path) -> None:
    with closing(sqlite3.connect(own_root / "data" / "results.db")) as database, database:
        names = [name for (name,) in database.execute("SELECT name FROM papers")]
        for name, scheme in zip(names, itertools.cycle((" JAVASCRIPT:", "data:text/html,", "java\tscript:"))):
            database.execute("UPDATE papers SET repository = ?1, summary = ?1 WHERE name = ?2", (f"{scheme}x", name))
        database.execute("UPDATE datasets SET homepage = 'javascript:x', licence = 'javascript:x'")
        database.execute("UPDATE claims SET statement = 'javascript:x', note = 'javascript:x'")
    with reading(Settings(root=own_root)) as client:
        claims = [claim["id"] for claim in client.get("/api/v1/claims?limit=1000").json()][::9]
        runs = [run["run_key"] for run in client.get("/api/v1/runs?limit=3").json()]
        pages = [f"/papers/{name}" for name in names] + [f"/claims/{claim}" for claim in claims]
        for path in (
            *pages,
            *(f"/runs/{run}" for run in runs),
            "/",
            "/?dataset=cifar10",
            "/method",
            "/claims?q=javascript",
        ):
            html = client.get(path).text
            links = re.findall(r"""<[^>]*\s(?:href|src|\w*action)=["']([^"']*)""", html)
            assert links and all(re.match("[/#?]|https?://", link) for link in links), path
            assert "no public code of its authors" in html or "/papers/" not in path


@pytest.mark.filterwarnings("ignore:ConjunctiveGraph:DeprecationWarning")
@pytest.mark.parametrize(("address", "rows"), [("/?dataset=mnist", 10), ("/experiments/ninformer-mnist", 4)])
def test_results_are_croissant_data_sets_with_readable_tables(
    published_client: TestClient, address: str, rows: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    described = linked_data(published_client, address)
    (table,) = described["distribution"]
    (tmp_path / table["@id"]).write_bytes(published_client.get(table["contentUrl"]).content)
    table["contentUrl"] = table["@id"]  # the test published_client has no port
    (tmp_path / "croissant.json").write_text(json.dumps(described), encoding="utf-8")
    read = mlcroissant.Dataset(tmp_path / "croissant.json")
    assert not read.metadata.ctx.issues.errors and "@context` is not standard" not in caplog.text
    assert read.metadata.ctx.is_v1_1()
    (name,) = [one.id for one in read.metadata.record_sets]
    found = list(read.records(name))
    assert len(found) >= rows and all(len(row) == len(described["recordSet"][0]["field"]) for row in found)
    assert described["url"] == f"http://127.0.0.1{address}" and described["isBasedOn"]["name"]


def test_paper_is_an_article_that_our_page_is_about(published_client: TestClient) -> None:
    article = linked_data(published_client, "/papers/dac")
    assert (article["@type"], article["url"]) == ("ScholarlyArticle", "https://arxiv.org/abs/2301.00924v3")
    assert article["subjectOf"]["url"] == "http://127.0.0.1/papers/dac"


def test_pages_name_the_authors_and_licences_of_the_project_that_is_served(own_root: Path) -> None:
    """A project of one's own may have no such files, or one that can't be read."""
    citation = own_root / "CITATION.cff"
    (own_root / "NOTICE").unlink(missing_ok=True)
    for text, author, licence in (
        (
            "authors: [{given-names: Ada, family-names: Lovelace}, {name: A Lab}]\nlicense: MIT",
            "Ada Lovelace and A Lab",
            "MIT",
        ),
        ("authors: [", None, None),
        ("[]", None, None),
        (None, None, None),
    ):
        citation.write_text(text, encoding="utf-8") if text else citation.unlink()
        with reading(Settings(root=own_root)) as client:
            (experiment, *_) = (item["name"] for item in client.get("/api/v1/experiments").json())
            page = client.get(f"/experiments/{experiment}").text
        assert ("author = {" in page) == (author is not None) and ("Licence of the code" in page) == (
            licence is not None
        )
        assert author is None or page.count(author) >= 3, "footer, citation and linked data"
        assert licence is None or f"Licence of the code: {licence}." in page
        assert "/files/NOTICE" not in page and "Claimcheck authors" not in page
