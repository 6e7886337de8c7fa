"""CG-FAC: the natural gradient of named layers by conjugate gradients (Chen 2021, Algorithm 1).

    (F + γ I) x = ∇L,   W ← W − lr x                              (equations 17 and 18, the latter with its sign)

No Fisher matrix is formed, and by default no Kronecker factor larger than the captured tensors.  Differences from the
text are explained in docs/papers/brownian.md.  The paper's public code keeps running factors, as does `factor_decay`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from stages.optim.capture import LayerBatch
from stages.optim.fisher import kronecker_operator, per_sample_product, update_factors
from stages.optim.preconditioned import (
    ATTENTION_LAYERS,
    CG_FIELDS,
    SHARED_FIELDS,
    PreconditionedOptimizer,
    PreconditionedSpec,
    Rest,
    keywords,
)

Reading = Literal["kronecker", "per-sample"]
OPERATORS: dict[Reading, Callable[[LayerBatch], Callable[[Tensor], Tensor]]] = {
    "kronecker": kronecker_operator,
    "per-sample": lambda batch: partial(per_sample_product, batch),
}


def conjugate_gradient(
    product: Callable[[Tensor], Tensor], b: Tensor, start: Tensor | None, *, iterations: int, tolerance: float
) -> Tensor:
    """Solve product(x) ≈ b by Algorithm 1, lines 5-16, for a symmetric positive definite `product`; None starts at 0.

    Ends after `iterations` steps, or as soon as ‖r‖² ≤ tolerance ‖b‖².  A GPU takes steps of length 0 from there on,
    because a check would wait for it.  A `start` at which the quadratic ½ x·Fx − b·x is worse than at zero is dropped,
    so x is always a descent direction.
    """
    scale = b.abs().amax()
    scale = scale.masked_fill(scale == 0, 1.0)
    b = b / scale  # squares of small gradients would underflow
    x, r = torch.zeros_like(b), b
    if start is not None:
        start = start / scale
        residual = b - product(start)
        is_better = (start * (b + residual)).sum() > 0  # minus twice the quadratic at `start`
        x, r = torch.where(is_better, start, x), torch.where(is_better, residual, r)
    p, rho = r, r.square().sum()
    enough = max(tolerance, torch.finfo(b.dtype).eps ** 2) * b.square().sum()  # anything smaller is rounding error
    for _ in range(iterations):
        done = rho <= enough
        if _is_at_hand(done) and done:
            break
        u = product(p)
        alpha = (rho / (p * u).sum()).masked_fill(done, 0.0)
        x = x + alpha * p
        r = r - alpha * u
        rho_next = r.square().sum()
        p = r + (rho_next / rho).masked_fill(done, 0.0) * p
        rho = rho_next
    return x * scale


def _is_at_hand(number: Tensor) -> bool:
    """True if reading the number doesn't wait for a device."""
    return number.device.type == "cpu"


class CGFAC(PreconditionedOptimizer):
    """Algorithm 1 on the named layers.  Arguments in addition to those of `PreconditionedOptimizer`:

    Args:
        cg_iterations: m, the largest number of iterations.
        cg_tolerance: Largest squared residual, relative to that of x = 0.
        warm_start: Start from the previous step's x (the text's "may"); otherwise from zero (the public code).
        reading: Interpretation of Algorithm 1's products; see `stages.optim.fisher`.
        factor_decay: None uses the batch alone, without factors; a number keeps running means of both factors,
            updated every `update_interval` steps.
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
        cg_iterations: int = 10,
        cg_tolerance: float = 0.01,
        warm_start: bool = False,
        reading: Reading = "kronecker",
        factor_decay: float | None = None,
        update_interval: int = 1,
        kl_clip: float | None = None,
        layers: tuple[str, ...] = ATTENTION_LAYERS,
        rest: Rest = "sgd",
        rest_lr: float | None = None,
    ) -> None:
        if reading not in OPERATORS:
            raise ValueError(f"reading is {reading!r}; known: {', '.join(OPERATORS)}")
        if cg_iterations < 1:
            raise ValueError(f"cg_iterations is {cg_iterations}; expected at least 1")
        if not 0 <= cg_tolerance < 1:
            raise ValueError(f"cg_tolerance is {cg_tolerance}; expected 0 or more and less than 1")
        if factor_decay is None and update_interval != 1:
            raise ValueError("update_interval needs factor_decay: without factors nothing outlives the batch")
        if factor_decay is not None and (reading != "kronecker" or not 0 <= factor_decay < 1):
            raise ValueError(f"factor_decay is {factor_decay}; expected 0 or more, less than 1, and reading kronecker")
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
        self.cg_iterations, self.cg_tolerance, self.warm_start = cg_iterations, cg_tolerance, warm_start
        self.factor_decay, self._operator = factor_decay, OPERATORS[reading]

    def fisher_operator(self, state: dict[str, Tensor], batch: LayerBatch | None) -> Callable[[Tensor], Tensor]:
        """Return FV of Algorithm 1: (F + γ I) v as a function of v."""
        if self.factor_decay is not None:
            return lambda v: state["gradient_factor"] @ v @ state["input_factor"] + self.damping * v
        assert batch is not None, "captured at every step"
        product = self._operator(batch)
        return lambda v: torch.add(product(v), v, alpha=self.damping)

    def direction(self, state: dict[str, Tensor], gradient: Tensor, batch: LayerBatch | None) -> Tensor:
        if self.factor_decay is not None and batch is not None:
            update_factors(state, batch, self.factor_decay)
        x = conjugate_gradient(
            self.fisher_operator(state, batch),
            gradient,
            state.get("update"),
            iterations=self.cg_iterations,
            tolerance=self.cg_tolerance,
        )
        if self.warm_start:
            state["update"] = x
        return x


def build(model: nn.Module, spec: PreconditionedSpec) -> CGFAC:
    """Build CG-FAC from a spec."""
    return CGFAC(model, **keywords(spec, known=SHARED_FIELDS + CG_FIELDS))
