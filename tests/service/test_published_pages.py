"""Pages of the published evidence print every number in its metric's unit, and no undefined ones."""

import json
import re
import shutil
import sqlite3
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.database.queries import full_run_key
from service.pages.formats import prose, upper_first
from stages.results import METRICS, SHOWN_METRICS, UnknownRun, open_results
from tests.service.drawn import drawings, read, read_drawing

NO_NUMBER = re.compile(r"\b(undefined|NaN|nan|inf|Infinity|None|null)\b")
UNITS = {info.title: info.unit for info in METRICS.values()}


@pytest.fixture(scope="module")
def run_pages(published_client: TestClient) -> dict[str, str]:
    """`{address: HTML}` of one run per model in the evidence; its replicates have the same layout."""
    runs = published_client.get("/api/v1/runs?limit=1000").json()
    models = {(run["experiment"], run["arm"], run["status"]): run["run_key"] for run in runs}
    addresses = {f"/runs/{key}" for key in models.values()}
    assert len(addresses) > 40, "more than one kind of data"
    return {address: published_client.get(address).text for address in sorted(addresses)}


@pytest.fixture(scope="module")
def claims(published_client: TestClient) -> list[dict[str, Any]]:
    """One claim per page layout: paper, kind, unit, how it was decided and how it is planned."""

    def shape(claim: dict[str, Any]) -> tuple[Any, ...]:
        verdict = claim["verdict"]
        about = (verdict[name] for name in ("status", "basis", "is_decidable"))
        has = (bool(verdict[name]) for name in ("size", "registration", "scope", "by_margin"))
        return claim["paper"], claim["kind"], claim["unit"], *about, *has, (verdict["power"] or {}).get("spread_source")

    found = {shape(claim): claim for claim in published_client.get("/api/v1/claims?limit=1000").json()}
    assert len(found) > 100
    return list(found.values())


@pytest.fixture(scope="module")
def claim_pages(published_client: TestClient, claims: list[dict[str, Any]]) -> dict[str, str]:
    """`{address: HTML}` of these claims."""
    answers = {f"/claims/{claim['id']}": published_client.get(f"/claims/{claim['id']}") for claim in claims}
    assert {answer.status_code for answer in answers.values()} == {200}
    return {address: answer.text for address, answer in answers.items()}


def text_of(html: str) -> str:
    """Return what a reader sees: no scripts, style sheet or tags."""
    return unescape(re.sub(r"<[^>]+>", " ", re.sub(r"(?s)<(script|style).*?</\1>", "", html)))


def test_run_pages_print_no_undefined_number(run_pages: dict[str, str]) -> None:
    found = {address: NO_NUMBER.findall(text_of(html)) for address, html in run_pages.items()}
    assert {address: words for address, words in found.items() if words} == {}


def test_tiles_of_runs_have_their_metrics_title_and_unit(run_pages: dict[str, str]) -> None:
    seen = set()
    for address, html in run_pages.items():
        tiles = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", html)
        measured = {unescape(title): value for title, value in tiles if title[0].isupper()}  # except costs
        assert measured, address
        for title, value in measured.items():
            unit = UNITS[title]
            seen.add(unit)
            assert ("%" in value) == (unit == "fraction"), f"{address}: {title} {value}"
            assert unit != "nats" or value.endswith(" nats"), f"{address}: {title} {value}"
    assert {"fraction", "nats", ""} <= seen


def test_curves_of_runs_are_percent_only_for_accuracies(run_pages: dict[str, str]) -> None:
    kinds = set()
    for address, html in run_pages.items():
        table = html[html.index("<summary>Curves as a table") :].partition("</table>")[0]
        titles = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', table)
        for cells in re.findall(r"<tr>(<td.*?)</tr>", table):
            values = re.findall(r"<td[^>]*>(.*?)</td>", cells)
            percents = [title for title, value in zip(titles, values, strict=True) if "%" in value]
            assert percents == [title for title in titles if "accuracy" in title], address
            assert "–" not in values, f"{address}: a column without measurements"
        for title, label in re.findall(
            r'<figcaption>(.*?)</figcaption><div class="plane" role="img" aria-label="(.*?)">', html
        ):
            kinds.add(title)
            assert ("%" in label) == (title == "Accuracy") and "epoch" in label, address
    assert kinds == {"Accuracy", "Loss (nats)", "Mean squared error"}


