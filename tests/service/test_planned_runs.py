"""What the planned runs can show is said conclusion first, in the claim's own units."""

import re
from html import unescape
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.pages.planning import plan_in_words
from stages.results import Claim, VerdictRow

VALUE = {"kind": "value", "metric": "accuracy", "unit": "fraction", "value": 0.75, "arm": "a"}
GAIN = {**VALUE, "kind": "order", "baseline_arm": "b"}


def tell(claim: dict[str, Any], **power: Any) -> str | None:
    names = ("supported", "reproduced", "not_reproduced", "needed", "needed_for_size", "margin", "paper_error", "most")
    names += ("supported_at_half",)
    whole = {**dict.fromkeys(names), "planned": 5, "can_reproduce": True, "source": "printed", **power}
    told = plan_in_words(Claim(id="x", **claim), VerdictRow(power=whole))
    return None if told is None else " ".join([told[0], *told[1]])


def test_a_number_s_chance_comes_first_and_then_what_more_runs_would_bring() -> None:
    chances = {"reproduced": 0.57, "not_reproduced": 0.67, "most": 0.66, "margin": 0.01, "paper_error": 0.0034}
    assert tell(VALUE, **chances) == (
        "If the paper is right and our set-up is the paper’s, the 5 planned runs will confirm its number with a "
        "chance of 57 %. "
        "More runs would raise that to 66 % at most, since the paper’s own number, assumed to be of one run, "
        "is itself uncertain by 0.34 pp. The margin is ± 1.00 pp. "
        "If the truth is two margins away from the paper’s number, the runs refute it with a chance of 67 %."
    )
    needed = tell(VALUE, **{**chances, "needed": 9})
    assert needed is not None and "A chance of 80 % takes 9 runs." in needed and "at most" not in needed


def test_a_number_that_no_plan_confirms_is_said_to_be_one() -> None:
    lost = {"reproduced": 0.001, "not_reproduced": 0.05, "margin": 0.0024, "paper_error": 0.0049, "most": 0.002}
    assert tell({**VALUE, "n": 3}, can_reproduce=False, **lost) == (
        "No number of runs can confirm this number. "
        "The paper’s own number, of 3 runs, is itself uncertain by 0.49 pp, and the margin is 0.24 pp. "
        "If the truth is two margins away from the paper’s number, the runs refute it with a chance of 5 %."
    )


@pytest.mark.parametrize("claim", [VALUE, GAIN, {**GAIN, "kind": "equivalence"}, {**GAIN, "kind": "uniform"}])
def test_a_chance_by_an_assumed_spread_says_so_and_is_never_near_certainty(claim: dict[str, Any]) -> None:
    sure = {"reproduced": 0.9999, "not_reproduced": 0.9999, "margin": 0.3, "most": 1.0, "paper_error": 0.001}
    if claim is not VALUE and claim["kind"] != "uniform":
        sure |= {"supported": 0.9999}
    guessed, known = tell(claim, source="assumed", **sure), tell(claim, source="measured", **sure)
    assert guessed is not None and known is not None
    assert "more than 95 %, if runs scatter as we assume." in guessed and "99 %" not in guessed
    assert "more than 99 %." in known and "assume" not in known
    close = tell(claim, source="assumed", **{name: value and 0.97 for name, value in sure.items() if name != "margin"})
    assert close is not None and "more than 95 %, if runs scatter" in close and "97 %" not in close


def test_no_page_tells_a_chance_by_an_assumed_spread_without_saying_so(published_client: TestClient) -> None:
    claims = published_client.get("/api/v1/claims?limit=1000").json()
    powers = {claim["id"]: claim["verdict"]["power"] for claim in claims if claim["verdict"]["power"]}
    told = 0
    for name, power in powers.items():
        html = unescape(published_client.get(f"/claims/{name}").text)
        section = html[html.index('id="power-title"') :].partition("</section>")[0]
        bold = re.findall(r"(?s)<strong>(.*?)</strong>", section)
        if not bold or "with a chance of" not in bold[0]:
            continue
        told += 1
        assert " and our set-up is the paper’s, " in bold[0], name
        assert ("if runs scatter as we assume" in bold[0]) == (power["spread_source"] == "assumed"), name
        assert power["spread_source"] != "assumed" or "99 %" not in section.partition("<details>")[0], name
    assert told > 100


def test_an_order_is_told_apart_from_its_size() -> None:
    assert tell(GAIN, can_reproduce=False, supported=0.17, needed=23, margin=0.001, not_reproduced=0.03) == (
        "If the gain is as printed and our set-up is the paper’s, the 5 planned runs of each model will confirm which "
        "model is better with a chance of 17 %. A chance of 80 % takes 23 runs. "
        "No number of runs can confirm its size. "
        "It is no larger than the margin of 0.10 pp, so a gain of zero would also count as this gain. "
        "If the truth is two margins away from the paper’s number, the runs refute it with a chance of 3 %."
    )
    ratio = tell({**GAIN, "value": 0.02}, supported=0.9, reproduced=0.9, margin=0.01)
    assert ratio is not None and "± 1.00 pp, half of the paper’s number: ours may be 50 % to 150 % of it." in ratio
    size = tell(GAIN, supported=0.999, reproduced=0.44, most=0.53, margin=0.0134, paper_error=0.005)
    assert size is not None and "a chance of more than 99 %. They confirm its size with a chance of 44 %." in size


@pytest.mark.parametrize(
    ("kind", "power", "told"),
    [
        (
            "equivalence",
            {"supported": 0.56, "needed": 10},
            "If the models are alike and our set-up is the paper’s, the 5 planned runs of each model",
        ),
        ("failures", {"supported": 0.39}, "will confirm which model fails less often with a chance of 39 %."),
        (
            "uniform",
            {"reproduced": 0.69},
            "If the gains are alike and our set-up is the paper’s, the 5 planned runs of each model will confirm it",
        ),
    ],
)
def test_other_kinds_say_what_would_be_confirmed(kind: str, power: dict[str, Any], told: str) -> None:
    factor = "width" if kind == "uniform" else None
    assert told in (tell({**GAIN, "kind": kind, "factor": factor}, **power) or "")


def test_where_no_spread_is_known_no_chance_is_told() -> None:
    assert tell({**VALUE, "kind": "observed"}) is None
    assert plan_in_words(Claim(id="x", **VALUE), VerdictRow(power=None)) is None
