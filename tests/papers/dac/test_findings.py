"""Findings compared with the paper's printed numbers, their counting rules, and docs/papers/dac.md."""

import csv
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from stages.claims import read_claims
from stages.claims.kinds.counts import param_values
from stages.evaluation.cost import count_parameters, flops_per_sample
from stages.ops.dac import DACConv2d, DACLinear
from stages.papers.dac import DACMLP, DACVGG, MLP, VGG, DACResNetV1, DACResNetV2, MBAResNetV1, ResNetV1, ResNetV2
from stages.papers.dac.findings import (
    GAINS,
    PRINTED,
    Operations,
    _increases,
    count_operations,
    findings,
    fisher_two_sided,
    printed_numbers,
)
from stages.papers.finding import Finding, prints_as
from stages.params.experiment import load_params
from tests.project import MARGINS


def test_printed_numbers_equal_the_claims_file() -> None:
    with (Path(__file__).parents[3] / "data" / "claims.csv").open(newline="") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    assert {claim: (float(rows[claim]["value"]), float(rows[claim]["precision"] or 0)) for claim in PRINTED} == PRINTED


def test_gains_equal_the_claims_file_and_all_but_one_are_positive(
    found: dict[str, Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    places = r"dac\.(table[12]\..*\.order|vgg\..*\.gain|wide\.order|isic\..*\.gain)"
    rows = [c for c in read_claims(Path(__file__).parents[3] / "data" / "claims.csv") if re.fullmatch(places, c.id)]
    assert sorted(round(1e4 * row.value) for row in rows) == sorted(gain for gains in GAINS.values() for gain in gains)
    assert [reading.holds for reading in found["dac.consistent"].readings] == [False, True]
    monkeypatch.setitem(GAINS, "VGG, CIFAR-10", (65, -66))
    (changed,) = (finding for finding in printed_numbers() if finding.claim == "dac.consistent")
    assert changed.status == "fails"


def test_status_depends_on_the_printed_number(found: dict[str, Finding], monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings that hold fail if other numbers are printed."""
    for claim, (value, unit) in PRINTED.items():
        monkeypatch.setitem(PRINTED, claim, (1.1 * value + unit, unit))
    changed = {finding.claim: finding.status for finding in findings(MARGINS) if finding.claim in PRINTED}
    assert changed == {claim: "contradicted" if found[claim].status == "contradicted" else "fails" for claim in PRINTED}


@pytest.mark.parametrize(
    ("batch", "status"), [(128, "contradicted"), (64, "contradicted"), (32, "holds under a reading")]
)
def test_only_batches_of_32_fit_imagenettes_steps_and_epochs(
    batch: int, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRINTED, "dac.image.setup.steps_imagenette", (batch, 0))
    (found,) = (finding for finding in printed_numbers() if finding.claim == "dac.image.setup.steps_imagenette")
    assert found.status == status
    assert found.computed["steps_of_32_an_epoch"] == 247 and round(found.computed["epochs_of_64k_steps_of_32"]) == 259
    fifth = found.computed["epochs_of_a_fifth_of_the_steps_with_4_to_1_to_1"]
    assert fifth == pytest.approx(259.5 * batch / 128, abs=0.1), "disclosed, although two other words need it"


def test_number_matches_up_to_half_of_the_last_printed_digit() -> None:
    assert prints_as(5.4501, 5.5, 0.1) and not prints_as(5.4499, 5.5, 0.1)
    assert prints_as(0.105, 0.11, 0.01) and prints_as(0.125, 0.12, 0.01), "rounding noise doesn't decide a half"
    assert prints_as(1008, 1008, 0) and not prints_as(1009, 1008, 0)


def test_mba_grows_with_the_number_of_copies(found: dict[str, Finding]) -> None:
    for copies in (2, 4, 8):
        assert found["dac.mba.params"].computed[f"growth_k{copies}"] == pytest.approx(copies, rel=0.005)
        assert found["dac.mba.params"].computed[f"growth_of_layers_k{copies}"] == copies


def test_rule_of_section_4_gives_5_5_percent_for_every_network(found: dict[str, Finding]) -> None:
    computed = {claim: found[claim].computed for claim in ("dac.vgg.flops_inc", "dac.wide.flops_inc")}
    by_rule = [
        value
        for numbers in computed.values()
        for name, value in numbers.items()
        if name.startswith("increase_percent") and "bias_at_input" not in name
    ]
    by_rule += [found[f"dac.table2.gflops.r{d}.dac"].computed["increase_percent_bias_at_output"] for d in (20, 32)]
    assert [round(value, 1) for value in by_rule] == [5.5] * 5


def test_one_counting_rule_gives_table_2s_dac_operations_but_not_the_bases(
    found: dict[str, Finding],
) -> None:
    """Biases at a layer's input and sums of blocks that keep their map: 0.542 and 0.918, but 0.510 for 0.509."""
    prints = []
    for depth, printed, ours in ((20, 0.509, 542_004_480), (32, 0.865, 916_993_280)):
        assert abs(found[f"dac.table2.gflops.r{depth}.base"].computed["gflops_with_projections"] - printed) > 0.002
        finding = found[f"dac.table2.gflops.r{depth}.dac"]
        assert finding.readings[1].ours == ours
        prints.append([reading.holds for reading in finding.readings])
    assert prints == [[False, True, True, False], [False, False, True, True]]
    computed = found["dac.table2.gflops.r20.dac"].computed
    kept = 80**2 * 16 * 3 + 40**2 * 32 * 2 + 20**2 * 64 * 2
    assert computed["gflops_with_sums_of_kept_maps"] * 1e9 == pytest.approx(542_004_480 + kept)
    assert computed["gflops_of_the_baseline_with_them"] * 1e9 == pytest.approx(509_236_480 + kept)
    assert "0.00 % apart, which prints so" in found["dac.table2.gflops.r20.dac"].readings[1].text
    assert "0.11 % apart, which prints otherwise" in found["dac.table2.gflops.r32.dac"].readings[1].text


def test_counts_do_not_depend_on_margins(found: dict[str, Finding]) -> None:
    margins = replace(MARGINS, flops_share=1.0, memory_share=1.0)
    assert {finding.claim: finding.status for finding in findings(margins)} == {
        claim: finding.status for claim, finding in found.items()
    }


def test_factors_of_section_4_are_relative_to_weights_only(found: dict[str, Finding]) -> None:
    for what, n in (("params", 1), ("flops", 1)):
        of_weights, of_all = found[f"dac.{what}.dense"].readings
        assert (of_weights.holds, of_all.holds) == (True, False), n
    (of_weights, of_all), (_, of_all_flops) = _increases(3)["params"], _increases(3)["flops"]
    assert of_weights == pytest.approx(2 - 1 / 3) and of_all == pytest.approx(2 * 3 / (3 + 1))
    assert of_all_flops == pytest.approx(3 * 3 / (2 * 3 + 1))


def test_points_2_and_3_of_the_theorem_hold_together_only_without_last_activation(
    found: dict[str, Finding],
) -> None:
    second, third = ({reading.name: reading.holds for reading in found[f"dac.thm.c1.{n}"].readings} for n in (2, 3))
    assert second["with the last activation"] and not third["with the last activation"]
    shared = "without the last activation, two pieces or more"
    assert second[shared] and third[shared]
    every_k = "without the last activation, every k"
    assert not second[every_k] and not third[every_k]
    assert found["dac.thm.c1.3"].computed["error_of_two_units_for_a_line"] == 0


def test_one_more_copy_gives_every_function_on_a_bounded_interval(found: dict[str, Finding]) -> None:
    assert found["dac.thm.c1.1"].computed["error_with_one_copy_more_on_a_bounded_interval"] < 1e-9


def test_pl_k_has_2k_parameters(found: dict[str, Finding]) -> None:
    assert found["dac.thm.c2"].computed == {"ways_missing_of_2k": 0}
    assert found["dac.thm.c2"].status == "holds", "Theorem C.1 (1) covers that DAC units need no more"


def test_post_activation_joins_the_next_biases_regardless_of_sign(found: dict[str, Finding]) -> None:
    alone, in_its_network = found["dac.prepost"].readings
    assert (alone.holds, in_its_network.holds) == (False, True)
    assert found["dac.prepost"].computed["difference_of_two_layers"] < 1e-14


def test_printed_square_takes_four_units_and_its_separation_three(found: dict[str, Finding]) -> None:
    separation, function = found["dac.fig7b.units"].readings
    assert [(reading.ours, reading.holds) for reading in (separation, function)] == [(3, False), (4, True)]
    at_every_point, as_a_separation = found["dac.fig7b"].readings
    assert (at_every_point.holds, as_a_separation.holds) == (False, True)
    assert found["dac.fig7b"].computed["share_of_them_on_two_rays"] == 1


def test_fisher_gives_known_p_values() -> None:
    # Fisher's tea: 3 of 4 against 1 of 4 is (2 * 16 + 2 * 1) / 70.
    assert fisher_two_sided(3, 4, 1, 4) == pytest.approx(34 / 70)
    assert fisher_two_sided(4, 4, 0, 4) == pytest.approx(2 / 70)


def test_operations_of_single_layers_equal_hand_counts() -> None:
    with torch.no_grad():
        conv = count_operations(DACConv2d(3, 5, 3, stride=2, padding=1), (3, 8, 8))
        dense = count_operations(DACLinear(7, 4), (7,))
        norm = count_operations(nn.Sequential(nn.Conv2d(3, 5, 1), nn.BatchNorm2d(5)), (3, 8, 8))
    assert conv == Operations(linear=2 * 135 * 16, bias_at_input=15 * 64, bias_at_output=15 * 16)
    assert dense == Operations(linear=56, bias_at_input=28, bias_at_output=28)
    assert norm == Operations(linear=2 * 15 * 64, norm=2 * 5 * 64)
    assert (conv.total_at_input, conv.total_at_output) == (4320 + 960, 4320 + 240)


@pytest.mark.parametrize("kind", [ResNetV1, DACResNetV1])
def test_small_image_gives_the_cost_of_a_large_one(kind: type[nn.Module]) -> None:
    model = kind(image_size=32, in_channels=3, num_classes=10, depth=8, width=4)
    small, large = count_operations(model, (3, 8, 8), scale=4), count_operations(model, (3, 16, 16))
    assert small == large
    assert large.linear == flops_per_sample(model, (3, 16, 16))


DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "papers" / "dac.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (VGG \S+|ResNet\S+(?: ×4)?) \| (\d+) \| (\d+) \| (.+) \|$", PAGE, flags=re.MULTILINE)


def pair(network: str) -> tuple[type[nn.Module], type[nn.Module], dict[str, int]]:
    if network.startswith("VGG"):
        depth, width = map(int, network.removeprefix("VGG ").split("/"))
        return VGG, DACVGG, {"depth": depth, "width": width}
    depth, _, wider = network.removeprefix("ResNet").partition(" ")
    kinds = (ResNetV2, DACResNetV2) if wider else (ResNetV1, DACResNetV1)
    return *kinds, {"depth": int(depth), "width": 64 if wider else 16}


def test_table_has_every_network_of_the_paper() -> None:
    assert len(ROWS) == 4 + 2 * 4 + 2 * 2 + 1
    assert {row[0] for row in ROWS} == {"VGG 20/16", "VGG 14/32", "ResNet20 ×4"} | {
        f"ResNet{depth}" for depth in (20, 32, 44, 56)
    }


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(row[:3]).replace(" ", ""))
def test_table_of_sizes_equals_the_code(row: tuple[str, str, str, str]) -> None:
    network, classes, pixels, numbers = row
    base_kind, dac_kind, own = pair(network)
    arguments = {"image_size": int(pixels), "in_channels": 3, "num_classes": int(classes)} | own
    base, dac = base_kind(**arguments), dac_kind(**arguments)
    work = [count_operations(model, (3, 8, 8), scale=(int(pixels) // 8) ** 2) for model in (base, dac)]
    assert work[0].linear == work[1].linear
    assert [int(number.replace(",", "")) for number in numbers.split(" | ")] == [
        *(count_parameters(base), count_parameters(dac), work[0].linear),
        *(work[0].total_at_input, work[1].total_at_input),
    ]


def test_sizes_in_the_text_equal_the_code() -> None:
    image = {"image_size": 32, "in_channels": 3, "num_classes": 10}
    sensitivity = [
        count_parameters(DACResNetV1(**image, depth=20, width=16, has_last_shift=False)),
        count_parameters(DACVGG(**image, depth=14, width=32, has_last_shift=False)),
    ]
    assert "ResNet20 with DAC has {:,} and VGG 14/32 {:,}".format(*sensitivity) in " ".join(PAGE.split())
    arguments = image | {"num_classes": 100, "depth": 20, "width": 16}
    mba = [count_parameters(MBAResNetV1(**arguments, copies=copies)) for copies in (2, 4, 8)]
    assert "{:,}, {:,} and {:,} for K = 2, 4, 8".format(*mba) in " ".join(PAGE.split())
    base = count_parameters(MLP(in_features=14, depth=5, width=100, last_width=100))
    dac = count_parameters(DACMLP(in_features=14, depth=5, width=71, last_width=71))
    assert f"{base:,}; the DAC network of equivalent width, 5 of 71, has {dac:,}" in " ".join(PAGE.split())


def test_epochs_and_steps_of_larger_images_equal_the_params() -> None:
    params = load_params(DOCS.parent)
    names = ["dac-imagenette", "dac-imagewoof", "dac-isic2019"]
    epochs = [params.experiments[name].printed.epochs for name in names]
    claim = next(claim for claim in read_claims(DOCS.parent / "data" / "claims.csv") if claim.metric == "steps")
    (steps,) = zip(*(param_values(replace(claim, experiment=name), params) for name in names), strict=True)
    text = " ".join((DOCS.parent / "stages" / "papers" / "dac" / "deviations.yaml").read_text(encoding="utf-8").split())
    assert f"{epochs[0]} epochs, which are {steps[0]:,} and {steps[1]:,} steps, " in text
    assert epochs[2] == epochs[0] and "five folds, the epochs of Imagenette" in text
