"""The paper's four architectures and their variants, at test size and as specified in the params files."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from stages.papers import build_model
from stages.papers.ninformer import (
    LocalViT,
    MLPMixer,
    NiNformer,
    PositionedViT,
    SeparableLocalViT,
    SharedNormNiNformer,
    SqueezeExciteLocalViT,
    ViT,
)
from stages.params.experiment import Params, load_params, plan_runs
from stages.run import ModelSpec

ROOT = Path(__file__).parents[3]
SMALL = {"image_size": 12, "in_channels": 3, "num_classes": 5, "patch_size": 4, "dim": 16, "depth": 2}
OWN = {
    ViT: {"num_heads": 2, "mlp_dim": 32},
    MLPMixer: {"token_dim": 24, "channel_dim": 32},
    LocalViT: {"num_heads": 2, "channels": 32},
    NiNformer: {"mlp_dim": 32, "token_dim": 24, "channel_dim": 40},
}
OWN |= {
    PositionedViT: OWN[ViT],
    SqueezeExciteLocalViT: OWN[LocalViT],
    SeparableLocalViT: OWN[LocalViT],
    SharedNormNiNformer: OWN[NiNformer],
}

# Section 4's sizes by keyword; dropout is from the authors' code.
PRINTED = {"patch_size": 4, "dim": 256, "depth": 4, "dropout": 0.5}
PRINTED_OWN = {"num_heads": 4} | dict.fromkeys(("mlp_dim", "channels", "token_dim", "channel_dim"), 512)
SHAPES = {"mnist": (1, 28, 10), "mnist at 32 px": (1, 32, 10), "cifar10": (3, 32, 10), "cifar100": (3, 32, 100)}


@pytest.fixture(scope="session")
def meta_models() -> dict[str, dict[str, nn.Module]]:
    """Image shape by class -> the model at section 4's sizes, without weights."""
    models: dict[str, dict[str, nn.Module]] = {}
    for model_class, own in OWN.items():
        keywords = PRINTED | {key: PRINTED_OWN[key] for key in own}
        with torch.device("meta"):
            models[model_class.__name__] = {
                name: model_class(in_channels=channels, image_size=size, num_classes=classes, **keywords)
                for name, (channels, size, classes) in SHAPES.items()
            }
    return models


@pytest.fixture(params=OWN, ids=lambda model_class: model_class.__name__)
def small_model(request: pytest.FixtureRequest) -> Callable[..., nn.Module]:
    """A function that builds one of the eight architectures: 9 tokens, 2 blocks, dropout 0 by default."""

    def build(**changes: float) -> nn.Module:
        torch.manual_seed(0)
        return request.param(**SMALL | OWN[request.param] | {"dropout": 0.0} | changes)

    return build


@pytest.fixture(scope="session")
def params() -> Params:
    return load_params(ROOT)


@pytest.fixture(scope="session")
def printed_specs(params: Params) -> dict[tuple[str, str], ModelSpec]:
    """(data set, arm) -> the model specified in the params files."""
    return {
        (experiment.dataset, run.name.arm): run.spec.model
        for experiment in params.experiments.values()
        if experiment.paper == "ninformer"
        for run in plan_runs(experiment, params.profile, params.datasets[experiment.dataset])
    }


@pytest.fixture(scope="session")
def printed_models(printed_specs: dict[tuple[str, str], ModelSpec]) -> dict[tuple[str, str], nn.Module]:
    """(data set, arm) -> that model in evaluation mode. Shared: tests must not train it."""
    return {place: build_model(spec).eval() for place, spec in printed_specs.items()}


@pytest.fixture(scope="session")
def timm_vectors() -> dict[str, np.ndarray]:
    with np.load(ROOT / "tests" / "golden" / "ninformer_timm.npz") as file:
        return dict(file)
