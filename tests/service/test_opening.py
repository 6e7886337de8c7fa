"""The front page answers each paper's question, and counts nothing as plainly true that depends on a reading."""

import re
from html import unescape
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.pages.opening import answer
from stages.results import Claim, JudgedClaim, VerdictRow


def judged(name: str, status: str, **about: Any) -> JudgedClaim:
    claim = Claim(id=name, kind="order", experiment="e", metric="accuracy", **about)
    verdict = VerdictRow(status=status, basis="results", is_decidable=True)
    return JudgedClaim(claim=claim, verdict=verdict, experiments=("e",), datasets=("mnist",))


@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        (["supported", "holds"], "Yes."),
        (["reversed"], "No."),
        (["supported", "fails"], "In part: 1 of 2 claims hold."),
        (["holds under a reading"] * 2, "It depends on the reading, as 2 of 2 claims do."),
        (["unresolved"], "Open."),
        (["supported", "not tested"], "Yes so far: of 2 claims, 1 holds and 1 is not tested."),
        (
            ["supported", "not tested", "not tested"],
            "Not known yet: of 3 claims, 1 holds and 2 are not tested; short runs agree.",
        ),
        (["not tested"], "Not known yet: 0 of 2 models trained in full; short runs agree."),
        (["reversed", "not tested"], "No so far: of 2 claims, 1 fails and 1 is not tested."),
        (["supported", "inconclusive"], "In part: of 2 claims, 1 holds and 1 is open."),
    ],
)
def test_question_is_answered_by_the_words_of_its_claims(statuses: list[str], said: str) -> None:
    arms = [
        SimpleNamespace(arm=name, run_keys=("key",), ours=SimpleNamespace(value=ours))
        for name, ours in (("a", 0.9), ("b", 0.8))
    ]
    short: Any = SimpleNamespace(
        experiment="e", is_real=True, cut="3 of 100 epochs", arms=arms, metric=SimpleNamespace(better="higher")
    )
    rows = [judged(str(n), status, arm="a", baseline_arm="b") for n, status in enumerate(statuses)]
    assert answer(rows, {"e": short}) == said


def test_front_page_counts_equal_the_databases(published_client: TestClient) -> None:
    html = unescape(published_client.get("/").text)
    papers = published_client.get("/api/v1/verdicts").json()["papers"]
    cards = re.findall(
        r'<a class="([\w ]+)" href="/claims\?verdict=[\w%]+"><strong><span aria-hidden="true">.</span> (\d+)', html
    )
    numbers = {word: int(number) for word, number in cards}
    assert numbers == {
        "holds": sum(paper["plainly"] for paper in papers),
        "fails": sum(paper["opposed"] for paper in papers),
        "open": sum(paper["open"] + paper["under_reading"] for paper in papers),
        "not tested": sum(paper["waiting"] for paper in papers),
    }
    read, left = (sum(paper[name] for paper in papers) for name in ("under_reading", "open"))
    assert f"open: {left} not decided by the runs, {read} that depend on how the text is read." in html
    claims = published_client.get("/api/v1/claims?limit=1000").json()
    late = [claim for claim in claims if (claim["verdict"]["registration"] or {}).get("mark") == "exploratory"]
    assert f"Of the verdicts by training, {len(late)} are exploratory" in html and html.count("exploratory") == 1


def test_every_number_in_the_picture_is_its_claims(computed_client: TestClient) -> None:
    html = unescape(computed_client.get("/").text)
    claims = {claim["id"]: claim for claim in computed_client.get("/api/v1/claims?limit=1000").json()}
    drawn = re.findall(r'<a href="/claims/([^"]+)" class="(\w+)"><title>([^<]+)</title>', html)
    words = {"for": "holds", "against": "fails", "open": "open", "waiting": "not tested"}
    assert len(drawn) > 8
    for name, side, title in drawn:
        assert claims[name]["verdict"]["word"] == words[side] and title.endswith(words[side])
        assert claims[name]["verdict"]["ours"] and claims[name]["value"]
    many = sum(int(number) for number in re.findall(r"<title>(\d+) numbers, as ", html))
    groups = len(re.findall(r"<title>\d+ numbers, as ", html))
    numbers = [
        claim
        for claim in claims.values()
        if claim["value"] and claim["verdict"]["ours"] and claim["verdict"]["basis"] in ("results", "finding")
    ]
    assert len(drawn) - groups + many == len(numbers), "no number is missing"
    fails = [claim for claim in numbers if claim["verdict"]["word"] == "fails"]
    assert fails and len(re.findall(r'class="cross"', html)) == len(fails)


def test_waiting_claims_are_sorted_by_what_their_plan_can_show(published_client: TestClient) -> None:
    """Recomputed from each claim's power."""
    claims = published_client.get("/api/v1/claims?limit=1000").json()
    for paper in published_client.get("/api/v1/verdicts").json()["papers"]:
        outlook = paper["outlook"]
        waiting = [
            claim["verdict"]["power"]
            for claim in claims
            if claim["paper"] == paper["paper"] and claim["verdict"]["is_decidable"]
            if claim["verdict"]["status"] == "not tested" and (claim["experiment"] or claim["family"])
        ]
        assert outlook["waiting"] == paper["trained"]["waiting"] == len(waiting)
        orders = [power for power in waiting if power and power["supported"] is not None]
        values = [power for power in waiting if power and power["supported"] is None]
        lost = [power for power in values if not power["can_reproduce"] or lacks(power)]
        assert outlook["hopeless"] == len(lost) + sum(power["supported"] < 0.05 for power in orders)
        sure = [power for power in orders if power["supported"] >= 0.05]
        assert outlook["order_only"] == sum(not power["can_reproduce"] or lacks(power) for power in sure)


def lacks(power: dict[str, Any]) -> bool:
    """Return True if the plan confirms a correct number with a probability of less than 5 %."""
    return power["reproduced"] is not None and power["reproduced"] < 0.05
