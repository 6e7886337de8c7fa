"""What the paper's analysis finds, and that its two counters count."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from torch import nn

from stages.finding import Finding
from stages.papers.nmn import findings as module
from stages.papers.nmn.counting import count_operations, saved_bytes
from stages.papers.nmn.findings import PRINTED_IMPROVEMENT, PRINTED_RATIO, PRINTED_SAVING, findings
from tests.project import MARGINS

PAGE = Path(__file__).parents[3] / "docs" / "papers" / "nmn.md"
STATUS = {
    "nmn.flops.linear": "holds",
    "nmn.flops.nmn": "contradicted",
    "nmn.flops.ratio": "contradicted",
    "nmn.complexity": "holds",
    "nmn.identity.distance": "holds",
    "nmn.theory.decay": "fails",
    "nmn.gpt.memory": "fails",
    "nmn.usage.dense": "holds",
    "nmn.usage.conv": "holds",
    "nmn.gpt.valloss.rel": "holds",
    "nmn.theory.uat": "fails",
    "nmn.ext.xor": "holds",
}


@pytest.fixture(scope="module")
def found() -> dict[str, Finding]:
    return {finding.claim: finding for finding in findings(MARGINS)}


def test_findings_say_what_was_found(found: dict[str, Finding]) -> None:
    assert {claim: finding.status for claim, finding in found.items()} == STATUS


def test_findings_are_the_same_on_every_call(found: dict[str, Finding]) -> None:
    assert {finding.claim: finding for finding in findings(MARGINS)} == found


def test_work_with_reuse_is_one_product_and_lower_terms(found: dict[str, Finding]) -> None:
    """2Bnd + 2nd + 2Bd + 9Bn at B, d, n = 4096, 768, 3072, bias and scale included in 9."""
    B, d, n = 4096, 768, 3072
    by_hand = (2 * B * n * d + 2 * n * d + 2 * B * d + 9 * B * n) / (B * n * d)
    assert found["nmn.flops.nmn"].computed["reused_flops_per_Bnd"] == pytest.approx(by_hand, rel=1e-4)
    assert found["nmn.flops.nmn"].computed["explicit_differences_flops_per_Bnd"] == pytest.approx(5, abs=0.01)


def test_float32_distance_errs_by_more_than_epsilon_where_a_unit_meets_its_input(found: dict[str, Finding]) -> None:
    computed = found["nmn.identity.distance"].computed
    assert computed["largest_error_float32_where_w_is_x"] > 1e-5
    assert 0.1 < computed["negative_share_float32_where_w_is_x"] < 0.6


def test_responses_level_off_where_a_gaussian_vanishes(found: dict[str, Finding]) -> None:
    """Along the kernel itself it is (t / (t − 1))² of (w·u)² at t norms."""
    computed = found["nmn.theory.decay"].computed
    assert computed["own_direction_10_times"] == pytest.approx((10 / 9) ** 2, rel=1e-4)
    assert computed["own_direction_1e6_times"] == pytest.approx(1, abs=1e-5)
    assert computed["any_direction_10_times"] == pytest.approx(0.99, abs=0.01)
    assert computed["any_direction_1e6_times"] == pytest.approx(1, abs=1e-5)
    assert computed["gaussian_10_times"] < 1e-15


def test_a_unit_whose_answer_falls_with_the_distance_would_decay(monkeypatch: pytest.MonkeyPatch) -> None:
    def falling(x: torch.Tensor, w: torch.Tensor, *_: object) -> torch.Tensor:
        return 1 / (w - x).square().sum(-1, keepdim=True)

    monkeypatch.setattr(module, "yat_linear_reference", falling)
    assert module.far_response().status == "holds"


def test_statuses_follow_the_print(monkeypatch: pytest.MonkeyPatch) -> None:
    """Had the guide printed what is counted, or another saving, nothing would be contradicted."""
    monkeypatch.setattr(module, "PRINTED_WORK", (2, 1))
    monkeypatch.setattr(module, "PRINTED_RATIO", (1, 1))
    monkeypatch.setattr(module, "PRINTED_SAVING", (0.1, 0.15))
    monkeypatch.setattr(module, "PRINTED_IMPROVEMENT", (0.113, 0.001))
    changed = {finding.claim: finding.status for finding in findings(MARGINS)}
    assert [changed[f"nmn.{name}"] for name in ("flops.nmn", "flops.ratio", "gpt.memory")] == ["holds"] * 3
    assert changed["nmn.gpt.valloss.rel"] == "fails"


def test_even_ideal_kernels_save_less_memory_than_claimed(found: dict[str, Finding]) -> None:
    computed = found["nmn.gpt.memory"].computed
    assert computed["reduction"] < 0
    assert computed["reduction_with_ideal_kernels"] == 0.125
    assert computed["yat_saved_maps_of_Bn"] > computed["linear_relu_saved_maps_of_Bn"] == 1


def test_operations_are_counted_as_by_hand() -> None:
    x, w = torch.zeros(3, 5, device="meta"), torch.zeros(7, 5, device="meta")
    assert count_operations(lambda: x @ w.T) == 2 * 3 * 5 * 7
    assert count_operations(lambda: (x * x + 1).sum()) == 15 + 15 + 15
    assert count_operations(lambda: x.relu().reshape(5, 3).clamp(min=0)) == 30


def test_saved_bytes_are_those_of_activations_and_each_counts_once() -> None:
    x = torch.zeros(4, 6)
    assert saved_bytes(nn.Sequential(nn.Linear(6, 8), nn.ReLU()), x) == 4 * 6 * 4 + 4 * 8 * 4
    leaf = torch.zeros(4, 6, requires_grad=True)
    assert saved_bytes(lambda t: t * t, leaf) == 0, "leaves with a gradient are there anyway"
    assert saved_bytes(lambda t: t.exp() * t, leaf) == 4 * 6 * 4


def test_page_states_every_status(found: dict[str, Finding]) -> None:
    page = PAGE.read_text()
    for claim, finding in found.items():
        assert f"| `{claim}` | {finding.status} |" in page
    computed = found["nmn.flops.nmn"].computed
    assert f"{computed['reused_flops_per_Bnd']:.2f} Bnd" in page
    assert f"{computed['explicit_differences_flops_per_Bnd']:.2f} Bnd" in page
    memory = found["nmn.gpt.memory"].computed
    assert f"{memory['aether_saved_bytes'] / memory['gpt2_saved_bytes']:.2f} times" in page
    assert f"{memory['reduction_with_ideal_kernels']:.1%}".replace("%", " %") in page


def test_claims_of_the_paper_that_were_copied_bear_these_names(found: dict[str, Finding]) -> None:
    """Where the claims file has this paper's rows, each finding is of one of them."""
    with (PAGE.parents[2] / "data" / "claims.csv").open(newline="") as file:
        rows = {row["id"]: row for row in csv.DictReader(file) if row["paper"] == "nmn"}
    assert set(found) <= set(rows)
    for claim, printed in (("nmn.flops.ratio", PRINTED_RATIO), ("nmn.gpt.valloss.rel", PRINTED_IMPROVEMENT)):
        assert (float(rows[claim]["value"]), float(rows[claim]["precision"])) == printed
    assert (float(rows["nmn.gpt.memory"]["value"]), float(rows["nmn.gpt.memory"]["high"])) == PRINTED_SAVING
