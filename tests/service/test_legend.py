"""Every verdict word is explained once, and the front page says in a sentence what is so."""

from __future__ import annotations

import re

from fastapi.testclient import TestClient

from service.pages.legend import MEANINGS, SIDES, add_up, address_of, by_ground, sum_up
from service.pages.wording import side_of
from stages.results import Counts, Paper, Status, Tally


def test_every_word_is_explained_once_and_stands_on_its_side() -> None:
    listed = [status for statuses in SIDES.values() for status in statuses]
    assert sorted(listed) == sorted(Status) and len(set(listed)) == len(listed)
    assert set(MEANINGS) == set(Status) and len(set(MEANINGS.values())) == len(MEANINGS)
    for side, name in (("For the paper", "for"), ("Against it", "against"), ("Open", "open"), ("Waiting", "waiting")):
        assert {side_of(status) for status in SIDES[side]} == {name}


def test_the_method_s_page_explains_every_word(client: TestClient) -> None:
    html = client.get("/method").text
    for status in Status:
        assert f">{status}</span>" in html and MEANINGS[status] in html


def tally(claims: int, trained: Counts, computed: Counts, *, read: int = 0, unconfirmable: int = 0) -> Tally:
    none = Counts(decidable=0, in_favour=0, against=0, open=0, waiting=0)
    names = vars(none)
    whole = {name: getattr(trained, name) + getattr(computed, name) for name in names}
    bases = {"finding": {str(Status.HOLDS_UNDER_READING): read}}
    parts = {"trained": trained, "computed": computed, "data": none}
    return Tally(paper="p", claims=claims, **whole, **parts, by_basis=bases, unconfirmable=unconfirmable)


def test_the_paragraph_begins_with_trainings_and_says_where_they_decided_and_what_the_others_wait_for() -> None:
    trained = Counts(decidable=7, in_favour=1, against=2, open=1, waiting=3)
    computed = Counts(decidable=4, in_favour=4, against=0, open=0, waiting=0)
    found = [tally(12, trained, computed, unconfirmable=2)]
    assert sum_up(found, ["SGEMM"]) == (
        "Training the models again has decided 3 claims, all on SGEMM: 1 holds, 2 do not; "
        "3 wait for models trained as long as the paper’s. Computing without training has decided 4: all hold."
    )
    assert add_up(found) == (
        "For 1 claim the evidence is not enough yet. "
        "Of those that wait, the planned runs can’t confirm 2, even where the paper is right. "
        "In all the paper makes 12 claims; 1 is a setting, repeats an error or can’t be tested here."
    )
    waiting = Counts(decidable=1, in_favour=0, against=0, open=0, waiting=1)
    against = Counts(decidable=2, in_favour=0, against=2, open=0, waiting=0)
    assert sum_up([tally(3, waiting, against)] * 2) == (
        "Training the models again has decided no claim yet; 2 wait for models trained as long as the paper’s. "
        "Computing without training has decided 4: 4 do not hold."
    )
    assert add_up([tally(3, waiting, against)] * 2) == "In all the 2 papers make 6 claims."
    none = Counts(decidable=0, in_favour=0, against=0, open=0, waiting=0)
    assert sum_up([tally(1, none, waiting)]) == (
        "Computing without training has decided no claim yet; "
        "1 waits to be computed, which make repro does without training a model."
    )


def test_what_holds_in_one_reading_alone_is_counted_beside_what_holds() -> None:
    none = Counts(decidable=0, in_favour=0, against=0, open=0, waiting=0)
    computed = Counts(decidable=4, in_favour=4, against=0, open=0, waiting=0)
    grounds = by_ground([tally(4, none, computed, read=3)] * 2)
    assert [ground.read for ground in grounds] == [0, 6, 0]


def test_the_front_page_counts_what_the_api_counts(client: TestClient) -> None:
    papers = client.get("/api/v1/verdicts").json()["papers"]
    html = client.get("/").text
    claims, waiting = (sum(paper[name] for paper in papers) for name in ("claims", "waiting"))
    assert re.search(rf"the (paper makes|\d papers make) {claims} claims;", html)
    assert re.search(rf"\b{waiting} waits? for models trained as long", html)


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
    assert "with most of the words of “mnist time zebra”" in client.get("/claims?q=mnist+time+zebra").text
    vit = found("/claims?q=vit+mnist")
    names = [row for row in vit if row.startswith("ninformer.")]
    assert "vit" in names[0] and len(vit) > len(names[:1]), "whose own name has both words"
    nothing = client.get("/claims", params={"q": "<b>zebra"})
    assert "Nothing matches" in nothing.text and "<b>zebra" not in nothing.text
    assert client.get("/claims?verdict=maybe").status_code == 422


def test_a_paper_is_linked_to_where_its_title_says_it_is() -> None:
    with_number = Paper(name="dac", title="Increasing biases (Metta et al. 2024, arXiv 2301.00924v3)")
    assert address_of(with_number) == "https://arxiv.org/abs/2301.00924v3"
    assert address_of(Paper(name="x", title="A paper of 2021")) is None
