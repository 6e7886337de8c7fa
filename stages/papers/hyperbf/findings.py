"""Findings on the HyperBF paper's claims that need no training: identities and the matched sizes.

Identities are checked in float64 on vectors drawn once, of the width of a head in the paper's models.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stages.papers.finding import Finding, Reading, prints_as
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
PUBLIC_PAIRS = {
    "2023_09_08": (20, 20),
    "2023_09_20": (1500, 20),
    "2023_09_26": (1500, 1500),
    "2023_10_06": (3000, 1500),
}
"""Centres of HyperBF and hidden units of the ViT in the authors' code, by the first day of each pair: commits 6b40c6d,
f16f671, f29f8dc, 35c416d.  The last commit's pair, from 9753fbc of 2023-10-30 on, is above."""


def findings(margins: Margins) -> list[Finding]:
    """One finding per claim; the same numbers on every call."""
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
    return Finding(
        claim="hyperbf.identity.unitnorm",
        holds=error < ROUNDING,
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
    exact = max(errors["max_abs_error_equal_norms"], errors["max_abs_error_equal_key_norms_only"])
    return Finding(
        claim="hyperbf.identity.constnorm",
        holds=exact < ROUNDING,
        computed=errors,
        explanation="Softmax of dot products against softmax of -|q - k|²/2σ² with σ² = √192, in float64: equal where "
        "the keys have one norm, whatever the queries have, and not otherwise.",
    )


def removed_assumption() -> Finding:
    """Section 2.2.1 on norms of 1, by the numbers of Appendix 6.1."""
    errors = constant_norm_equivalence().computed
    constant, unequal = errors["max_abs_error_equal_norms"], errors["max_abs_difference_unequal_key_norms"]
    readings = (
        Reading(
            name="of the value 1",
            text='"see details in Appendix 6.1", which sets ‖q‖ = c₁ and ‖kᵢ‖ = c₂: with any two constants the weights '
            "are the same",
            holds=constant < ROUNDING,
        ),
        Reading(
            name="of equal norms",
            text='the assumption that is "not always met in transformers in common use", whose keys differ in norm: '
            f"the weights of normal keys of width {HEAD_DIM} differ by up to {unequal:.2f}",
            holds=unequal < ROUNDING,
        ),
    )
    return Finding(
        claim="hyperbf.identity.removed",
        computed={"max_abs_error_constant_norms": constant, "max_abs_difference_unequal_key_norms": unequal},
        readings=readings,
        explanation="Softmax of dot products against softmax of -|q - k|²/2σ². Norms of 1 may become constant norms, "
        "which the keys of a transformer don't have either.",
    )


def printed_constant() -> Finding:
    """Appendix 6.1's sum; our copy of the text has lost how far the bar of its fraction goes."""
    q, k = (norm * F.normalize(_draw(64, HEAD_DIM, seed=seed), dim=-1) for seed, norm in ((0, 2.0), (1, 3.0)))
    squares, distance, dot = 2.0**2 + 3.0**2, _squared_distance(q, k), q @ k.T
    under_one_bar, last_alone = (squares - distance) / 2, squares - distance / 2
    errors = [_largest(under_one_bar - dot), _largest(last_alone - dot)]
    weights = _largest((last_alone.softmax(dim=-1)) - dot.softmax(dim=-1))
    readings = (
        Reading(
            name="with all terms over 2",
            text="c₁² + c₂² − ‖q − k‖² over 2, as the law of cosines has it",
            holds=errors[0] < ROUNDING,
        ),
        Reading(
            name="with the last term over 2",
            text="c₁² + c₂² whole, as the bar of the like formula for unit vectors in section 2.2.1 would have it: the "
            "constant is then twice what it should be",
            holds=errors[1] < ROUNDING,
        ),
        Reading(
            name="up to a constant",
            text='"we can safely remove this constant term without affecting the results": the weights are the same '
            "with either constant",
            holds=weights < ROUNDING,
        ),
    )
    return Finding(
        claim="hyperbf.identity.printed",
        computed={
            "identity_error_all_over_two": errors[0],
            "identity_error_last_term_over_two": errors[1],
            "half_sum_of_squared_norms": squares / 2,
            "max_abs_error_of_weights": weights,
        },
        readings=readings,
        explanation="c1² + c2² - |q - k|²/2 against q·k for 64 x 64 pairs with norms 2 and 3, in float64. Nothing that "
        "the appendix concludes depends on the constant.",
    )


def softmax_shift() -> Finding:
    scores, constants = _draw(64, 65, seed=0), 100 * _draw(64, 1, seed=1)
    error = _largest((scores + constants).softmax(dim=-1) - scores.softmax(dim=-1))
    return Finding(
        claim="hyperbf.identity.softmaxshift",
        holds=error < ROUNDING,
        computed={"max_abs_error": error},
        explanation="softmax(x + c) against softmax(x), float64.",
    )


def negative_scores() -> Finding:
    """Appendix 6.3, on softmax as a whole and on the exponential in it."""
    negative = -_draw(64, 65, seed=0).square()
    positive = negative - negative.min(dim=-1, keepdim=True).values
    same_weights = _largest(positive.softmax(dim=-1) - negative.softmax(dim=-1))
    flatter = _largest(negative.exp().diff(dim=-1)) / _largest(positive.exp().diff(dim=-1))
    readings = (
        Reading(
            name="of softmax's output",
            text='"the softmax function tends to be less responsive to negative numbers, leading to less pronounced '
            'differences in its output values": by equation 9 a constant that makes all numbers positive changes no '
            "output",
            holds=same_weights > ROUNDING,
        ),
        Reading(
            name="of its exponentials",
            text="of exp(xᵢ) in its numerator, which is what a kernel without normalisation, equation 7, gives: among "
            "negative numbers its differences are smaller",
            holds=flatter < 1,
        ),
    )
    return Finding(
        claim="hyperbf.softmax.negative",
        computed={
            "max_abs_error_negative_scores_made_positive": same_weights,
            "differences_of_exponentials_negative_over_positive": flatter,
        },
        readings=readings,
        explanation="The same 64 x 65 scores, all negative and made positive by a constant for each row, in float64. "
        'The text says "could potentially affect performance" and trains nothing of it.',
    )


def kernel_regression() -> Finding:
    """Section 2.1.1: a Nadaraya-Watson estimator is a weighted mean, so it gives back a constant."""
    x, centres, ones = _draw(64, 8, seed=0), _draw(32, 8, seed=1), torch.ones(32, 1, dtype=torch.float64)
    kernel = (-_squared_distance(x, centres) / 8).exp()
    normalised, plain = (
        _largest(values - 1) for values in (kernel @ ones / kernel.sum(-1, keepdim=True), kernel @ ones)
    )
    readings = (
        Reading(
            name="of equation 2",
            text="this approximation technique is the normalised form that the section is named after",
            holds=normalised < ROUNDING,
        ),
        Reading(
            name="of equation 3",
            text="the form that is printed last before the sentence; it has no normalisation, and gives no mean",
            holds=plain < ROUNDING,
        ),
    )
    return Finding(
        claim="hyperbf.kernel_regression",
        computed={"constant_error_of_equation_2": normalised, "constant_error_of_equation_3": plain},
        readings=readings,
        explanation="Both forms for yᵢ = 1, at 64 points with 32 centres: a weighted mean gives 1 everywhere.",
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
    versions = {
        day: ratio("cifar10", {"hidden_dim": hidden}, {"num_centers": centres})
        for day, (centres, hidden) in PUBLIC_PAIRS.items()
    } | {"2023_10_30": last}
    readings = (
        Reading(
            name="as settings",
            text='the sentence before it says "4 heads and 4 blocks" of both, and both have them',
            holds=COMMON["depth"] == COMMON["num_heads"] == 4,
        ),
        Reading(
            name="as all parameters of the version that we chose",
            text='"we maintain consistent parameters across both models": as the networks of the public code of 8 to '
            f"17 September 2023 register them, with 20 centres and 20 hidden units. The ratio farthest from 1 is "
            f"{all_of_them:.4f}",
            holds=prints_as(all_of_them, *PRINTED_RATIO),
            ours=all_of_them,
        ),
        Reading(
            name="as its parameters that are used",
            text="the same without a matrix in each block of the ViT that nothing reads. The ratio farthest from 1 is "
            f"{those_used:.4f}",
            holds=prints_as(those_used, *PRINTED_RATIO),
            ours=those_used,
        ),
        Reading(
            name="in every public version",
            text="the text names neither sizes nor a version. Of the authors' five pairs from 8 September to 30 "
            f"October 2023 the ratios are {', '.join(f'{value:.2f}' for value in versions.values())}",
            holds=all(prints_as(value, *PRINTED_RATIO) for value in versions.values()),
            ours=max(versions.values(), key=lambda value: abs(value - 1)),
        ),
    )
    return Finding(
        claim="hyperbf.params.match",
        computed=counted
        | used
        | {f"ratio_cifar10_of_{day}": value for day, value in versions.items() if value != last}
        | {"ratio_cifar10_last_public_commit": last},
        readings=readings,
        explanation="Parameters of HyperBF over those of the ViT, of which the text prints no number. We took 20 "
        "centres and 20 hidden units because they match: so a public version is consistent, and whether Table 2's "
        "networks were is not known.",
        ours=those_used,
    )
