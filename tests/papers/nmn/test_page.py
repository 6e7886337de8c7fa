"""docs/papers/nmn.md and docs/operators/yat.md against the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stages.evaluation.cost import count_parameters, flops_per_sample
from stages.papers.nmn import GPT2, AetherGPT, AetherResNet18, PostNormGPT, PrintedAetherResNet18, ResNet18, YatGPT
from stages.params.experiment import load_params

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "papers" / "nmn.md").read_text()
SIZES: dict[str, dict[str, Any]] = {
    "small": {"vocabulary_size": 50257, "context": 1024, "width": 768, "depth": 12, "num_heads": 12},
    "corpus": {"vocabulary_size": 4096, "context": 256, "width": 256, "depth": 6, "num_heads": 8},
}


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_table_of_image_models_is_what_the_code_gives() -> None:
    rows = re.findall(r"^\| (\w+) \| (\w+) \| (\d+) \| ([\d,]+) \| ([\d,]+) \|$", PAGE, flags=re.MULTILINE)
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


def test_table_of_language_models_is_what_the_code_gives() -> None:
    rows = re.findall(r"^\| (\w+)(?:, attention (\w+))? \| (small|corpus) \| ([\d,]+) \|", PAGE, flags=re.MULTILINE)
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


def test_example_of_the_operators_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (DOCS / "operators" / "yat.md").read_text(), flags=re.DOTALL)
    exec(compile(example, "docs/operators/yat.md", "exec"), {})
