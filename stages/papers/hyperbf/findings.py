"""What can be said of the HyperBF paper's claims without training: three identities and the matched sizes.

Identities are checked in float64 on vectors drawn once, of the width of a head in the paper's models.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stages.finding import Finding
from stages.papers.hyperbf.hyperbf import HyperBF
from stages.papers.hyperbf.vit import ViT
from stages.rules import Margins

HEAD_DIM = 192
ROUNDING = 1e-12
MATCHED = 0.01
"""Sizes that differ by more than this share are not "consistent"."""

DATASETS = {"cifar10": (32, 10), "cifar100": (32, 100), "tiny_imagenet": (32, 200), "tiny_imagenet_64": (64, 200)}
"""Image size and classes; the text has 32 pixels for all, the authors' code 64 for Tiny ImageNet."""
COMMON: dict[str, Any] = {"in_channels": 3, "patch_size": 4, "dim": 768, "depth": 4, "num_heads": 4}
VIT: dict[str, Any] = {
    "hidden_dim": 20,
    "scale_exponent": -0.5,
    "has_unused_matrix": True,
    "position_image_size": None,
}
HYPERBF: dict[str, Any] = {
    "num_centers": 20,
    "kernel": "gaussian",
    "attention_metric": "factored",
    "attention_beta": None,
    "feedforward_metric": "euclidean",
    "feedforward_beta": 0.001,
    "feedforward_bias": False,
    "feedforward_normalised": False,
    "position_image_size": None,
}
AS_RUN = {"position_image_size": 224}
LAST_COMMIT_VIT = AS_RUN | {"hidden_dim": 1000}
LAST_COMMIT_HYPERBF = AS_RUN | {"num_centers": 11, "feedforward_metric": "free", "feedforward_bias": True}


def findings(margins: Margins) -> list[Finding]:
    """One finding a claim; the same numbers on every call."""
    return [unit_norm_identity(), constant_norm_equivalence(), softmax_shift(), matched_parameters()]


def _draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _squared_distance(q: Tensor, k: Tensor) -> Tensor:
    return (q[:, None, :] - k[None, :, :]).square().sum(dim=-1)


def _largest(x: Tensor) -> float:
    return x.abs().max().item()


def unit_norm_identity() -> Finding:
    q, k = (F.normalize(_draw(64, HEAD_DIM, seed=seed), dim=-1) for seed in (0, 1))
    error = _largest(1 - _squared_distance(q, k) / 2 - q @ k.T)
    return Finding(
        claim="hyperbf.identity.unitnorm",
        status="holds" if error < ROUNDING else "fails",
        computed={"max_abs_error": error},
        explanation="1 - |q - k|²/2 against q·k for 64 x 64 pairs of unit vectors in float64.",
    )


def constant_norm_equivalence() -> Finding:
    """Appendix 6.1, and how far the two are apart where keys differ in length, as those of a transformer do."""
    queries, keys = _draw(64, HEAD_DIM, seed=0), _draw(64, HEAD_DIM, seed=1)
    q_norm, k_norm = 2.0, 3.0
    equal_keys = k_norm * F.normalize(keys, dim=-1)
    errors = {
        name: _largest(
            (q @ k.T / HEAD_DIM**0.5).softmax(dim=-1) - (-_squared_distance(q, k) / (2 * HEAD_DIM**0.5)).softmax(dim=-1)
        )
        for name, q, k in (
            ("max_abs_error_equal_norms", q_norm * F.normalize(queries, dim=-1), equal_keys),
            ("max_abs_error_equal_key_norms_only", queries, equal_keys),
            ("max_abs_difference_unequal_key_norms", queries, keys),
        )
    }
    q = q_norm * F.normalize(queries, dim=-1)
    printed = _largest(q_norm**2 + k_norm**2 - _squared_distance(q, equal_keys) / 2 - q @ equal_keys.T)
    exact = max(errors["max_abs_error_equal_norms"], errors["max_abs_error_equal_key_norms_only"])
    return Finding(
        claim="hyperbf.identity.constnorm",
        status="holds" if exact < ROUNDING else "fails",
        computed=errors | {"printed_identity_error": printed, "half_sum_of_squared_norms": (q_norm**2 + k_norm**2) / 2},
        explanation="Softmax of dot products against softmax of -|q - k|²/2σ² with σ² = √192, in float64: equal where "
        "the keys have one norm, whatever the queries have, and not otherwise. Appendix 6.1 prints c1² + c2² where the "
        "algebra gives half of it; softmax doesn't see the difference.",
    )


def softmax_shift() -> Finding:
    scores, constants = _draw(64, 65, seed=0), 100 * _draw(64, 1, seed=1)
    error = _largest((scores + constants).softmax(dim=-1) - scores.softmax(dim=-1))
    positive = -scores.square()
    positive = positive - positive.min(dim=-1, keepdim=True).values
    refined = _largest(positive.softmax(dim=-1) - (-scores.square()).softmax(dim=-1))
    return Finding(
        claim="hyperbf.identity.softmaxshift",
        status="holds" if max(error, refined) < ROUNDING else "fails",
        computed={"max_abs_error": error, "max_abs_error_negative_scores_made_positive": refined},
        explanation="softmax(x + c) against softmax(x), float64. So softmax answers negative scores as it answers the "
        "same ones made positive, and appendix 6.3's second improvement has nothing to improve.",
    )


def _count(model_class: type[nn.Module], image_size: int, num_classes: int, arguments: dict[str, Any]) -> int:
    with torch.device("meta"):
        model = model_class(image_size=image_size, num_classes=num_classes, **COMMON, **arguments)
    return sum(parameter.numel() for parameter in model.parameters())


def matched_parameters() -> Finding:
    """Section 3.1.1, "consistent parameters": HyperBF's count over the ViT's."""

    def ratio(dataset: str, vit: dict[str, Any], hyperbf: dict[str, Any]) -> float:
        size, classes = DATASETS[dataset]
        return _count(HyperBF, size, classes, HYPERBF | hyperbf) / _count(ViT, size, classes, VIT | vit)

    computed = {f"ratio_{dataset}": ratio(dataset, {}, {}) for dataset in DATASETS}
    computed["ratio_cifar10_as_run"] = ratio("cifar10", AS_RUN, AS_RUN)
    farthest = max(computed.values(), key=lambda value: abs(value - 1))
    computed["ratio_cifar10_without_the_unused_matrix"] = ratio("cifar10", {"has_unused_matrix": False}, {})
    computed["ratio_cifar10_last_public_commit"] = ratio("cifar10", LAST_COMMIT_VIT, LAST_COMMIT_HYPERBF)
    return Finding(
        claim="hyperbf.params.match",
        status="holds" if abs(farthest - 1) < MATCHED else "fails",
        computed=computed,
        explanation="Parameters of HyperBF over those of the ViT with 20 centres against 20 hidden units. The ViT's "
        "count has a matrix in each block that nothing uses; without it HyperBF is the larger. The pair of the last "
        "public commit is not matched.",
        ours=farthest,
    )
