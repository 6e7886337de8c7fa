"""docs/papers/dac.md against the code, and the example in docs/operators/dac.md as written."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from stages.claims import read_claims
from stages.claims.settings import param_values
from stages.evaluation.cost import count_parameters
from stages.papers.dac import DACMLP, DACVGG, MLP, VGG, DACResNetV1, DACResNetV2, MBAResNetV1, ResNetV1, ResNetV2
from stages.papers.dac.counting import count_operations
from stages.params.experiment import load_params

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "papers" / "dac.md").read_text()
EXAMPLE = (DOCS / "operators" / "dac.md").read_text()
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
def test_table_of_sizes_is_what_the_code_gives(row: tuple[str, str, str, str]) -> None:
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


def test_sizes_in_the_text_are_what_the_code_gives() -> None:
    image = {"image_size": 32, "in_channels": 3, "num_classes": 10}
    sensitivity = [
        count_parameters(DACResNetV1(**image, depth=20, width=16, has_last_shift=False)),
        count_parameters(DACVGG(**image, depth=14, width=32, has_last_shift=False)),
    ]
    assert "ResNet20 {:,}, VGG 14/32 {:,}".format(*sensitivity) in PAGE
    arguments = image | {"num_classes": 100, "depth": 20, "width": 16}
    mba = [count_parameters(MBAResNetV1(**arguments, copies=copies)) for copies in (2, 4, 8)]
    assert "{:,}, {:,} and {:,} for K = 2, 4, 8".format(*mba) in PAGE
    base = count_parameters(MLP(in_features=14, depth=5, width=100, last_width=100))
    dac = count_parameters(DACMLP(in_features=14, depth=5, width=71, last_width=71))
    assert f"{base:,}; the DAC network of equivalent width, 5 of 71, {dac:,}" in " ".join(PAGE.split())


def test_epochs_and_steps_of_the_larger_images_are_those_of_the_params() -> None:
    params = load_params(DOCS.parent)
    names = ["dac-imagenette", "dac-imagewoof", "dac-isic2019"]
    epochs = [params.experiments[name].printed.epochs for name in names]
    claim = next(claim for claim in read_claims(DOCS.parent / "data" / "claims.csv") if claim.metric == "steps")
    (steps,) = zip(*(param_values(replace(claim, experiment=name), params) for name in names), strict=True)
    told = " ".join((DOCS.parent / "stages" / "papers" / "dac" / "deviations.yaml").read_text().split())
    assert f"{epochs[0]} epochs, which are {steps[0]:,} and {steps[1]:,} steps, " in told
    assert epochs[2] == epochs[0] and "five folds, the epochs of Imagenette" in told


def test_operator_example_runs_as_it_stands() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", EXAMPLE, flags=re.DOTALL)
    torch.manual_seed(0)
    names: dict[str, torch.Tensor] = {}
    exec(compile(code, "docs/operators/dac.md", "exec"), names)  # the page is ours
    assert names["logits"].shape == (8, 10)
    x, weight, bias = names["x"], names["weight"], names["bias"]
    assert torch.allclose(names["y"], (weight * (bias + x[:, None]).relu()).sum(2))
    assert names["z"].shape == (2, 3, 5, 5)
    assert names["pair"](torch.zeros(1, 16, 4, 4)).shape == (1, 16, 4, 4)
