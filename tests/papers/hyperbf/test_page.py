"""docs/papers/hyperbf.md against the code."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from stages.evaluation.cost import count_parameters, flops_per_sample
from stages.papers.hyperbf import HyperBF, HyperBFAsWritten, ViT
from stages.papers.hyperbf.findings import (
    AS_RUN,
    COMMON,
    DATASETS,
    HYPERBF,
    LAST_COMMIT_HYPERBF,
    LAST_COMMIT_VIT,
    VIT,
    findings,
)
from stages.params.experiment import load_params
from tests.project import MARGINS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "papers" / "hyperbf.md").read_text()
ROWS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "ViT 20": (ViT, VIT),
    "HyperBF 20": (HyperBF, HYPERBF),
    "ViT 20, no unused matrix": (ViT, VIT | {"has_unused_matrix": False}),
    "HyperBF 20, both metrics": (HyperBF, HYPERBF | {"feedforward_metric": "factored"}),
    "ViT 1500": (ViT, VIT | {"hidden_dim": 1500}),
    "HyperBF 1500": (HyperBF, HYPERBF | {"num_centers": 1500}),
    "ViT 20, as-run positions": (ViT, VIT | AS_RUN),
    "HyperBF 20, as-run positions": (HyperBF, HYPERBF | AS_RUN),
    "ViT, last public commit": (ViT, VIT | LAST_COMMIT_VIT),
    "HyperBF, last public commit": (HyperBF, HYPERBF | LAST_COMMIT_HYPERBF),
}


def size_row(name: str) -> str:
    model_class, arguments = ROWS[name]
    with torch.device("meta"):
        models = [
            model_class(image_size=size, num_classes=classes, **COMMON, **arguments)
            for size, classes in DATASETS.values()
        ]
    numbers = [count_parameters(model) for model in models] + [flops_per_sample(models[0], (3, 32, 32))]
    return f"| {name} | " + " | ".join(f"{number:,}" for number in numbers) + " |"


@pytest.mark.parametrize("name", ROWS)
def test_sizes_and_work_are_what_the_code_gives(name: str) -> None:
    assert size_row(name) in PAGE.splitlines()


def test_every_row_of_the_sizes_is_checked() -> None:
    assert re.findall(r"^\| ([^|]+) \|(?: [\d,]+ \|){5}$", PAGE, flags=re.MULTILINE) == list(ROWS)


def test_the_arms_are_those_that_are_trained() -> None:
    rows = re.findall(r"^\| [^|]+ \| (`\w+`|both) \| ((?:`\w+: [^`]+`(?:, )?)*) ?\| ", PAGE, flags=re.MULTILINE)
    classes = {f"`{c.__name__}`": [c] for c in (ViT, HyperBF, HyperBFAsWritten)} | {"both": [ViT, HyperBF]}
    shown = []
    for names, arguments in rows:
        values = {key: yaml.safe_load(value) for key, value in re.findall(r"`(\w+): ([^`]+)`", arguments)}
        taken = [sorted(values.keys() & inspect.signature(model).parameters.keys()) for model in classes[names]]
        assert values.keys() == set().union(*taken), "an argument that its model doesn't take"
        for model, own in zip(classes[names], taken, strict=True):
            shown.append((model.__name__, [(key, values[key]) for key in own]))
    experiments = {name: found for name, found in load_params(ROOT).experiments.items() if found.paper == "hyperbf"}
    arms = experiments.pop("hyperbf-cifar10").arms
    trained = []
    for arm in arms.values():
        name, base = str(arm.model["name"]), arms["vit" if arm.model["name"] == "ViT" else "hyperbf"]
        changed = {key for key, value in arm.model.items() if key != "name" and base.model.get(key) != value}
        trained.append((name, [(key, arm.model[key]) for key in sorted(changed)]))
    pair: list[Any] = [("ViT", []), ("HyperBF", [])]
    assert sorted(shown + pair, key=repr) == sorted(trained, key=repr)
    others = {name: [*found.arms] for name, found in experiments.items()}
    assert others.pop("hyperbf64-tinyimagenet") == ["vit", "hyperbf"]
    assert all(names == ["vit", "hyperbf", "vit-as-run-scale"] for names in others.values())


def test_percentages_and_differences_are_those_of_the_findings() -> None:
    found = {finding.claim: finding.computed for finding in findings(MARGINS)}
    sizes = found["hyperbf.params.match"]
    assert f"HyperBF has {1 - sizes['ratio_cifar10']:.2%} fewer".replace("%", " %") in PAGE
    assert f"or {sizes['ratio_cifar10_without_the_unused_matrix'] - 1:.1%} more".replace("%", " %") in PAGE
    others = ("ratio_cifar10_of_2023_09_20", "ratio_cifar10_of_2023_10_06", "ratio_cifar10_last_public_commit")
    assert "the ratios of the rest are {:.2f}, {:.2f} and {:.2f}".format(*map(sizes.get, others)) in PAGE
    unequal = found["hyperbf.identity.constnorm"]["max_abs_difference_unequal_key_norms"]
    assert f"differ by up to {unequal:.2f}" in PAGE
    work = [int(size_row(name).split(" | ")[-1].strip(" |").replace(",", "")) for name in ("HyperBF 20", "ViT 20")]
    assert f"does {work[0] / work[1] - 1:.0%} more work".replace("%", " %") in PAGE
