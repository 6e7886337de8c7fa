"""Findings on the HyperBF paper's claims that need no training: three identities and the matched sizes.

Identities are checked in float64 on vectors drawn once, of the width of a head in the paper's models.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stages.papers.finding import Finding, Reading, judge_readings, prints_as
from stages.papers.hyperbf.hyperbf import HyperBF
from stages.papers.hyperbf.vit import ViT
from stages.rules import Margins

HEAD_DIM = 192
ROUNDING = 1e-12
PRINTED_RATIO = 1.0, 0.1
"""The claim's row: "consistent", read as 1.0 to a unit of that place."""

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
    """One finding per claim; the same numbers on every call."""
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
    """Appendix 6.1, and the gap between the two where keys differ in length, as those of a transformer do."""
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
    squares, distance, dot = q_norm**2 + k_norm**2, _squared_distance(q, equal_keys), q @ equal_keys.T
    under_one_bar, beside_it = _largest((squares - distance) / 2 - dot), _largest(squares - distance / 2 - dot)
    exact = max(errors["max_abs_error_equal_norms"], errors["max_abs_error_equal_key_norms_only"])
    return Finding(
        claim="hyperbf.identity.constnorm",
        status="holds" if exact < ROUNDING else "fails",
        computed=errors
        | {
            "identity_error_all_over_two": under_one_bar,
            "identity_error_last_term_over_two": beside_it,
            "half_sum_of_squared_norms": squares / 2,
        },
        explanation="Softmax of dot products against softmax of -|q - k|²/2σ² with σ² = √192, in float64: equal where "
        "the keys have one norm, whatever the queries have, and not otherwise. Our copy of appendix 6.1's c1² + c2² - "
        "|q - k|²/2 has lost how far the fraction's bar goes: over all of it, it is exact; over the last term alone, "
        "off by a constant, which softmax doesn't see.",
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
        explanation="softmax(x + c) against softmax(x), float64. Negative scores made positive by a constant give the "
        "same weights, so the refinement that appendix 6.3 suggests would be another function of the distance.",
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

    def farthest(ratios: dict[str, float]) -> float:
        return max(ratios.values(), key=lambda value: abs(value - 1))

    counted = {f"ratio_{dataset}": ratio(dataset, {}, {}) for dataset in DATASETS}
    counted["ratio_cifar10_as_run"] = ratio("cifar10", AS_RUN, AS_RUN)
    last = ratio("cifar10", LAST_COMMIT_VIT, LAST_COMMIT_HYPERBF)
    used = {
        f"ratio_{dataset}_without_the_unused_matrix": ratio(dataset, {"has_unused_matrix": False}, {})
        for dataset in DATASETS
    }
    all_of_them, those_used = farthest(counted), farthest(used)
    readings = (
        Reading(
            name="as all parameters",
            text='"we maintain consistent parameters across both models": as the networks of the public code at the '
            f"time register them, with 20 centres and 20 hidden units. The ratio farthest from 1 is {all_of_them:.4f}",
            holds=prints_as(all_of_them, *PRINTED_RATIO),
            ours=all_of_them,
        ),
        Reading(
            name="as the parameters that are used",
            text="the same without a matrix in each block of the ViT that nothing reads. The ratio farthest from 1 is "
            f"{those_used:.4f}",
            holds=prints_as(those_used, *PRINTED_RATIO),
            ours=those_used,
        ),
    )
    return Finding(
        claim="hyperbf.params.match",
        status=judge_readings(readings),
        computed=counted | used | {"ratio_cifar10_last_public_commit": last},
        readings=readings,
        explanation="Parameters of HyperBF over those of the ViT, of which the text prints no number: as run "
        f"{counted['ratio_cifar10_as_run']:.3f}, without a matrix of the ViT that nothing reads {those_used:.3f}, and "
        f"in the last public commit, younger than the text, {last:.2f} (CIFAR-10).",
        ours=those_used,
    )
