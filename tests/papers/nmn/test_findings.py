"""Findings of the paper's analysis, and docs/papers/nmn.md compared with them and the code."""

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from stages.evaluation.cost import count_parameters, flops_per_sample
from stages.papers.finding import Finding
from stages.papers.nmn import (
    AetherGPT,
    AetherResNet18,
    PostNormGPT,
    PrintedAetherResNet18,
    ResNet18,
    YatGPT,
)
from stages.papers.nmn import findings as module
from stages.papers.nmn.findings import (
    BFLOAT16,
    FLOAT32,
    PRINTED_IMPROVEMENT,
    PRINTED_RATIO,
    PRINTED_SAVING,
    count_operations,
    findings,
    kept_bytes,
    saved_bytes,
)
from stages.papers.nmn.gpt import GPT2
from stages.params.experiment import load_params
from tests.project import MARGINS

PAGE = Path(__file__).parents[3] / "docs" / "papers" / "nmn.md"


def test_layer_stores_more_than_relu_unless_everything_is_recomputed(found: dict[str, Finding]) -> None:
    kept = found["nmn.memory.activations"].computed
    assert kept["yat_saved_maps_of_Bn"] > kept["linear_relu_saved_maps_of_Bn"] == 1
    assert kept["recomputed_yat_saved_maps_of_Bn"] == 0
    saved = [reading.ours for reading in found["nmn.layer.memory"].readings]
    assert saved == [1 - 3 / 2, 1 - 3 / 3, 1 - 3 / 4]


def test_opposite_of_a_key_scores_a_quarter_of_its_squared_norm(found: dict[str, Finding]) -> None:
    computed = found["nmn.theory.aligned"].computed
    assert computed["response_to_the_opposite"] == pytest.approx(computed["quarter_of_the_squared_norm"], rel=1e-6)
    assert computed["response_to_an_orthogonal"] < 1e-12


def test_squared_norms_of_hidden_layers_are_not_known_in_advance(found: dict[str, Finding]) -> None:
    computed = found["nmn.precomputed"].computed
    assert computed["change_of_hidden_norms_between_batches"] > 0.01 > computed["share_of_squared_norms"]


def test_work_with_reuse_is_one_product_and_lower_terms(found: dict[str, Finding]) -> None:
    """2Bnd + 2nd + 2Bd + 7Bn at B, d, n = 4096, 768, 3072: the scale is in 7, the bias in the product."""
    B, d, n = 4096, 768, 3072
    by_hand = (2 * B * n * d + 2 * n * d + 2 * B * d + 7 * B * n) / (B * n * d)
    computed = found["nmn.flops.nmn"].computed
    assert computed["one_product_flops_per_Bnd"] == pytest.approx(by_hand, rel=1e-4)
    assert computed["two_products_flops_per_Bnd"] == pytest.approx(by_hand + 2, abs=0.01)
    assert computed["differences_flops_per_Bnd"] == pytest.approx(5, abs=0.01)


def test_three_ways_to_count_compute_the_same_layer() -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(5, 7, generator=generator, dtype=torch.float64) for _ in range(2))
    b = torch.randn(5, generator=generator, dtype=torch.float64)
    one, two, differences = (form(x, w, b) for form in module.FORMS.values())
    torch.testing.assert_close(one, differences)
    torch.testing.assert_close(two, differences)


def test_float32_distance_of_equal_vectors_errs_by_more_than_epsilon(found: dict[str, Finding]) -> None:
    computed = found["nmn.identity.distance"].computed
    assert computed["largest_error_float32_where_w_is_x"] > 1e-5
    assert 0.1 < computed["negative_share_float32_where_w_is_x"] < 0.6
    assert [reading.holds for reading in found["nmn.epsilon"].readings] == [True, False]


def test_responses_level_off_although_a_gaussian_vanishes(found: dict[str, Finding]) -> None:
    """Along the kernel itself it is (t / (t − 1))² of (w·u)² at t norms."""
    computed = found["nmn.theory.decay"].computed
    assert computed["own_direction_10_times"] == pytest.approx((10 / 9) ** 2, rel=1e-4)
    assert computed["own_direction_1e6_times"] == pytest.approx(1, abs=1e-5)
    assert computed["any_direction_10_times"] == pytest.approx(0.99, abs=0.01)
    assert computed["any_direction_1e6_times"] == pytest.approx(1, abs=1e-5)
    assert computed["gaussian_10_times"] < 1e-15


