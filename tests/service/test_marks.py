"""Every verdict by training is marked confirmatory or exploratory on all pages and in all answers."""

import json
import re
from collections.abc import Mapping
from html import unescape
from typing import Any

import pytest
from fastapi.testclient import TestClient

from stages.recording.reporting import verdict_table
from stages.results import ClaimFilter, list_judged, open_results

Verdicts = Mapping[str, Mapping[str, Any]]


@pytest.fixture(scope="module")
def verdicts(published_client: TestClient) -> Verdicts:
    return {claim["id"]: claim["verdict"] for claim in published_client.get("/api/v1/claims?limit=1000").json()}


def test_only_verdicts_by_training_have_a_mark(verdicts: Verdicts) -> None:
    trained = {
        name
        for name, verdict in verdicts.items()
        if verdict["basis"] == "results" and verdict["status"] not in ("not tested", "shown")
    }
    assert {name for name, verdict in verdicts.items() if verdict["registration"]} == trained
    assert {f"dac.sgemm.{name}" for name in ("gain", "uniform", "depth", "crossover_low", "crossover_high")} <= trained


def test_mark_is_shown_with_each_verdict_on_every_page(
    published_client: TestClient, published: str, verdicts: Verdicts
) -> None:
    marks = {name: verdict["registration"]["mark"] for name, verdict in verdicts.items() if verdict["registration"]}
    pages = ["/", "/?dataset=sgemm", "/claims", "/method", "/papers/dac", "/experiments/dac-sgemm"]
    pages += [f"/claims?q={name}" for name in marks]
    seen = set()
    for address in pages:
        html = unescape(published_client.get(address, headers={"accept": "text/html"}).text)
        for item in re.findall(r"(?s)<(?:li|tr)\b(?:(?!<(?:li|tr)\b).)*?</(?:li|tr)>", html):
            linked = set(re.findall(r'href="/claims/([^"?]+)"', item)) & verdicts.keys()
            if not linked or 'class="badge verdict' not in item:
                continue
            shown = re.findall(r'class="mark"[^>]*>([^<]+)<', item)
            assert sorted(shown) == sorted(marks[name] for name in linked if name in marks), f"{address}: {item}"
            seen |= linked & marks.keys()
    assert seen == marks.keys(), "each mark is on some of these pages"
    for name, mark in marks.items():
        html, badge = (published_client.get(f"/claims/{name}{more}").text for more in ("", "/badge.svg"))
        assert re.search(rf'class="stamp">.*?class="mark"[^>]*>{mark}<', html) and f", {mark}" in badge
        for script in re.findall(r'(?s)<script type="application/ld\+json">(.*?)</script>', html):
            review = json.loads(script)
            assert review["@type"] != "ClaimReview" or mark in review["reviewRating"]["alternateName"]
    for comparison in published_client.get("/compare").json()["comparisons"]:
        for verdict in (verdict for arm in comparison["arms"] for verdict in arm["verdicts"]):
            assert verdict["mark"] == marks.get(verdict["claim"], "")
    with open_results(published)() as session:
        table = verdict_table("dac", list_judged(session, ClaimFilter(paper="dac")), [])
    for line in table.splitlines():
        name = line.split("`")[1] if "`" in line else ""
        assert (f"({marks[name]}) |" in line) if name in marks else ("exploratory" not in line), line
