"""How to object to a verdict, and which files of the repository pages show."""

import re

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from service.pages.repository import files_below, render
from service.settings import Settings
from tests.service.conftest import reading
from tests.service.results_factory import REPOSITORY
from tests.service.test_published_pages import text_of

CLAIM = "dac.sgemm.gain"


def test_claim_page_explains_how_to_object_and_that_authors_were_not_asked(
    published_client: TestClient, published: str
) -> None:
    asked = "did not contact the authors of the papers"
    page = text_of(published_client.get(f"/claims/{CLAIM}").text)
    assert "has no contact address and no public repository" in page and asked in page and CLAIM in page
    assert 'id="object"' in published_client.get("/method").text
    for contact, link in (("claims@example.org", "mailto:claims@example.org"), ("https://example.org/x", None)):
        with reading(Settings(root=REPOSITORY, database=published, contact=contact)) as known:
            html = known.get(f"/claims/{CLAIM}").text
            assert f'Write to <a href="{link or contact}">{contact}</a>' in html and asked in html
    with reading(Settings(root=REPOSITORY, database=published, repository="https://example.org/r")) as known:
        assert (
            'Open an issue in the <a href="https://example.org/r">repository</a>' in known.get(f"/claims/{CLAIM}").text
        )


@pytest.mark.parametrize("contact", ["javascript:alert(1)", "nobody", 'a@b"c', "a b@c.org"])
def test_contact_must_be_an_address(contact: str) -> None:
    with pytest.raises(ValidationError, match="contact"):
        Settings(contact=contact)


def test_only_files_mentioned_on_pages_are_shown(published_client: TestClient) -> None:
    for path in ("data/results.db", "pyproject.toml", "../README.md", "docs/../pyproject.toml", "service/app.py", ""):
        assert published_client.get(f"/files/{path}").status_code == 404
    assert all(
        path.endswith((".md", ".png", ".yaml", ".cff", ".jsonl", "LICENSE", "NOTICE"))
        for path in files_below(REPOSITORY)
    )


def test_documents_are_pages_with_working_links(published_client: TestClient) -> None:
    documents = [path for path in files_below(REPOSITORY) if path.endswith(".md")]
    pages = {f"/files/{path}": published_client.get(f"/files/{path}").text for path in documents}
    anchors = {address: set(re.findall(r' id="([^"]+)"', html)) for address, html in pages.items()}
    assert '<th class="number">' in pages["/files/README.md"] and "0008" in anchors["/files/docs/decisions.md"]
    for address, html in pages.items():
        assert html.count("<h1") == 1 and " style=" not in html, address
        article = html.partition('<article class="document">')[2].partition("</article>")[0]
        for path, anchor in re.findall(r'(?:href|src)="(/files/[^"#]+)?#?([^"]*)"', article):
            if path:
                assert path in pages or published_client.get(path).status_code == 200, (address, path)
            if anchor and not anchor.startswith(("http", "mailto:", "/claims/")):
                assert anchor in anchors[path or address], (address, path, anchor)


def test_documents_contain_no_scripts_or_foreign_links() -> None:
    text = (
        "# Title\n<script>alert(1)</script> [a](javascript:alert(1)) [b](../../etc/passwd) [c](own.md#d) ![e](none.png)"
    )
    for repository, other in ((None, "<span>b</span>"), ("https://example.org/x/", "<span>b</span>")):
        document = render("docs/any.md", text, frozenset({"docs/own.md"}), repository)
        assert document.title == "Title" and "<script" not in document.body and 'href="java' not in document.body
        assert '<a href="/files/docs/own.md#d">c</a>' in document.body and other in document.body
    assert 'src="https://example.org/x/blob/HEAD/docs/none.png"' in document.body