def test_three_units_of_one_weight_make_a_radial_unit(found: dict[str, Finding]) -> None:
    """((d + 1)² + (d − 1)²) / 2 − d² is 1, so the three add up to 1 over the distance."""
    computed = found["nmn.theory.uat"].computed
    assert computed["largest_relative_error_of_three_units_to_the_radial_one"] < 1e-12
    assert (
        computed["largest_error_with_128_units_and_readout"] < 0.05 < computed["largest_error_with_8_units_and_readout"]
    )
    assert computed["least_output"] >= 0
    assert computed["least_output_of_linear_and_relu"] >= 0, "the layer that it replaces isn't better alone"


@pytest.mark.parametrize(
    ("unit", "find", "status"),
    [
        (lambda x, w, *_: 1 / ((w - x).square().sum(-1, keepdim=True) + 1e-5), module.far_response, "holds"),
        (lambda x, w, *_: (x @ w.T).square(), module.far_response, "fails"),
        (lambda x, w, b, *_: (x @ w.T + b).square(), module.universal_approximation, "fails"),
    ],
    ids=["falls with the distance", "grows with the distance", "no readout can bend it"],
)
def test_another_unit_changes_the_finding(
    unit: Callable[..., Tensor], find: Callable[[], Finding], status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "yat_linear_reference", unit)
    assert find().status == status


