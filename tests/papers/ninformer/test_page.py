"""docs/papers/ninformer.md and data/claims.csv against the code and the params files."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from torch import nn

from stages.evaluation.cost import count_parameters, flops_per_sample
from stages.papers.ninformer.findings import compute_finding, elementwise_finding
from stages.params.experiment import Params

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "papers" / "ninformer.md").read_text()


@pytest.fixture(scope="module")
def claims() -> list[dict[str, str]]:
    with (ROOT / "data" / "claims.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if row["paper"] == "ninformer" and row["kind"] == "value"]


def test_table_of_sizes_is_what_the_code_gives(
    params: Params, printed_models: dict[tuple[str, str], nn.Module]
) -> None:
    rows = re.findall(r"^\| (\w+) \| ([\w-]+) \| ([\d,]+) \| ([\d,]+) \|$", PAGE, flags=re.MULTILINE)
    shown = {(dataset, arm): (int(n.replace(",", "")), int(f.replace(",", ""))) for dataset, arm, n, f in rows}
    assert len(shown) == 12, "four arms on three data sets"
    computed = {
        place: (count_parameters(model), flops_per_sample(model, params.datasets[place[0]].shape))
        for place, model in printed_models.items()
        if place in shown
    }
    assert shown == computed


def test_table_of_variants_is_what_the_code_gives(meta_models: dict[str, dict[str, nn.Module]]) -> None:
    rows = re.findall(r"^\| `(\w+)` \| .+? \| (.+) \|$", PAGE, flags=re.MULTILINE)
    shown = {name: [int(cell.replace(",", "")) for cell in cells.split(" | ")] for name, cells in rows}
    computed = {
        name: [count_parameters(model) for model in models.values()]
        + [flops_per_sample(models["cifar10"], (3, 32, 32))]
        for name, models in meta_models.items()
    }
    assert shown == {name: computed[name] for name in shown}
    assert len(shown) == 4


def test_every_cell_of_both_tables_is_a_claim(claims: list[dict[str, str]]) -> None:
    cells = {(c["place"], c["experiment"], c["arm"]) for c in claims}
    arms = ("vit", "mlp-mixer", "local-vit", "ninformer")
    experiments = ("ninformer-mnist", "ninformer-cifar10", "ninformer-cifar100")
    assert cells == {(table, e, arm) for table in ("Table 2", "Table 3") for e in experiments for arm in arms}


def test_arithmetic_of_the_page_is_right() -> None:
    sums = re.findall(r"([\d.]+) / ([\d.]+) [-−] 1 = (-?[\d.]+\d)( %)?", PAGE)
    assert len(sums) == 3
    for numerator, denominator, result, percent in sums:
        decimals = len(result.partition(".")[2])
        value = (float(numerator) / float(denominator) - 1) * (100 if percent else 1)
        assert f"{value:.{decimals}f}" == result


def test_page_states_the_share_of_elementwise_products_correctly() -> None:
    share = elementwise_finding().computed["share_of_elementwise_products"]
    assert f"Elementwise products are {share * 100:.3f} % of" in PAGE


def test_page_states_the_work_of_the_gate_correctly() -> None:
    computed = compute_finding().computed
    mnist, c10 = (computed[f"gating_over_attention_{name}"] for name in ("mnist", "c10"))
    assert f"takes {c10:.1f} times the FLOPs of the attention that it replaces ({mnist:.2f} on MNIST)" in PAGE
    mnist, c10 = (computed[f"ninformer_over_vit_{name}"] - 1 for name in ("mnist", "c10"))
    assert f"NiNformer {c10:.0%} more than the ViT ({mnist:.0%} on MNIST)".replace("%", " %") in PAGE
    assert f"from {computed['tokens_from_which_gating_is_cheaper']} tokens on" in PAGE


def test_page_states_the_impossible_speed_correctly(printed_models: dict[tuple[str, str], nn.Module]) -> None:
    flops = flops_per_sample(printed_models["cifar10", "ninformer"], (3, 32, 32))
    assert f"{flops:,} FLOPs in 104.64 ns are {flops / 104.64e-9 / 1e12:,.0f} TFLOP/s" in PAGE
    over_mixer = flops / flops_per_sample(printed_models["cifar10", "mlp-mixer"], (3, 32, 32)) - 1
    over_vit = flops / flops_per_sample(printed_models["cifar10", "vit"], (3, 32, 32)) - 1
    assert (
        f"{over_mixer:.0%} more work than the MLP-Mixer and {over_vit:.0%} more than the ViT".replace("%", " %") in PAGE
    )
