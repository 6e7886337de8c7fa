"""Of a claim's changes those come first that touched what is judged or how; the others are counted."""

import re
from collections.abc import Mapping
from html import unescape
from typing import Any

from fastapi.testclient import TestClient

from service.pages.concluding import sort_changes
from stages.results import ClaimChange


def change(why: str, subject: str = "claim", *, alters: bool = True, day: int = 1, **changed: Any) -> ClaimChange:
    return ClaimChange(subject=subject, changed=changed, alters=alters, date=f"2026-11-{day:02}", why=why)


def test_what_touched_the_claim_s_own_row_or_rule_is_apart() -> None:
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


def test_a_claim_s_page_folds_what_altered_nothing(published_client: TestClient) -> None:
    told: list[Mapping[str, Any]] = published_client.get("/api/v1/claims/dac.sgemm.gain").json()["changes"]
    html = unescape(published_client.get("/claims/dac.sgemm.gain").text)
    section = html[html.index('id="changes-title"') : html.index('id="cite-title"')]
    first, _, folded = section.partition("<details>")
    of_many = [item["why"] for item in told if item["part"] in ("code", "rules")]
    assert of_many and all(why in folded and why not in first for why in of_many)
    assert re.search(r"\b\d+ more changes: rules or code that concern many claims", folded)
    rules = [item for item in told if item["part"] == "rule"]
    assert rules and all(f"after {item['seen']} of its results had been seen" in first for item in rules)