def test_pages_print_no_undefined_number(published_client: TestClient, claim_pages: dict[str, str]) -> None:
    addresses = ["/", "/method", "/claims", "/curves", "/curves?line=ninformer-mnist.vit"]
    addresses += [f"/leaderboard?dataset={row['name']}" for row in published_client.get("/api/v1/datasets").json()]
    addresses += [f"/papers/{row['name']}" for row in published_client.get("/api/v1/papers").json()]
    addresses += [f"/?dataset={row['name']}" for row in published_client.get("/api/v1/datasets").json()]
    addresses += [f"/experiments/{row['name']}" for row in published_client.get("/api/v1/experiments").json()]
    pages = {address: published_client.get(address) for address in addresses}
    assert {address: page.status_code for address, page in pages.items() if page.status_code != 200} == {}
    for address, html in [*claim_pages.items(), *((address, page.text) for address, page in pages.items())]:
        words = set(NO_NUMBER.findall(text_of(html))) - {"None"}  # may begin sentences
        assert not words and ">None<" not in html, f"{address}: {words}"


def test_prefix_of_a_run_key_redirects_to_its_page(published_client: TestClient) -> None:
    (run,) = published_client.get("/api/v1/runs?experiment=dac-sgemm&limit=1").json()
    key = run["run_key"]
    for start in (key[:7], key[:10]):
        answer = published_client.get(f"/runs/{start}", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (307, f"/runs/{key}")
        assert published_client.get(f"/api/v1/runs/{start}").json()["run_key"] == key
        assert published_client.get(f"/api/v1/runs/{start}/trail").json()["run_key"] == key
    for unknown in (key[:6], f"{key[:7]}x", f"{key}0", "%" * 7):
        assert published_client.get(f"/api/v1/runs/{unknown}").status_code == 404, unknown


def test_ambiguous_prefix_of_a_run_key_is_explained(published: str, tmp_path: Path) -> None:
    own = shutil.copy(published, tmp_path / "results.db")
    with sqlite3.connect(own) as database:
        database.execute("UPDATE results SET run_key = '0000000' || substr(run_key, 8) WHERE id < 3")
    with open_results(str(own))() as session, pytest.raises(UnknownRun, match="several runs"):
        full_run_key(session, "0" * 7)


def test_claim_without_a_verdict_shows_its_results(published_client: TestClient) -> None:
    shown = published_client.get("/api/v1/claims?verdict=shown").json()
    assert {"dac.fig3", "dac.sgemm.depth_weak"} <= {claim["id"] for claim in shown}
    for claim in shown:
        html = published_client.get(f"/claims/{claim['id']}").text
        assert drawings(html), claim["id"]
        assert re.search(r"The (best of \d+ )?(baseline|proposed) models?: ", html), claim["id"]
        assert "<dd>–</dd>" not in html, claim["id"]


def test_claim_about_sizes_is_drawn_over_sizes_with_the_papers_line(published_client: TestClient) -> None:
    (figure,) = drawings(published_client.get("/claims/dac.sgemm.crossover_low").text)
    found = read_drawing(figure)
    assert [number for number, _ in found.x] == [3e3, 1e4, 3e4, 1e5, 3e5] and len(found.points) > 20
    (at,) = re.findall(r'class="of-paper printed" x1="([\d.]+)%"', figure)
    assert read(float(at), found.x) == pytest.approx(1e4, rel=0.02)


def test_cost_tables_have_only_measured_columns_and_unique_labels(published_client: TestClient) -> None:
    html = published_client.get("/?dataset=sgemm").text
    table = html[html.index('aria-label="Cost of ') :].partition("</table>")[0]
    assert "Training time" in table and "FLOP" not in table and "Paper’s ratio" not in table and "–" not in table
    for dataset in ("cifar10", "mnist"):
        regions = re.findall(r'role="region" aria-label="([^"]+)"', published_client.get(f"/?dataset={dataset}").text)
        assert len(set(regions)) == len(regions) > 1


def test_long_grid_starts_with_one_distinguishable_pair(published_client: TestClient) -> None:
    html = published_client.get("/experiments/dac-sgemm").text
    chosen = re.findall(r'name="arm" value="([^"]+)" checked', html)
    proposed = [name for name in chosen if name.startswith("dac-")]
    assert len(chosen) == 2 and proposed == [f"dac-{name}" for name in chosen if name not in proposed]
    assert re.search(r"2 of \d\d models are drawn; choose others", html)
    assert '<option value="15" selected>' in html, "hundreds of epochs are noisy"
    assert '<option value="1" selected>' in published_client.get("/experiments/dac-sgemm?smooth=1").text


def test_papers_page_has_contents_experiments_and_all_deviations(published_client: TestClient) -> None:
    html = published_client.get("/papers/ninformer").text
    contents = html[html.index('aria-label="On this page"') :].partition("</nav>")[0]
    places = re.findall(r'<a href="#([^"]+)">', contents)
    assert len(places) > 5 and all(f'id="{place}"' in html for place in places)
    assert html.index(">Table 2</h2>") < html.index(">Figure 3</h2>") < html.index(">Section 4</h2>")
    assert html.index(">Section 4</h2>") < html.index('id="settings"') < html.index('id="deviations"')
    for dataset in ("mnist", "cifar10", "cifar100"):
        assert f'<th scope="col" class="number"><a href="/experiments/ninformer-{dataset}">' in html
    departures = html[html.index('id="deviations"') :]
    claims = published_client.get("/api/v1/claims?paper=ninformer&limit=1000").json()
    named = {
        row["subject"]
        for claim in claims
        for row in published_client.get(f"/api/v1/claims/{claim['id']}").json()["deviations"]
    }
    assert named and all(f"<summary>{prose(upper_first(subject))}</summary>" in departures for subject in named)
    assert 'id="deviations"' not in published_client.get("/papers/ninformer?verdict=contradicted").text


def test_percent_signs_occur_only_on_fractions(published_client: TestClient) -> None:
    """For a data set of each kind in every metric: comparison tables and leaderboards."""
    seen = set()
    for dataset, kind in (("mnist", "images"), ("sgemm", "table"), ("openwebtext", "text")):
        for metric in SHOWN_METRICS[kind]:
            info = METRICS[metric]
            address = f"/?dataset={dataset}&metric={metric}"
            pages = [published_client.get(address).text]
            if info.split is not None:
                pages.append(published_client.get(f"/leaderboard?dataset={dataset}&metric={metric}").text)
            cells = [
                cell
                for html in pages
                for cell in re.findall(rf'(?s)data-label="(?:Ours|Paper|{re.escape(info.title)})">(.*?)</td>', html)
                if re.search(r"\d", text_of(cell)) and "pp" not in text_of(cell)
            ]
            for cell in cells:
                assert ("%" in text_of(cell)) == (info.unit == "fraction"), f"{address}: {text_of(cell)}"
                seen.add(info.unit)
    assert {"fraction", "nats", "seconds"} <= seen


def test_claims_have_percent_signs_only_if_their_unit_has(
    claims: list[dict[str, Any]], claim_pages: dict[str, str]
) -> None:
    seen = set()
    for claim in claims:
        html = claim_pages[f"/claims/{claim['id']}"]
        for _, value in re.findall(
            r"<dt>(The paper says|we find|we compute|we count|we set|from its other numbers)</dt><dd>(.*?)</dd>", html
        ):
            is_share = claim["unit"] in ("fraction",) or (claim["unit"] or "").startswith("relative")
            assert "%" not in value or is_share, f"{claim['id']}: {value}"
            seen.add((is_share, "%" in value))
    assert {(True, True), (False, False)} <= seen


def test_finished_runs_are_never_called_diverged(
    published_client: TestClient, claims: list[dict[str, Any]], claim_pages: dict[str, str]
) -> None:
    """A claim about how trainings end has no value per run, and none of its runs diverged."""
    ended = {run["run_key"]: run["status"] for run in published_client.get("/api/v1/runs?limit=1000").json()}
    seen = set()
    for claim in claims:
        for key, row in re.findall(
            r'(?s)<tr><th scope="row"><a href="/runs/(\w+)">(.*?)</tr>', claim_pages[f"/claims/{claim['id']}"]
        ):
            assert ("diverged" in row) == (ended[key] == "diverged"), f"{claim['id']}: {key}"
            seen |= {claim["kind"]}
    assert {"failures", "difference"} <= seen


def test_pages_use_one_term_per_concept_as_the_method_page_defines_it(
    published_client: TestClient, claim_pages: dict[str, str]
) -> None:
    """Except past changes, in their original words, and code."""
    other_words = re.compile(r"\b(arms?|stand-ins?|too short runs|smoke|embedded|lottery)\b")
    pages = (
        claim_pages
        | {f"/papers/{row['name']}": "" for row in published_client.get("/api/v1/papers").json()}
        | {"/": ""}
    )
    for address, known in pages.items():
        html = (known or published_client.get(address).text).partition('id="changes-title"')[0]
        found = other_words.findall(text_of(re.sub("(?s)<code>.*?</code>", "", html)))
        assert not found, f"{address}: {found}"
    glossary = set(re.findall(r"<tr>\s*<td>([^<]+)</td>", published_client.get("/method").text))
    wanted = {"claim", "model", "run, replicate", "reading", "interim analysis", "size open", "environment", "digest"}
    assert wanted | {"sensitivity", "calibration error"} <= glossary


def test_every_claim_is_a_complete_review_for_search_engines(claim_pages: dict[str, str]) -> None:
    """Required by schema.org's ClaimReview: url, claimReviewed, reviewRating and author."""
    kinds = set()
    for address, html in claim_pages.items():
        (written,) = re.findall(r'(?s)<script type="application/ld\+json">(.*?)</script>', html)
        review = json.loads(written)
        kinds.add(review["@type"])
        assert review["@context"] == "https://schema.org" and review["url"].endswith(address), address
        claim = review["itemReviewed"] if review["@type"] == "ClaimReview" else review
        assert claim["@type"] == "Claim" and claim["name"], address
        assert claim["appearance"]["@type"] == "ScholarlyArticle" and claim["appearance"]["name"], address
        if review["@type"] == "Claim":
            continue
        rating = review["reviewRating"]
        assert review["claimReviewed"] and review["author"] == {"@type": "Organization", "name": "Claimcheck"}, address
        assert rating["@type"] == "Rating" and rating["alternateName"], address
        assert rating["worstRating"] <= rating["ratingValue"] <= rating["bestRating"], address
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", review["datePublished"]), address
    assert kinds == {"Claim", "ClaimReview"}


def test_every_file_linked_from_a_page_can_be_opened(published_client: TestClient, claim_pages: dict[str, str]) -> None:
    papers = [f"/papers/{paper['name']}" for paper in published_client.get("/api/v1/papers").json()]
    pages = claim_pages | {
        address: published_client.get(address).text for address in ("/", "/method", "/claims", *papers)
    }
    pointed: set[str] = set()
    for address, html in pages.items():
        pointed |= set(re.findall(r'href="(/files/[^"]+)"', html))
        assert " in the repository" not in re.sub(r"(?s)<pre.*?</pre>", "", html), address
    assert {"/files/CITATION.cff", "/files/NOTICE", "/files/params.yaml"} <= pointed
    assert "/files/docs/decisions.md#0008" in pointed
    for address in pointed:
        assert published_client.get(address).status_code == 200, address


def test_page_and_api_agree_on_deciding_margins(claims: list[dict[str, Any]], claim_pages: dict[str, str]) -> None:
    """Including the verdict on a gain's size."""
    flips = {
        claim["id"]: stretches
        for claim in claims
        if (stretches := claim["verdict"]["by_margin"] or (claim["verdict"]["size"] or {}).get("by_margin"))
    }
    assert flips
    for name, stretches in flips.items():
        html = claim_pages[f"/claims/{name}"]
        (sentence,) = re.findall(r'<p class="note">((?:Its size, by|By) margin: [^<]*)</p>', html)
        assert sentence.partition(": ")[2].count(", ") == len(stretches) - 1, name
        assert html.count('<rect class="in-use"') == 1, name