def test_statuses_depend_on_the_printed_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A printed number that no way of counting gives must fail."""
    monkeypatch.setattr(module, "PRINTED_WORK", (3, 1))
    monkeypatch.setattr(module, "PRINTED_RATIO", (4, 1))
    monkeypatch.setattr(module, "PRINTED_SAVING", (0.3, 0.4))
    monkeypatch.setattr(module, "PRINTED_IMPROVEMENT", (0.113, 0.001))
    changed = {finding.claim: finding.status for finding in findings(MARGINS)}
    assert [changed[f"nmn.{name}"] for name in ("flops.nmn", "flops.ratio", "gpt.memory")] == ["fails"] * 3
    assert changed["nmn.gpt.valloss.rel"] == "fails"


def test_margin_of_the_rules_is_applied_to_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """4.01 Bnd against a printed 4.20: 5 % of it is 0.21."""
    monkeypatch.setattr(module, "PRINTED_WORK", (4.2, 0.01))
    assert module.yat_work(MARGINS).status == "holds under a reading"
    monkeypatch.setattr(module, "PRINTED_WORK", (4.3, 0.01))
    assert module.yat_work(MARGINS).status == "fails"


def test_memory_is_saved_as_printed_in_bf16_but_not_in_one_precision(found: dict[str, Finding]) -> None:
    finding = found["nmn.gpt.memory"]
    assert finding.computed["reduction"] < 0
    assert finding.computed["reduction_with_ideal_kernels"] == 1 - 14 / 16
    assert finding.computed["reduction_with_ideal_kernels_bf16"] == finding.ours == pytest.approx(1 - 28 / 36)
    assert [reading.holds for reading in finding.readings] == [False, False, True]
    assert finding.computed["yat_saved_maps_of_Bn"] > finding.computed["linear_relu_saved_maps_of_Bn"] == 1


@pytest.mark.parametrize(("mixed", "bytes_of_products"), [(False, FLOAT32), (True, BFLOAT16)])
def test_gpt2_block_stores_the_counted_bytes(mixed: bool, bytes_of_products: int) -> None:
    """Measured with autograd and autocast, plus 24 bytes per token for statistics of LayerNorms and attention."""
    width = 128

    def kept(depth: int, length: int) -> int:
        model = GPT2(vocabulary_size=9, context=256, width=width, depth=depth, num_heads=2, dropout=0.0)
        tokens = torch.zeros(1, length, dtype=torch.int64)
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION), torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            return saved_bytes(model, tokens)

    of_one_block = kept(3, 256) - kept(3, 128) - (kept(2, 256) - kept(2, 128))
    assert of_one_block == 128 * (width * kept_bytes("gpt2", bytes_of_products) + 24)


def test_operations_equal_hand_counts() -> None:
    x, w = torch.zeros(3, 5, device="meta"), torch.zeros(7, 5, device="meta")
    assert count_operations(lambda: x @ w.T) == 2 * 3 * 5 * 7
    assert count_operations(lambda: (x * x + 1).sum()) == 15 + 15 + 15
    assert count_operations(lambda: x.relu().reshape(5, 3).clamp(min=0)) == 30


def test_saved_bytes_count_each_activation_once() -> None:
    x = torch.zeros(4, 6)
    assert saved_bytes(nn.Sequential(nn.Linear(6, 8), nn.ReLU()), x) == 4 * 6 * 4 + 4 * 8 * 4
    leaf = torch.zeros(4, 6, requires_grad=True)
    assert saved_bytes(lambda t: t * t, leaf) == 0, "leaves with a gradient exist anyway"
    assert saved_bytes(lambda t: t.exp() * t, leaf) == 4 * 6 * 4


def test_page_states_every_status(found: dict[str, Finding]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for claim, finding in found.items():
        assert f"| `{claim}` | {finding.status} |" in page
    computed = found["nmn.flops.nmn"].computed
    for form in ("one_product", "two_products", "differences"):
        assert f"{computed[f'{form}_flops_per_Bnd']:.2f} Bnd" in page
    memory = found["nmn.gpt.memory"].computed
    assert f"{memory['aether_saved_bytes'] / memory['gpt2_saved_bytes']:.2f} times" in page
    for precision in ("", "_bf16"):
        assert f"{memory[f'reduction_with_ideal_kernels{precision}']:.1%}".replace("%", " %") in page


def test_findings_refer_to_claims_in_the_claims_file(found: dict[str, Finding]) -> None:
    """Numbers in the code equal those in the claims file."""
    with (PAGE.parents[2] / "data" / "claims.csv").open(newline="") as file:
        rows = {row["id"]: row for row in csv.DictReader(file) if row["paper"] == "nmn"}
    assert set(found) <= set(rows)
    for claim, printed in (("nmn.flops.ratio", PRINTED_RATIO), ("nmn.gpt.valloss.rel", PRINTED_IMPROVEMENT)):
        assert (float(rows[claim]["value"]), float(rows[claim]["precision"])) == printed
    assert (float(rows["nmn.gpt.memory"]["value"]), float(rows["nmn.gpt.memory"]["high"])) == PRINTED_SAVING


DOCS = Path(__file__).parents[3] / "docs"
TEXT = (DOCS / "papers" / "nmn.md").read_text(encoding="utf-8")
SIZES: dict[str, dict[str, Any]] = {
    "small": {"vocabulary_size": 50257, "context": 1024, "width": 768, "depth": 12, "num_heads": 12},
    "corpus": {"vocabulary_size": 4096, "context": 256, "width": 256, "depth": 6, "num_heads": 8},
}


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_table_of_image_models_equals_the_code() -> None:
    rows = re.findall(r"^\| (\w+) \| (\w+) \| (\d+) \| ([\d,]+) \| ([\d,]+) \|$", TEXT, flags=re.MULTILINE)
    shown = {(dataset, model): (int(size), number(n), number(f)) for dataset, model, size, n, f in rows}
    computed = {}
    params = load_params(DOCS.parent)
    trained = [one.dataset for one in params.experiments.values() if one.name.startswith("nmn-resnet-")]
    for dataset in trained:
        size, classes = params.datasets[dataset].shape[1], params.datasets[dataset].classes
        shape = {"image_size": size, "in_channels": 3, "num_classes": classes, "width": 64}
        with torch.device("meta"):
            models = [
                ResNet18(**shape),
                PrintedAetherResNet18(**shape, features=256, epsilon=0.007),
                AetherResNet18(**shape, features=256, scale="guide", epsilon=0.007),
            ]
            for model in models:
                cost = (size, count_parameters(model), flops_per_sample(model, (3, size, size)))
                computed[dataset, type(model).__name__] = cost
    assert shown == computed


def test_table_of_language_models_equals_the_code() -> None:
    rows = re.findall(r"^\| (\w+)(?:, attention (\w+))? \| (small|corpus) \| ([\d,]+) \|", TEXT, flags=re.MULTILINE)
    shown = {(model, attention, size): number(n) for model, attention, size, n in rows}
    computed = {}
    yat = {"scale": "guide", "epsilon": 0.1}
    for size, keywords in SIZES.items():
        keywords = keywords | {"dropout": 0.0}
        with torch.device("meta"):
            models: dict[tuple[str, str], nn.Module] = {
                ("GPT2", ""): GPT2(**keywords),
                ("AetherGPT", "yat"): AetherGPT(**keywords, **yat, attention="yat"),
                ("AetherGPT", "dot"): AetherGPT(**keywords, **yat, attention="dot"),
                ("YatGPT", ""): YatGPT(**keywords, **yat),
                ("PostNormGPT", ""): PostNormGPT(**keywords),
            }
        computed |= {(*name, size): count_parameters(model) for name, model in models.items()}
    assert shown == computed
