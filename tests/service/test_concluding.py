"""A claim's conclusion: the part of the grid it covers, what is open and why, and when its rule was written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from html import unescape
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.pages.concluding import (
    Trend,
    conclude,
    describe_other_reading,
    describe_trend,
    qualify,
    range_of,
    sort_changes,
)
from service.pages.wording import A_PART, part_of
from stages.recording.reporting import results_page
from stages.results import Claim, ClaimChange, ClaimRecord, PairGain, VerdictRow
from stages.verdicts import Scope

TITLES = {"a-5": "NiNformer, 5 layers", "a-8": "NiNformer, 8 layers", "b": "ViT"}
GRID = {"id": "x", "metric": "selected_log_mse", "arm": "a-*", "baseline_arm": "b-*", "unit": "nats", "value": 0.25}
NUMBERS = {"estimate": 0.223, "low": 0.206, "high": 0.239}
PART = vars(Scope(pairs=14, planned_pairs=35, factor="depth", ran=(5, 8), missing=(6, 11, 16)))


def record(claim: Claim, status: str = "unresolved", changes: tuple[ClaimChange, ...] = (), **own: Any) -> ClaimRecord:
    verdict = VerdictRow(claim="x", status=status, basis="results", confidence=0.967, **own)
    none: dict[str, Any] = dict.fromkeys(("runs", "arms", "pairs", "deviations", "same_error"), ())
    places: dict[str, Any] = {"experiments": (), "datasets": (), "family": None, "changes": changes}
    return ClaimRecord(claim=claim, verdict=verdict, **places, **none)


def test_conclusion_states_direction_and_size() -> None:
    titles = {"a": "NiNformer", "b": "ViT"}
    order = Claim(id="x", kind="order", metric="accuracy", unit="fraction", arm="a", baseline_arm="b")
    assert conclude(record(order, estimate=-0.0123, low=-0.03, high=0.01), titles) == (
        "NiNformer is worse than ViT by 1.23 pp (96.7 % interval −3.00 to 1.00 pp)."
    )
    value = Claim(id="x", kind="value", metric="accuracy", unit="fraction", value=0.9712, arm="a")
    assert conclude(record(value, estimate=-0.001, low=-0.006, high=0.004, ours=0.9702), titles) == (
        "We find 97.02 %, 0.10 pp below the paper’s 97.12 % (difference: 96.7 % interval −0.60 to +0.40 pp)."
    )
    assert conclude(record(value), titles) is None, "nothing was measured"
    by_width = Claim(id="x", kind="uniform", metric="selected_log_mse", value=0.25, unit="nats", factor="width")
    assert conclude(record(by_width, estimate=0.18179, low=0.0989, high=0.3158, margin=0.0625), titles) == (
        "The largest and the smallest gain by width differ by 0.18 nats (96.7 % interval 0.10 to 0.32 nats); "
        "up to 0.0625 nats would count as alike."
    )


def test_conclusion_lists_only_the_compared_sizes() -> None:
    high = Claim(kind="ahead_from", **{**GRID, "value": 1e5, "unit": "parameters"})
    few = vars(Scope(pairs=2, models=29, planned_models=111))
    found = replace(record(high, "supported", scope=few, **NUMBERS), sizes=(143_801, 163_984))
    said = conclude(found, TITLES)
    assert said is not None and said.startswith(
        "From 100,000 parameters on, compared at 144,000 and 164,000 parameters,"
    )
    assert part_of(found) == "at 144,000 and 164,000 parameters"
    assert qualify(found)[0] == "82 of the 111 models were not trained; the verdict doesn’t cover other sizes."
    whole = vars(Scope(pairs=2))
    assert part_of(replace(record(high, "supported", scope=whole, **NUMBERS), sizes=(1, 2))) == ""
    many = replace(found, sizes=tuple(range(1000, 8000, 1000)))
    assert part_of(many) == "at 7 sizes from 1,000 to 7,000 parameters"
    grid = Claim(kind="difference", **GRID)
    assert part_of(record(grid, scope=vars(Scope(pairs=3, planned_pairs=9)), **NUMBERS)) == "3 of 9 pairs"
    assert part_of(record(grid, scope=vars(Scope(pairs=9, planned_pairs=9)), **NUMBERS)) == ""


def test_trend_is_stated_only_if_significant() -> None:
    widths = {18: 0.156, 25: 0.127, 35: 0.178, 50: 0.206, 71: 0.275, 100: 0.309, 141: 0.307}
    alike = Claim(kind="uniform", factor="width", **GRID)
    grows = trend_of(widths)
    assert grows.p_value == pytest.approx(2 * (1 + 6 + 20) / 5040), "two of the 21 pairs of widths are reversed"
    assert grows.rises is True
    assert describe_trend(grows, alike).startswith("The gain grows with width")
    falls = trend_of(dict(zip(widths, [-gain for gain in widths.values()], strict=True)))
    assert falls.rises is False and describe_trend(falls, alike).startswith("The gain falls with width")
    wavers = trend_of(dict(zip(widths, (0.2, 0.3, 0.1, 0.4, 0.2, 0.3, 0.15), strict=True)))
    assert wavers.rises is None and describe_trend(wavers, alike) == ""
    assert trend_of({5: 0.1, 8: 0.2}).rises is None, "two levels show no trend"
    assert range_of(grows, alike) == "0.127 to 0.309 nats"
    assert "all 7 trained pairs agree" in describe_other_reading(grows)


def trend_of(gains: dict[int, float]) -> Trend:
    near = {"experiment": "e", "against": "b", "n": 5}
    pairs = tuple(
        (level, PairGain(arm=f"a-{level}", value=gain, low=gain - 0.05, high=gain + 0.05, **near))
        for level, gain in gains.items()
    )
    return Trend(factor="width", gains=dict(gains), pairs=pairs)


def test_claim_page_opens_with_the_result_for_the_part_that_ran(published_client: TestClient) -> None:
    html = published_client.get("/claims/dac.sgemm.gain").text
    box = unescape(html[html.index('<div class="fidelity') :].partition("</div>")[0])
    verdict = published_client.get("/api/v1/claims/dac.sgemm.gain").json()["verdict"]
    scope = verdict["scope"]
    assert (scope["ran"], scope["missing"]) == ([18, 25, 35], [50, 71, 100, 141])
    assert (scope["pairs"], scope["planned_pairs"]) == (15, 35)
    sentence = re.search(r"<strong>(.*?)</strong>", box)
    assert sentence is not None
    assert re.fullmatch(
        r"At 18, 25 and 35 units DAC is better than its baseline by 0\.19\d* nats "
        r"\(99\.98 % interval 0\.1\d* to 0\.2\d* nats; 15 of 35 pairs\)\.",
        sentence[1],
    )
    limits = re.findall(r"<li>(.*?)</li>", box)
    assert limits[0].endswith("units are not all trained and may differ by any amount, so the whole grid isn’t judged.")
    assert limits[1].startswith("Whether it is as large as the paper’s 0.25 nats is open: 20 of 35 pairs")
    assert limits[2] == f"So “holds” applies only at 18, 25 and 35 units: {A_PART}."
    assert re.search(r"squared error, last epoch”: under that metric it is open .*8 pairs", limits[3])
    assert "We trained both models again" in box and verdict["explanation"] not in box.partition("<summary>")[0]


def test_pages_mark_every_rule_written_after_results(published_client: TestClient, published: str) -> None:
    claims = published_client.get("/api/v1/claims?limit=1000").json()
    later = {claim["id"]: claim for claim in claims if claim["verdict"]["seen_before_rule"] is not None}
    assert {"dac.sgemm.uniform", "dac.sgemm.crossover_low", "dac.sgemm.crossover_high"} <= set(later)
    method = unescape(published_client.get("/method").text)
    for name, claim in later.items():
        seen, what = claim["verdict"]["seen_before_rule"], "pair" if claim["baseline_arm"] else "result"
        sentence = f"Judged by a rule written after {seen} {what}{'' if seen == 1 else 's'} had been seen"
        box = unescape(published_client.get(f"/claims/{name}").text).partition('<dl class="tiles">')[0]
        assert sentence in box and "beforehand" not in box, name
        assert re.search(rf'{sentence}: <a href="/claims/{name}">', method), name
    assert "beforehand" not in method
    results = results_page(published)
    rows = dict(re.findall(r"(?m)^\| `([^`]+)` \|(.*)$", results))
    assert {name for name, row in rows.items() if "Judged by a rule written after" in row} == set(later)


def change(why: str, subject: str = "claim", *, alters: bool = True, day: int = 1, **changed: Any) -> ClaimChange:
    return ClaimChange(subject=subject, changed=changed, alters=alters, date=f"2026-11-{day:02}", why=why)


def test_changes_of_the_claims_own_row_or_rule_are_separate() -> None:
    touching, others = sort_changes(
        [
            change("names", "code", alters=False),
            change("a rule's line", "rule", day=3),
            change("margins", "rules", day=2),
            change("judged otherwise", "code", day=4),
            change("the metric", metric=("mse", "log_mse")),
            change("spaces", statement=("softmax(x+c)", "softmax(x + c)")),
            change("a remark", note=(None, "read off"), place=("Figure 8", "Figure 8, caption")),
            change("both", note=("a", "b"), statement=("falls", "rises"), day=5),
            change("it was listed"),
        ]
    )
    assert [item.why for item in touching] == ["the metric", "a rule's line", "both"]
    assert [item.why for item in others] == ["names", "spaces", "a remark", "margins", "judged otherwise"]


def test_claim_page_folds_changes_without_effect(published_client: TestClient) -> None:
    changes: list[Mapping[str, Any]] = published_client.get("/api/v1/claims/dac.sgemm.gain").json()["changes"]
    html = unescape(published_client.get("/claims/dac.sgemm.gain").text)
    section = html[html.index('id="changes-title"') : html.index('id="cite-title"')]
    first, _, folded = section.partition("<details>")
    of_many = [item["why"] for item in changes if item["part"] in ("code", "rules")]
    assert of_many and all(why in folded and why not in first for why in of_many)
    assert re.search(r"\b\d+ more changes: rules or code that concern many claims", folded)
    rules = [item for item in changes if item["part"] == "rule"]
    assert rules and all(f"after {item['seen']} of its results had been seen" in first for item in rules)
