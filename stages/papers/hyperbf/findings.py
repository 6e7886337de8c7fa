"""Findings on the HyperBF paper's claims that need no training: identities and the matched sizes.

Identities are checked in float64 on vectors drawn once, of the width of a head in the paper's models.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stages.papers.finding import Finding, Statements, prints_as
from stages.papers.hyperbf.hyperbf import HyperBF
from stages.papers.hyperbf.vit import ViT
from stages.rules import Margins

state = Statements(__file__)

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
PUBLIC_PAIRS = {
    "2023_09_08": (20, 20),
    "2023_09_20": (1500, 20),
    "2023_09_26": (1500, 1500),
    "2023_10_06": (3000, 1500),
}
"""Centres of HyperBF and hidden units of the ViT in the authors' code, by the first day of each pair: commits 6b40c6d,
f16f671, f29f8dc, 35c416d.  The last commit's pair, from 9753fbc of 2023-10-30 on, is above."""


def findings(margins: Margins) -> list[Finding]:
    """Return one finding per claim, with the same numbers on every call."""
    return [
        unit_norm_identity(),
        constant_norm_equivalence(),
        removed_assumption(),
        printed_constant(),
        softmax_shift(),
        negative_scores(),
        kernel_regression(),
        matched_parameters(),
    ]


def _draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _squared_distance(q: Tensor, k: Tensor) -> Tensor:
    return (q[:, None, :] - k[None, :, :]).square().sum(dim=-1)


def _largest(x: Tensor) -> float:
    return x.abs().max().item()


def unit_norm_identity() -> Finding:
    q, k = (F.normalize(_draw(64, HEAD_DIM, seed=seed), dim=-1) for seed in (0, 1))
    error = _largest(1 - _squared_distance(q, k) / 2 - q @ k.T)
    return state("hyperbf.identity.unitnorm", error < ROUNDING, computed={"max_abs_error": error})


def constant_norm_equivalence() -> Finding:
    """Check Appendix 6.1, and the gap between the two if keys differ in length, as a transformer's keys do."""
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
    exact = max(errors["max_abs_error_equal_norms"], errors["max_abs_error_equal_key_norms_only"])
    return state("hyperbf.identity.constnorm", exact < ROUNDING, computed=errors)


def removed_assumption() -> Finding:
    """Check section 2.2.1 on norms of 1, with the numbers of Appendix 6.1."""
    errors = constant_norm_equivalence().computed
    constant, unequal = errors["max_abs_error_equal_norms"], errors["max_abs_difference_unequal_key_norms"]

    return state(
        "hyperbf.identity.removed",
        constant < ROUNDING,
        unequal < ROUNDING,
        computed={"max_abs_error_constant_norms": constant, "max_abs_difference_unequal_key_norms": unequal},
        head_dim=HEAD_DIM,
    )


def printed_constant() -> Finding:
    """Check Appendix 6.1's sum; our copy of the text doesn't show how far the bar of its fraction goes."""
    q, k = (norm * F.normalize(_draw(64, HEAD_DIM, seed=seed), dim=-1) for seed, norm in ((0, 2.0), (1, 3.0)))
    squares, distance, dot = 2.0**2 + 3.0**2, _squared_distance(q, k), q @ k.T
    under_one_bar, last_alone = (squares - distance) / 2, squares - distance / 2
    errors = [_largest(under_one_bar - dot), _largest(last_alone - dot)]
    weights = _largest((last_alone.softmax(dim=-1)) - dot.softmax(dim=-1))

    return state(
        "hyperbf.identity.printed",
        errors[0] < ROUNDING,
        errors[1] < ROUNDING,
        weights < ROUNDING,
        computed={
            "identity_error_all_over_two": errors[0],
            "identity_error_last_term_over_two": errors[1],
            "half_sum_of_squared_norms": squares / 2,
            "max_abs_error_of_weights": weights,
        },
    )


def softmax_shift() -> Finding:
    scores, constants = _draw(64, 65, seed=0), 100 * _draw(64, 1, seed=1)
    error = _largest((scores + constants).softmax(dim=-1) - scores.softmax(dim=-1))
    return state("hyperbf.identity.softmaxshift", error < ROUNDING, computed={"max_abs_error": error})


def negative_scores() -> Finding:
    """Check Appendix 6.3, for softmax as a whole and for the exponential in it."""
    negative = -_draw(64, 65, seed=0).square()
    positive = negative - negative.min(dim=-1, keepdim=True).values
    same_weights = _largest(positive.softmax(dim=-1) - negative.softmax(dim=-1))
    flatter = _largest(negative.exp().diff(dim=-1)) / _largest(positive.exp().diff(dim=-1))

    return state(
        "hyperbf.softmax.negative",
        same_weights > ROUNDING,
        flatter < 1,
        computed={
            "max_abs_error_negative_scores_made_positive": same_weights,
            "differences_of_exponentials_negative_over_positive": flatter,
        },
    )


def kernel_regression() -> Finding:
    """Check section 2.1.1: a Nadaraya-Watson estimator is a weighted mean, so it reproduces a constant."""
    x, centres, ones = _draw(64, 8, seed=0), _draw(32, 8, seed=1), torch.ones(32, 1, dtype=torch.float64)
    kernel = (-_squared_distance(x, centres) / 8).exp()
    normalised, plain = (
        _largest(values - 1) for values in (kernel @ ones / kernel.sum(-1, keepdim=True), kernel @ ones)
    )

    return state(
        "hyperbf.kernel_regression",
        normalised < ROUNDING,
        plain < ROUNDING,
        computed={"constant_error_of_equation_2": normalised, "constant_error_of_equation_3": plain},
    )


def _count(model_class: type[nn.Module], image_size: int, num_classes: int, arguments: dict[str, Any]) -> int:
    with torch.device("meta"):
        model = model_class(image_size=image_size, num_classes=num_classes, **COMMON, **arguments)
    return sum(parameter.numel() for parameter in model.parameters())


def matched_parameters() -> Finding:
    """Check section 3.1.1's "consistent parameters": HyperBF's count over the ViT's."""

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
    versions = {
        day: ratio("cifar10", {"hidden_dim": hidden}, {"num_centers": centres})
        for day, (centres, hidden) in PUBLIC_PAIRS.items()
    } | {"2023_10_30": last}

    return state(
        "hyperbf.params.match",
        COMMON["depth"] == COMMON["num_heads"] == 4,
        (prints_as(all_of_them, *PRINTED_RATIO), all_of_them),
        (prints_as(those_used, *PRINTED_RATIO), those_used),
        (
            all(prints_as(value, *PRINTED_RATIO) for value in versions.values()),
            max(versions.values(), key=lambda value: abs(value - 1)),
        ),
        computed=counted
        | used
        | {f"ratio_cifar10_of_{day}": value for day, value in versions.items() if value != last}
        | {"ratio_cifar10_last_public_commit": last},
        ours=those_used,
        all_of_them=all_of_them,
        those_used=those_used,
        ratios=", ".join(f"{value:.2f}" for value in versions.values()),
    )
