"""K-FAC by eigendecomposition, the comparison for CG-FAC (Martens and Grosse 2015).

    F ≈ G ⊗ A,   x = Q_G [ (Q_Gᵀ ∇L Q_A) / (λ_G λ_Aᵀ + γ) ] Q_Aᵀ

solves (G ⊗ A + γ I) x = ∇L exactly, the system that CG-FAC solves by iteration.  The two differ only in the solver if
CG-FAC also has running factors (`factor_decay`); without them, its factors are those of one batch.

No library does this: `kfac_pytorch` (KAISA) is not in the package registry, and `curvlinops` runs its own passes over a
data set, which would double the work of a step; it supplies our golden vectors.  Neither solves exactly CG-FAC's system
with this damping and these running factors.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from stages.optim.capture import LayerBatch
from stages.optim.fisher import update_factors
from stages.optim.preconditioned import (
    ATTENTION_LAYERS,
    SHARED_FIELDS,
    PreconditionedOptimizer,
    PreconditionedSpec,
    Rest,
    keywords,
)


class KFAC(PreconditionedOptimizer):
    """Optimiser with running factors of the named layers, updated and decomposed every `update_interval` steps.

    `factor_decay` is the weight of the old factors at an update; the others are `PreconditionedOptimizer`'s arguments.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        damping: float = 0.003,
        factor_decay: float = 0.95,
        update_interval: int = 10,
        kl_clip: float | None = None,
        layers: tuple[str, ...] = ATTENTION_LAYERS,
        rest: Rest = "sgd",
        rest_lr: float | None = None,
    ) -> None:
        if not 0 <= factor_decay < 1:
            raise ValueError(f"factor_decay is {factor_decay}; expected 0 or more and less than 1")
        super().__init__(
            model,
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            betas=betas,
            damping=damping,
            update_interval=update_interval,
            kl_clip=kl_clip,
            layers=layers,
            rest=rest,
            rest_lr=rest_lr,
        )
        self.factor_decay = factor_decay

    def direction(self, state: dict[str, Tensor], gradient: Tensor, batch: LayerBatch | None) -> Tensor:
        if batch is not None:
            update_factors(state, batch, self.factor_decay)
            for side in ("input", "gradient"):
                if not state[f"{side}_factor"].isfinite().all():
                    return torch.full_like(gradient, math.nan)  # diverged: the training loop detects it
                values, vectors = torch.linalg.eigh(state[f"{side}_factor"])
                # Rounding can make values slightly negative, which might outweigh the damping.
                state[f"{side}_values"], state[f"{side}_vectors"] = values.clamp(min=0), vectors
        q_a, q_g = state["input_vectors"], state["gradient_vectors"]
        curvature = state["gradient_values"][:, None] * state["input_values"] + self.damping
        return q_g @ ((q_g.T @ gradient @ q_a) / curvature) @ q_a.T


def build(model: nn.Module, spec: PreconditionedSpec) -> KFAC:
    """Build K-FAC from a spec."""
    return KFAC(model, **keywords(spec, known=SHARED_FIELDS))
