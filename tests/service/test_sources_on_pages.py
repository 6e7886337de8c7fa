"""Sources on pages: a paper's text and code, our setup, and files of the repository."""

import re
import shutil
import sqlite3
from pathlib import Path

from fastapi.testclient import TestClient

from service.settings import Settings
from tests.service.conftest import reading
from tests.service.results_factory import REPOSITORY
from tests.service.test_published_pages import text_of


def test_deviations_come_first_and_have_no_empty_reason(published_client: TestClient) -> None:
    for paper in published_client.get("/api/v1/papers").json():
        html = published_client.get(f"/papers/{paper['name']}").text
        section = html[html.index('id="deviations"') :].partition("</section>")[0]
        assert section.index("<h3>Where we depart from the paper") < section.index("<h3>The rest of the set-up")
        cells = re.findall(r'<th scope="row">([^<]+)</th><td>(.*?)</td>', section)
        assert {name for name, _ in cells} <= {"the paper", "its authors’ code", "we", "because"}
        for name, cell in cells:
            assert re.fullmatch(r"(?s)\S.*[.?!]", text_of(cell).strip()), f"{paper['name']}: {name} {cell!r}"


def test_every_paper_links_to_its_text_and_code_or_says_that_none_is_public(published_client: TestClient) -> None:
    links = {}
    for paper in published_client.get("/api/v1/papers").json():
        html = published_client.get(f"/papers/{paper['name']}").text
        (head,) = re.findall(r'(?s)</h1>\s*(<p class="note">.*?</p>)', html)
        links[paper["name"]] = re.findall(r'href="([^"]+)"', head)
        assert ("arXiv" in paper["title"]) == ("Read the paper" in head) == ("No public link" not in head)
    assert links["ninformer"] == [
        "https://arxiv.org/abs/2403.02411",
        "https://github.com/Abdullah-88/NiNformer/tree/5f877fc",
    ]
    assert links["dac"] == ["https://arxiv.org/abs/2301.00924v3", "https://github.com/CuriosAI/dac-dev"]
    assert "we had no copy" in published_client.get("/papers/dac").text
    assert len(links["nmn"]) == len(links["hyperbf"]) == 1


def test_files_are_linked_if_the_repositorys_address_is_known(
    published_client: TestClient, published: str, tmp_path: Path
) -> None:
    with sqlite3.connect(published) as database:
        ((newest,),) = database.execute("SELECT substr(max(json_extract(origin, '$.published')), 1, 10) FROM results")
    page = published_client.get("/method").text
    assert '<a href="/files/params.yaml"><code>params.yaml</code></a>' in page and "No public repository" in page
    assert published_client.get("/files/params.yaml").status_code == 200
    assert f"newest published result: {newest}" in page and "Apache-2.0" in page
    home = "https://example.org/claimcheck"
    audited, digest = shutil.copy(published, tmp_path / "results.db"), "0123456789abcdef" * 4
    with sqlite3.connect(audited) as database:
        database.execute("REPLACE INTO meta VALUES ('record', ?)", [digest])
    database.close()
    with reading(Settings(root=REPOSITORY, database=str(audited), repository=home)) as known:
        assert f': {digest}">{digest[:16]}</code>' in known.get("/method").text
        linked = known.get("/method").text
        assert f'<a href="{home}/blob/HEAD/params.yaml"><code>params.yaml</code></a>' in linked
        assert f'<a href="{home}">Repository</a>' in linked and "No public repository" not in linked
        decision = f"{home}/blob/HEAD/docs/decisions.md#0008"
        assert f'<a href="{decision}">decision 0008</a>' in known.get("/papers/dac").text
