"""A claim's page says what its verdict would be by other margins, as a strip and as a sentence."""

import re
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.pages.opening import tell_discoveries
from service.pages.planning import WIDTH, plan_in_words, strip_of, tell_chance_of_truth
from stages.results import Claim, Discoveries, JudgedClaim, VerdictRow
from tests.service.test_opening import tally

STRETCHES = [
    {"start": 0.0, "status": "not reproduced"},
    {"start": 0.004, "status": "inconclusive"},
    {"start": 0.016, "status": "reproduced"},
]


def judged(kind: str = "value", **verdict: Any) -> JudgedClaim:
    claim = Claim(id="x", kind=kind, unit="fraction", metric="accuracy", factor="width" if kind == "uniform" else None)
    return JudgedClaim(claim=claim, verdict=VerdictRow(**verdict), experiments=(), datasets=())


def test_the_strip_is_an_axis_of_margins_with_the_one_in_use() -> None:
    strip = strip_of(judged(by_margin=STRETCHES, margin=0.01))
    assert strip is not None
    assert [(part.status, part.side, part.label) for part in strip.parts] == [
        ("fails", "against", ""),
        ("open", "open", "0.40 pp"),
        ("holds", "for", "1.60 pp"),
    ]
    assert [part.x for part in strip.parts] == pytest.approx([0, WIDTH / 5, WIDTH * 4 / 5])
    assert strip.parts[-1].x + strip.parts[-1].width == WIDTH and strip.at == WIDTH / 2


def test_the_sentence_says_every_flip_in_the_unit_of_the_claim() -> None:
    strip = strip_of(judged(by_margin=STRETCHES, margin=0.01))
    assert strip is not None and strip.sentence == (
        "By margin: fails below 0.40 pp, open from 0.40 pp to 1.60 pp, holds from 1.60 pp on. "
        "The margin in use is 1.00 pp."
    )


def test_a_gain_s_strip_is_of_its_size() -> None:
    size = {"by_margin": STRETCHES, "margin": 0.01, "posterior": 0.541}
    order = judged("order", by_margin=[], size=size, posterior=0.9995)
    strip = strip_of(order)
    assert strip is not None and strip.sentence.startswith("Its size, by margin: fails below 0.40 pp")
    assert tell_chance_of_truth(order) == (
        "By our replicates and a flat prior, the chance that the truth is on the claimed side is more than 99.9 % and "
        "that the gain is as large as printed, within the margin, is 54 %. This decides nothing."
    )


def test_without_flips_there_is_no_strip_and_without_a_chance_no_sentence() -> None:
    assert strip_of(judged(by_margin=[], margin=0.01)) is None and strip_of(judged()) is None
    assert tell_chance_of_truth(judged()) == ""


def test_labels_that_would_touch_are_left_to_the_sentence() -> None:
    near = [*STRETCHES[:2], {"start": 0.005, "status": "reproduced"}]
    strip = strip_of(judged(by_margin=near, margin=0.05))
    assert strip is not None and [part.label for part in strip.parts] == ["", "0.40 pp", ""]
    assert "holds from 0.50 pp on" in strip.sentence


def test_a_paper_says_how_many_decided_signs_survive() -> None:
    found = Discoveries(tested=7, decided=5, survive=4, without=1)
    assert tell_discoveries(tally(discoveries=found)) == (
        "Training tested the sign of a gain in 7 claims and decided 5; 4 of these survive a false discovery rate of "
        "5 % over all tested claims. 1 other claim is decided without such a test."
    )
    assert tell_discoveries(tally()) == ""


def test_the_power_at_half_the_gain_follows_that_at_the_printed_one() -> None:
    names = ("supported", "reproduced", "not_reproduced", "needed", "needed_for_size", "margin", "paper_error", "most")
    power = {**dict.fromkeys(names), "planned": 5, "can_reproduce": True, "source": "printed"}
    claim = Claim(id="x", kind="order", metric="accuracy", unit="fraction", value=0.02, arm="a", baseline_arm="b")
    told = plan_in_words(claim, VerdictRow(power={**power, "supported": 0.9, "supported_at_half": 0.34}))
    assert told is not None and told[1][0] == "If the gain is half as large, that chance is 34 %."


def test_the_page_and_the_api_say_the_same_flips(published_client: TestClient) -> None:
    """Of every claim of the database whose verdict, or whose gain's size, another margin would change."""
    client, flips = published_client, {}
    for claim in client.get("/api/v1/claims?limit=1000").json():
        verdict = claim["verdict"]
        if stretches := verdict["by_margin"] or (verdict["size"] or {}).get("by_margin"):
            flips[claim["id"]] = stretches
    assert flips
    for name, stretches in flips.items():
        html = client.get(f"/claims/{name}").text
        (sentence,) = re.findall(r'<p class="note">((?:Its size, by|By) margin: [^<]*)</p>', html)
        assert sentence.partition(": ")[2].count(", ") == len(stretches) - 1, name
        assert html.count('<rect class="in-use"') == 1, name
