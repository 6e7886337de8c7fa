"""Findings: FLOPs compared with the counter, printed numbers with the claims file, and docs/papers/ninformer.md."""

import csv
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from stages.evaluation.cost import count_parameters, flops_per_sample
from stages.papers.finding import Finding
from stages.papers.ninformer import findings as module
from stages.papers.ninformer.findings import (
    ACCURACY,
    GAIN,
    IMAGES,
    NANOSECONDS,
    compute_finding,
    elementwise_finding,
    image_flops,
)
from stages.params.experiment import Params

ROOT = Path(__file__).parents[3]
ARMS = {"vit": "vit", "mlpmixer": "mlp-mixer", "localvit": "local-vit", "ninformer": "ninformer"}
DATASETS = {"mnist": "mnist", "c10": "cifar10", "c100": "cifar100"}


@pytest.fixture(scope="module")
def printed() -> dict[str, float]:
    with (ROOT / "data" / "claims.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["paper"] == "ninformer" and row["value"]]
    return {row["id"]: float(row["value"]) for row in rows}


def test_flops_from_shapes_equal_the_counters(params: Params, printed_models: dict[tuple[str, str], nn.Module]) -> None:
    for ours, dataset in DATASETS.items():
        for short, arm in ARMS.items():
            counted = flops_per_sample(printed_models[dataset, arm], params.datasets[dataset].shape)
            assert image_flops(short, IMAGES[ours]) == counted, (dataset, arm)


def test_printed_numbers_equal_the_claims_file(printed: dict[str, float]) -> None:
    times = {claim: value for claim, value in printed.items() if ".table3." in claim}
    assert times == {
        f"ninformer.table3.{dataset}.{arm}": value for dataset, row in NANOSECONDS.items() for arm, value in row.items()
    }
    accuracies = {claim: value * 100 for claim, value in printed.items() if ".table2." in claim}
    assert accuracies == pytest.approx(
        {f"ninformer.table2.{dataset}.{arm}": value for dataset, row in ACCURACY.items() for arm, value in row.items()}
    )
    assert pytest.approx(printed["ninformer.text.c10.acc_vs_localvit"] * 100) == GAIN


def test_printed_times_are_impossible_on_the_papers_gpu(found: dict[str, Finding]) -> None:
    times = [finding for claim, finding in found.items() if ".table3." in claim]
    assert len(times) == 12
    for finding in times:
        assert finding.status == "contradicted" and finding.error == "inference times in nanoseconds"
        assert finding.computed["times_peak"] > 100
        assert finding.computed["times_peak"] == pytest.approx(8 * finding.computed["times_half_precision_peak"])
        assert finding.computed["times_half_precision_peak"] > 14
        assert 0 < finding.computed["share_of_peak_if_microseconds"] < 1
        assert "the unit or the measurement is off" in finding.explanation
    # 437,785,600 FLOPs / 104.64 ns = 4,183.7 TFLOP/s, and the RTX 2080 Ti's float32 peak is 13.45.
    needed = found["ninformer.table3.c10.ninformer"].computed
    assert needed["tflops_per_second_needed"] == pytest.approx(4183.7, abs=0.1)
    assert needed["times_peak"] == pytest.approx(4183.7 / 13.45, rel=1e-3)


def test_unsynchronised_launch_could_take_the_printed_time(found: dict[str, Finding]) -> None:
    computed = found["ninformer.table3.c10.ninformer"].computed
    assert computed["milliseconds_for_all_test_images"] == pytest.approx(1.0464)


def test_card_memory_matches_only_in_billions_of_bytes(found: dict[str, Finding]) -> None:
    assert [reading.holds for reading in found["ninformer.setup.vram"].readings] == [False, True]


def gate_that_grows_as_attention_does(n: int, attention: Callable[[int], int] = module.attention_flops) -> int:
    return 2 * attention(n) if n < 900 else attention(n) - 1


@pytest.mark.parametrize(
    ("name", "value", "find", "status"),
    [
        ("CARD_GIBIBYTES", 10, module.memory_finding, "fails"),
        ("NANOSECONDS", {"c10": {"ninformer": 104.64e3}}, partial(module.time_finding, "c10", "ninformer"), "holds"),
        (
            "NANOSECONDS",
            {"c10": {"ninformer": 104.64 * 64}},  # tensor cores allow it
            partial(module.time_finding, "c10", "ninformer"),
            "holds under a reading",
        ),
        ("GAIN", 17, module.gain_finding, "holds under a reading"),  # 17.4 % fewer errors
        ("M", 128, module.compute_finding, "holds"),
        ("gating_flops", gate_that_grows_as_attention_does, module.compute_finding, "fails"),
    ],
)
def test_other_numbers_change_the_finding(
    name: str, value: Any, find: Callable[[], Finding], status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, value)
    assert find().status == status


def test_gain_over_local_vit_is_five_percent_not_sixteen(found: dict[str, Finding]) -> None:
    finding = found["ninformer.text.c10.acc_vs_localvit"]
    assert finding.status == "contradicted"
    assert finding.computed["relative_gain_percent"] == pytest.approx(4.99, abs=0.005)  # 81.59 / 77.71 - 1
    assert finding.computed["gain_percentage_points"] == pytest.approx(3.88)
    assert finding.computed["errors_avoided_percent"] == pytest.approx(100 * (22.29 - 18.41) / 22.29)
    assert finding.computed["relative_gain_percent_c100"] == pytest.approx(29.25, abs=0.005)  # 53.78 / 41.61 - 1
    assert len(finding.readings) == 6 and not any(reading.holds for reading in finding.readings)


def test_gate_takes_more_work_than_the_attention_it_replaces(found: dict[str, Finding]) -> None:
    """Hand calculation in MFLOP for 64 tokens of width 256 with MLPs of 512."""
    attention, gate = 25.17 + 4.19 + 8.39, 67.11 + 8.39
    finding = found["ninformer.compute.lower"]
    assert [reading.holds for reading in finding.readings] == [False, True]
    assert finding.status == "holds under a reading"
    assert finding.computed["gating_over_attention_c10"] == pytest.approx(gate / attention, rel=1e-3)
    assert finding.computed["ninformer_over_vit_c10"] == 437_785_600 / 286_790_656
    n = finding.computed["tokens_from_which_gating_is_cheaper"]
    assert module.gating_flops(n) < module.attention_flops(n)
    assert module.gating_flops(n - 1) == module.attention_flops(n - 1)
    assert n > finding.computed["most_tokens_of_the_papers_images"] == 64


def test_localvit_is_lighter_and_settings_are_equal_under_one_reading(
    found: dict[str, Finding], printed_models: dict[tuple[str, str], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    lighter, equal = found["ninformer.localvit.lightweight"], found["ninformer.equalized"]
    assert [reading.holds for reading in lighter.readings] == [False, False, True]
    assert lighter.computed["flops_over_vit_c10"] == 289_149_952 / 286_790_656
    sizes = [count_parameters(printed_models["cifar10", arm]) for arm in ("local-vit", "vit")]
    assert sizes[0] > sizes[1], "also with BatchNorm"
    assert [reading.holds for reading in equal.readings] == [True, False]
    assert equal.computed["ninformer_over_mlpmixer_c10"] == 437_785_600 / 270_013_440
    monkeypatch.setitem(NANOSECONDS["c10"], "localvit", 150.0)
    assert module.lightweight_finding().status == "fails"


def test_cost_is_linear_but_weights_grow_with_the_tokens(found: dict[str, Finding]) -> None:
    finding = found["ninformer.complexity.linear"]
    assert finding.status == "holds"
    assert finding.computed["flops_ratio_when_tokens_double"] == 2
    assert finding.computed["flops_ratio_when_tokens_double_vit"] > 2.1
    elementwise = found["ninformer.elementwise"]
    assert [reading.holds for reading in elementwise.readings] == [False, True]
    assert elementwise.computed["share_of_elementwise_products"] == pytest.approx(64 * 256 / 109.05e6, rel=1e-2)
    # 64 tokens instead of 49 in four blocks: MNIST at 32 and at 28 pixels.
    assert finding.computed["weights_per_token_and_block"] * 4 * (64 - 49) == 2_646_026 - 2_584_526


PAGE = (ROOT / "docs" / "papers" / "ninformer.md").read_text(encoding="utf-8")


def test_table_of_sizes_equals_the_code(params: Params, printed_models: dict[tuple[str, str], nn.Module]) -> None:
    rows = re.findall(r"^\| (\w+) \| ([\w-]+) \| ([\d,]+) \| ([\d,]+) \|$", PAGE, flags=re.MULTILINE)
    shown = {(dataset, arm): (int(n.replace(",", "")), int(f.replace(",", ""))) for dataset, arm, n, f in rows}
    assert len(shown) == 12, "four arms on three data sets"
    computed = {
        place: (count_parameters(model), flops_per_sample(model, params.datasets[place[0]].shape))
        for place, model in printed_models.items()
        if place in shown
    }
    assert shown == computed


def test_table_of_variants_equals_the_code(meta_models: dict[str, dict[str, nn.Module]]) -> None:
    rows = re.findall(r"^\| `(\w+)` \| .+? \| (.+) \|$", PAGE, flags=re.MULTILINE)
    shown = {name: [int(cell.replace(",", "")) for cell in cells.split(" | ")] for name, cells in rows}
    computed = {
        name: [count_parameters(model) for model in models.values()]
        + [flops_per_sample(models["cifar10"], (3, 32, 32))]
        for name, models in meta_models.items()
    }
    assert shown == {name: computed[name] for name in shown}
    assert len(shown) == 4


def test_arithmetic_of_the_page_is_correct() -> None:
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
