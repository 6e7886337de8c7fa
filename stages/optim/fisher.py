"""A layer's Fisher matrix F as a product with a matrix v, in both readings of Algorithm 1 (Chen 2021).

    θ = gᵀ v a,   F v = g θ aᵀ                                    (Algorithm 1, lines 2-3, without damping)

Kronecker:   over all columns at once θ is a square matrix, so F v = (g gᵀ) v (a aᵀ): K-FAC's G ⊗ A.
Per sample:  θ is a number for each sample, and F the mean of vec(∇ℓ) vec(∇ℓ)ᵀ: the empirical Fisher matrix.

B samples, T tokens, N = B T columns, I inputs, O outputs; a [B, T, I], g [B, T, O], v [O, I].  The text leaves the
scale open.  Here A = Σ a aᵀ / N and G = Σ g gᵀ / B, so that both readings estimate the same matrix and agree for one
sample with one token (the "expand" form of Eschenhagen et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from stages.optim.capture import LayerBatch


def kronecker_product_reference(batch: LayerBatch, v: Tensor) -> Tensor:
    """Lines 2-3 as printed, a and g holding all N columns: θ is N × N."""
    a, g = batch.inputs.flatten(0, 1).T, batch.gradients.flatten(0, 1).T  # [I, N], [O, N]
    theta = g.T @ v @ a
    return g @ theta @ a.T / (a.shape[1] * len(batch.inputs))


def kronecker_product(batch: LayerBatch, v: Tensor) -> Tensor:
    """`kronecker_product_reference` in another order of products: 4 N O I multiplications and nothing N × N."""
    a, g = batch.inputs.flatten(0, 1), batch.gradients.flatten(0, 1)  # [N, I], [N, O]
    return g.T @ (g @ ((v @ a.T) @ a)) / (len(a) * len(batch.inputs))


def kronecker_operator(batch: LayerBatch) -> Callable[[Tensor], Tensor]:
    """Return `kronecker_product` as a function of v, for repeated calls.

    A side with more columns than rows is replaced by its Gram matrix, which takes less memory and I² O multiplications
    instead of 2 N I O.
    """
    a, g = batch.inputs.flatten(0, 1), batch.gradients.flatten(0, 1)  # [N, I], [N, O]
    input_side, gradient_side = _side(a / (len(a) * len(batch.inputs)) ** 0.5), _side(g)
    return lambda v: gradient_side(input_side(v.T).T)


def _side(columns: Tensor) -> Callable[[Tensor], Tensor]:
    """Return multiplication by columnsᵀ columns [M, M].  columns: [N, M]; maps [M, K] to [M, K]."""
    if len(columns) < columns.shape[1]:
        return lambda v: columns.T @ (columns @ v)
    gram = columns.T @ columns
    return lambda v: gram @ v


def per_sample_product_reference(batch: LayerBatch, v: Tensor) -> Tensor:
    """Lines 2-3, one sample after the other; ∇ℓ = Σ g aᵀ over the sample's tokens, θ = ⟨∇ℓ, v⟩."""
    total = v.new_zeros(v.shape)
    for a, g in zip(batch.inputs, batch.gradients, strict=True):
        gradient = g.T @ a
        theta = (gradient * v).sum()
        total += gradient * theta
    return total / len(batch.inputs)


def per_sample_product(batch: LayerBatch, v: Tensor) -> Tensor:
    """`per_sample_product_reference` for all samples at once, without a gradient matrix for each."""
    theta = (batch.gradients * (batch.inputs @ v.T)).sum(dim=(1, 2))  # [B]
    weighted = batch.gradients * theta[:, None, None]
    return weighted.flatten(0, 1).T @ batch.inputs.flatten(0, 1) / len(batch.inputs)


def kronecker_factors(batch: LayerBatch) -> tuple[Tensor, Tensor]:
    """Return (A [I, I], G [O, O]), such that `kronecker_product` is G v A."""
    a, g = batch.inputs.flatten(0, 1), batch.gradients.flatten(0, 1)
    return a.T @ a / len(a), g.T @ g / len(batch.inputs)


def update_factors(state: dict[str, Tensor], batch: LayerBatch, decay: float) -> None:
    """Update running means of both factors in a layer's state, which start at the identity as in the public code."""
    for name, factor in zip(("input_factor", "gradient_factor"), kronecker_factors(batch), strict=True):
        if name not in state:
            state[name] = factor.new_ones(len(factor)).diag()
        state[name].mul_(decay).add_(factor, alpha=1 - decay)
