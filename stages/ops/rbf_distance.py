"""Distances of HyperBF units by matrix products:  ‖x - t‖²_M = xᵀMx + tᵀMt - 2 xᵀMt.

M is WᵀW if W is given (`metric_factor`), or any matrix (`metric`), as in the authors' code: an asymmetric M gives no
quadratic form of x - t, and possibly negative distances.  Computed at least in float32; W x is a linear layer's
product.  Symbols as in `stages.ops.rbf`.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from stages.ops.precision import at_least_float32, without_autocast


def squared_distance(
    x: Tensor, t: Tensor, *, metric_factor: Tensor | None = None, metric: Tensor | None = None
) -> Tensor:
    """Compute `mahalanobis_reference` (or `free_metric_reference`) by matrix products.

    x: [..., N, E]; t: [..., T, E]; metric_factor: W [R, E]; metric: M [E, E]; returns [..., N, T].  Near zero the
    three terms cancel: the error is a rounding error of ‖x‖², so the result may be negative.

    Raises:
        ValueError: both W and M are given.
    """
    require_one_metric(metric_factor, metric)
    with without_autocast(x.device):
        x, t = factored(at_least_float32(x), metric_factor), factored(at_least_float32(t), metric_factor)
        x_metric, x_norm, t_norm = terms(x, t, metric)
        inner = x_metric @ t.mT
        return x_norm[..., :, None] + t_norm[..., None, :] - 2 * inner


def require_one_metric(metric_factor: Tensor | None, metric: Tensor | None) -> None:
    """Raise ValueError if both are given."""
    if metric_factor is not None and metric is not None:
        raise ValueError("metric_factor and metric are both given; expected W, or M, or neither")


def factored(x: Tensor, metric_factor: Tensor | None) -> Tensor:
    """Return W x in the dtype of x."""
    return x if metric_factor is None else F.linear(x, metric_factor.to(x.dtype))


def terms(x: Tensor, t: Tensor, metric: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return xᵀM [..., N, E], xᵀMx [..., N] and tᵀMt [..., T], at least in float32."""
    x, t = at_least_float32(x), at_least_float32(t)
    x_metric = x if metric is None else x @ metric.to(x.dtype)
    t_metric = t if metric is None else t @ metric.to(x.dtype)
    return x_metric, (x_metric * x).sum(dim=-1), (t_metric * t).sum(dim=-1)
