"""The front page begins with what training decided, and counts nothing as plainly true that holds in one way only."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.pages.opening import MOST_NAMED, open_with, outcome, prospects
from stages.results import AGAINST_THE_PAPER, Claim, Counts, Discoveries, JudgedClaim, Outlook, Tally, VerdictRow
from stages.verdicts import Scope

NOTHING = Counts(decidable=0, in_favour=0, under_reading=0, against=0, open=0, waiting=0)
UNTESTED = Discoveries(tested=0, decided=0, survive=0, without=0)
ALL_CLEAR = Outlook(waiting=0, hopeless=0, order_only=0, unlikely=0, unknown=0, assumed=0)


def counts(**numbers: int) -> Counts:
    found = {**vars(NOTHING), **numbers}
    return Counts(**{**found, "decidable": sum(found[name] for name in ("in_favour", "against", "open", "waiting"))})


def tally(trained: Counts = NOTHING, computed: Counts = NOTHING, data: Counts = NOTHING, **others: Any) -> Tally:
    whole = {name: sum(getattr(part, name) for part in (trained, computed, data)) for name in vars(NOTHING)}
    rest = {
        "claims": whole["decidable"],
        "settings": 0,
        "untestable": 0,
        "outlook": ALL_CLEAR,
        "discoveries": UNTESTED,
        **others,
    }
    return Tally(paper="p", **whole, trained=trained, computed=computed, data=data, **rest)


def by_training(name: str, status: str, metric: str, size: str | None = None) -> JudgedClaim:
    claim = Claim(id=name, kind="difference", experiment="e", metric=metric)
    verdict = VerdictRow(status=status, basis="results", size={"status": size} if size else None)
    return JudgedClaim(claim=claim, verdict=verdict, experiments=("e",), datasets=("sgemm",))


def test_what_needs_training_comes_first_with_how_much_is_decided_and_on_which_data() -> None:
    decided = [by_training("a", "supported", "log_mse", "inconclusive"), by_training("b", "not reproduced", "log_mse")]
    whole = tally(counts(in_favour=1, against=1, open=1, waiting=3), counts(in_favour=4, under_reading=1, against=1))
    opening = open_with([whole], decided, {"sgemm": "SGEMM"})
    assert opening.first == (
        "Of the 6 claims that need trained models, 2 are decided, all on SGEMM: "
        "1 holds (its size is still open) and 1 does not hold. "
        "No accuracy and no error rate is among them."
    )
    assert opening.whole == (
        "A machine-learning paper makes 11 claims. "
        "Decided so far: 2 by training the models again and 5 by computing; 4 still need training."
    )
    assert opening.waiting == (
        "1 more is open: their runs don't decide between the answers. 3 wait for models trained as long as the paper’s."
    )
    assert opening.then == (
        "Computing, without training, has decided 5: 3 hold, 1 holds only if its words are read in one way "
        "and 1 does not hold. In all the paper makes 11 claims."
    )
    assert [row.claim.id for row in opening.named] == ["b", "a"], "what doesn't hold stands first"
    assert "No accuracy" not in open_with([whole], [by_training("a", "reversed", "accuracy")], {"sgemm": "S"}).first


def test_nothing_decided_is_said_first() -> None:
    opening = open_with([tally(counts(waiting=2), data=counts(in_favour=5))], [], {})
    assert "Decided so far: none by training the models again and 5 by counting in the data; 2 " in opening.whole
    assert opening.first == "None of the 2 claims that need trained models is decided yet."
    assert opening.waiting == "2 wait for models trained as long as the paper’s."
    assert opening.then.startswith("Counting in the data has decided 5: 5 hold. ")
    assert open_with([tally(computed=counts(waiting=1))], [], {}).then.startswith("1 waits to be computed, which make")


def test_the_other_claims_are_told_apart() -> None:
    whole = tally(computed=counts(in_favour=1), claims=10, settings=4, untestable=2)
    assert open_with([whole], [], {}).then.endswith(
        "In all the paper makes 10 claims; of the others 4 are settings of a training, 3 repeat an error "
        "and 2 can’t be tested here."
    )


def test_the_outcome_counts_what_holds_in_one_way_apart() -> None:
    assert outcome(counts(in_favour=3, under_reading=3)) == "3 hold only if their words are read in one way"
    assert outcome(counts(in_favour=2, against=1)) == "2 hold and 1 does not hold"
    assert outcome(counts(in_favour=3), open_sizes=1) == "3 hold (the size of 1 of them is still open)"
    assert outcome(counts(in_favour=4), open_sizes=1, wrong_sizes=2) == (
        "4 hold (the size of 1 of them is still open and the size of 2 of them is not as printed)"
    )


def test_what_the_plans_can_not_confirm_is_said() -> None:
    assert prospects(ALL_CLEAR) == ""
    assert prospects(Outlook(waiting=9, hopeless=2, order_only=3, unlikely=1, unknown=3, assumed=0)) == (
        "Of the waiting claims the planned runs will hardly confirm 2 (a chance below 5 %), have less than an even "
        "chance with 1 and can confirm the order alone, not the size, of 3, even if the paper is right and our set-up "
        "is the paper’s."
    )
    guessed = prospects(Outlook(waiting=9, hopeless=2, order_only=0, unlikely=0, unknown=3, assumed=5))
    assert guessed.endswith(" For 5 this rests on an assumed spread of the runs, not a known one.")


def test_what_limits_the_decided_ones_is_said_with_them() -> None:
    part, later = (by_training(name, "supported", "log_mse") for name in "ab")
    part.verdict.scope = vars(Scope(pairs=2, models=29, planned_models=111))
    part.verdict.registration = later.verdict.registration = {"mark": "exploratory"}
    whole = tally(counts(in_favour=2))
    first = open_with([whole], [part, later], {"sgemm": "SGEMM"}).first
    assert " 1 of these rests on part of a grid (29 of its 111 models)." in first
    assert " All 2 rest on rules not known to be registered before training (exploratory)." in first
    alone = open_with([tally(counts(in_favour=1))], [part], {"sgemm": "SGEMM"}).first
    assert " It rests on part of a grid (29 of its 111 models) and on rules not known to be registered" in alone
    free = open_with([tally(counts(in_favour=1))], [by_training("c", "supported", "log_mse")], {"sgemm": "S"}).first
    assert "rest" not in free


@pytest.fixture(scope="module")
def client(published_client: TestClient) -> TestClient:
    return published_client


def test_the_front_page_s_sentences_are_the_verdicts_of_the_database(client: TestClient) -> None:
    html = unescape(client.get("/").text)
    claims = client.get("/api/v1/claims?limit=1000").json()
    papers = client.get("/api/v1/verdicts").json()["papers"]
    whole, lead = re.findall(r'(?s)<p class="lead">(.*?)</p>\s*<p>(.*?)</p>', html)[0]
    assert whole.startswith(f"{len(papers)} machine-learning papers make {len(claims)} claims. Decided so far: ")
    needed, favour, against, waiting = (
        sum(paper["trained"][name] for paper in papers) for name in ("decidable", "in_favour", "opposed", "waiting")
    )
    open_ones = sum(paper["trained"]["open"] for paper in papers)
    assert f" {favour + against} by training the models again, " in whole
    assert whole.endswith(f"; {waiting + open_ones} still need training.")
    assert lead.startswith(f"Of the {needed} claims that need trained models, {favour + against} are decided")
    named = re.findall(r'href="/claims/([^"]+)"', html[: html.index('id="papers-title"')])
    by_id = {claim["id"]: claim["verdict"] for claim in claims}
    for name in named:
        scope, (badge,) = by_id[name]["scope"], re.findall(rf'<li>(.*?)<a href="/claims/{re.escape(name)}"', html)[:1]
        assert scope is None or 'class="size part">at ' in badge, f"{name} is of a part and doesn't say which"
    trained = [
        claim["id"]
        for claim in claims
        if claim["verdict"]["basis"] == "results" and claim["verdict"]["is_decidable"] and claim["verdict"]["low"]
        if claim["verdict"]["status"] not in ("inconclusive", "unresolved", "undecidable at this margin")
    ]
    assert (
        len(trained) == favour + against and set(named) <= set(trained) and len(named) == min(MOST_NAMED, len(trained))
    )
    sides = [by_id[name]["status"] in AGAINST_THE_PAPER for name in named]
    assert sides == sorted(sides, reverse=True) and sum(sides) == min(MOST_NAMED, against), "those against come first"
    (rest,) = re.findall(r'<li>and <a href="/claims">(\d+) more</a>', html)
    assert int(rest) == len(trained) - len(named) > 0
    exploratory = [name for name in trained if by_id[name]["registration"]["mark"] == "exploratory"]
    assert len(exploratory) == len(trained), "else the next sentence is another"
    assert re.search(rf"All {len(trained)} rest on rules not known to be registered", lead)
    assert f"{waiting} wait for models trained as long as the paper’s." in html
    is_read = [claim["verdict"]["status"] == "holds under a reading" for claim in claims]
    grounds = ("trained", "computed", "data")
    assert sum(is_read) == sum(paper[ground]["under_reading"] for paper in papers for ground in grounds) > 0
    for ground in ("computed", "data"):
        plain, read = (sum(paper[ground][name] for paper in papers) for name in ("in_favour", "under_reading"))
        assert not plain or f": {plain - read} hold" in html, "what holds in one way only is none of them"
        assert not read or re.search(rf"\b{read} holds? only if (its|their) words are read in one way", html)


def test_waiting_claims_are_sorted_by_what_their_plan_can_show(client: TestClient) -> None:
    """Told again from the power of each claim."""
    claims = client.get("/api/v1/claims?limit=1000").json()
    for paper in client.get("/api/v1/verdicts").json()["papers"]:
        told = paper["outlook"]
        waiting = [
            claim["verdict"]["power"]
            for claim in claims
            if claim["paper"] == paper["paper"] and claim["verdict"]["is_decidable"]
            if claim["verdict"]["status"] == "not tested" and (claim["experiment"] or claim["family"])
        ]
        assert told["waiting"] == paper["trained"]["waiting"] == len(waiting)
        orders = [power for power in waiting if power and power["supported"] is not None]
        values = [power for power in waiting if power and power["supported"] is None]
        lost = [power for power in values if not power["can_reproduce"] or lacks(power)]
        assert told["hopeless"] == len(lost) + sum(power["supported"] < 0.05 for power in orders)
        sure = [power for power in orders if power["supported"] >= 0.05]
        assert told["order_only"] == sum(not power["can_reproduce"] or lacks(power) for power in sure)


def lacks(power: dict[str, Any]) -> bool:
    """True if the plan confirms the number in less than 5 % of the cases in which it is right."""
    return power["reproduced"] is not None and power["reproduced"] < 0.05
