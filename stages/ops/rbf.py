"""Hyper radial basis functions: distances, normalised and unnormalised units, attention  (HyperBF paper, eqs. 2-7).

    ‖x - t‖²_W = (x - t)ᵀ Wᵀ W (x - t)                          Mahalanobis-like distance (section 2.1.2)
    K(d²) = exp(-β d²)  Gaussian,   K(d²) = exp(-β d)  Laplacian (footnote 1)
    f(x) = Σ_i y_i K(‖x - x_i‖²) / Σ_i K(‖x - x_i‖²)            (2), normalised unit
    ϕ(x) = Σ_α c_α K(‖x - t_α‖²_W)                              (4), (7), unnormalised unit
    attn(q, k, v) = Σ_i K(‖q - k_i‖²) / Σ_j K(‖q - k_j‖²) v_i   (6), Gaussian with β = 1 / 2σ²

The fast forms use ‖x - t‖²_M = x·M x + t·M t - 2 x·M t.  M is WᵀW where W is given (`metric_factor`), or any matrix
(`metric`), as in the authors' code: without symmetry it is not a quadratic form of x - t, and may be negative.
Distances are computed in float32 at least, with or without autocast; W x before them is a linear layer's product, and
Gaussian attention computes it in the dtype of its queries.  N queries or samples, T keys or centres, E their width,
F width of values.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stages.ops import attention_native, similarity_native

Kernel = Callable[[Tensor, Tensor | float], Tensor]


def gaussian_reference(d_squared: Tensor, beta: Tensor | float) -> Tensor:
    """K of equation 4: exp(-‖x - z‖²_W / L) with β = 1 / L."""
    return torch.exp(-beta * d_squared)


def laplacian_reference(d_squared: Tensor, beta: Tensor | float) -> Tensor:
    """K of footnote 1, which gives no formula: exp(-β ‖x - z‖_W)."""
    return torch.exp(-beta * d_squared.sqrt())


def mahalanobis_reference(x: Tensor, t: Tensor, w: Tensor) -> Tensor:
    """(x - t)ᵀ WᵀW (x - t) as printed.  x: [..., N, E]; t: [..., T, E]; w: [R, E]; returns [..., N, T]."""
    w_delta = (x[..., :, None, :] - t[..., None, :, :]) @ w.T
    return (w_delta * w_delta).sum(dim=-1)


def free_metric_reference(x: Tensor, t: Tensor, m: Tensor) -> Tensor:
    """xᵀMx + tᵀMt - 2 xᵀMt, the authors' code.  x: [..., N, E]; t: [..., T, E]; m: [E, E]; returns [..., N, T]."""
    x_m_x = torch.einsum("...ne,ef,...nf->...n", x, m, x)
    t_m_t = torch.einsum("...te,ef,...tf->...t", t, m, t)
    return x_m_x[..., :, None] + t_m_t[..., None, :] - 2 * torch.einsum("...ne,ef,...tf->...nt", x, m, t)


def normalised_rbf_reference(kernel_values: Tensor, y: Tensor) -> Tensor:
    """Equations 2 and 6: Σ_i y_i K_i / Σ_i K_i.  kernel_values: [..., N, T]; y: [..., T, F]; returns [..., N, F]."""
    return (kernel_values @ y) / kernel_values.sum(dim=-1, keepdim=True)


def rbf_attention_reference(q: Tensor, k: Tensor, v: Tensor, sigma: Tensor | float, w: Tensor) -> Tensor:
    """Equation 6 with the distance of section 2.1.2.  q: [..., N, E]; k: [..., T, E]; v: [..., T, F]; w: [R, E]."""
    return normalised_rbf_reference(torch.exp(-mahalanobis_reference(q, k, w) / (2 * sigma**2)), v)


def rbf_feedforward_reference(x: Tensor, t: Tensor, c: Tensor, beta: Tensor, w: Tensor) -> Tensor:
    """Equations 4 and 7, Gaussian.  x: [..., N, E]; t: [T, E]; c: [T, F]; beta: [T]; w: [R, E]; returns [..., N, F]."""
    return gaussian_reference(mahalanobis_reference(x, t, w), beta) @ c


def _log_gaussian(d_squared: Tensor, beta: Tensor | float) -> Tensor:
    return -beta * d_squared


def _log_laplacian(d_squared: Tensor, beta: Tensor | float) -> Tensor:
    # Below the rounding of the identity a distance has no digits, and its root has no finite gradient.
    return -beta * d_squared.clamp_min(torch.finfo(d_squared.dtype).eps).sqrt()


_LOG_KERNELS: dict[str, Kernel] = {"gaussian": _log_gaussian, "laplacian": _log_laplacian}


def log_kernel(kernel: str) -> Kernel:
    """Logarithm of K as a function of (squared distance, beta).

    Raises:
        ValueError: no kernel has this name.
    """
    if kernel not in _LOG_KERNELS:
        raise ValueError(f"kernel is {kernel!r}; known: {', '.join(_LOG_KERNELS)}")
    return _LOG_KERNELS[kernel]


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Switch autocast off; some devices, such as meta, have none."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _factored(x: Tensor, metric_factor: Tensor | None) -> Tensor:
    """W x, in the dtype of x."""
    return x if metric_factor is None else F.linear(x, metric_factor.to(x.dtype))


def _terms(x: Tensor, t: Tensor, metric: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """(xᵀM, xᵀMx, tᵀMt), in float32 at least."""
    x, t = _at_least_float32(x), _at_least_float32(t)
    x_metric = x if metric is None else x @ metric.to(x.dtype)
    t_metric = t if metric is None else t @ metric.to(x.dtype)
    return x_metric, (x_metric * x).sum(dim=-1), (t_metric * t).sum(dim=-1)


def _require_one_metric(metric_factor: Tensor | None, metric: Tensor | None) -> None:
    if metric_factor is not None and metric is not None:
        raise ValueError("metric_factor and metric are both given; expected W, or M, or neither")


def _expanded(
    x: Tensor, t: Tensor, metric_factor: Tensor | None, metric: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(xᵀMt [..., N, T], xᵀMx [..., N], tᵀMt [..., T]) for M, or WᵀW, or the identity, in float32 at least."""
    _require_one_metric(metric_factor, metric)
    x, t = _factored(_at_least_float32(x), metric_factor), _factored(_at_least_float32(t), metric_factor)
    x_metric, x_norm, t_norm = _terms(x, t, metric)
    return x_metric @ t.mT, x_norm, t_norm


def squared_distance(
    x: Tensor, t: Tensor, *, metric_factor: Tensor | None = None, metric: Tensor | None = None
) -> Tensor:
    """`mahalanobis_reference` (or `free_metric_reference`) by matrix products, in float32 at least.

    x: [..., N, E]; t: [..., T, E]; metric_factor: W [R, E]; metric: M [E, E]; returns [..., N, T].  Close to zero the
    three terms cancel: the error is the rounding of ‖x‖², and may be negative.
    """
    with without_autocast(x.device):
        inner, x_norm, t_norm = _expanded(x, t, metric_factor, metric)
        return x_norm[..., :, None] + t_norm[..., None, :] - 2 * inner


def _gaussian_values(
    x: Tensor, t: Tensor, beta: Tensor | float, metric_factor: Tensor | None, metric: Tensor | None
) -> Tensor | None:
    """K(‖x - t‖²) for the Gaussian [N, T], if C++ can compute it in one pass."""
    with without_autocast(x.device):
        if metric is not None:
            return similarity_native.gaussian(*_expanded(x, t, metric_factor, metric), beta)
        x, t = _factored(_at_least_float32(x), metric_factor), _factored(_at_least_float32(t), metric_factor)
        return similarity_native.gaussian_linear(x, t, beta)


def rbf_feedforward(
    x: Tensor,
    centers: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    beta: Tensor | float,
    metric_factor: Tensor | None = None,
    metric: Tensor | None = None,
    kernel: str = "gaussian",
    normalised: bool = False,
) -> Tensor:
    """HyperBF feed-forward (eq. 7; `normalised`: eq. 2), with `weight` and `bias` as `torch.nn.functional.linear` has.

    x: [..., E]; centers: [T, E]; weight: [F, T], column i is v_i; bias: [F]; beta: [T] or a number; returns [..., F].
    """
    rows = x.reshape(-1, x.shape[-1])
    if kernel == "gaussian" and not normalised and similarity_native.applies(centers):
        fast = _gaussian_values(rows, centers, beta, metric_factor, metric)
        if fast is not None:
            return F.linear(fast.to(x.dtype), weight, bias).unflatten(0, x.shape[:-1])
    d_squared = squared_distance(rows, centers, metric_factor=metric_factor, metric=metric)
    log_k = log_kernel(kernel)(d_squared, beta)
    kernel_values = log_k.softmax(dim=-1) if normalised else log_k.exp()
    return F.linear(kernel_values.to(x.dtype), weight, bias).unflatten(0, x.shape[:-1])


def rbf_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    beta: Tensor | float,
    metric_factor: Tensor | None = None,
    metric: Tensor | None = None,
    kernel: str = "gaussian",
) -> Tensor:
    """HyperBF attention (eq. 6), beta = 1 / 2σ²; the dtype of q decides the precision of the products.

    q: [..., N, E]; k: [..., T, E]; v: [..., T, F]; metric_factor: W [R, E]; metric: M [E, E]; returns [..., N, F].
    The Gaussian runs in C++, or as torch's fused attention: what depends on the query alone cancels in the
    normalisation, so -β‖q - k‖² is the inner product of (2βq, 1) and (k, -β‖k‖²).  The Laplacian has no such form.
    """
    _require_one_metric(metric_factor, metric)
    log_k = log_kernel(kernel)
    with without_autocast(q.device):
        if kernel != "gaussian":
            weights = log_k(squared_distance(q, k, metric_factor=metric_factor, metric=metric), beta).softmax(dim=-1)
            return weights.to(v.dtype) @ v
        # The norm is that of the rounded key, so that the score is the exact distance of rounded vectors.
        q, k = _factored(q, metric_factor), _factored(k, metric_factor)
        q_metric, k_norm = q, None  # the squared norm, which the fast path computes anyway
        if metric is not None:
            q_metric, _, k_norm = _terms(q, k, metric)
        fast = attention_native.attention(q_metric, k, v, beta, None, key_terms=k_norm)
        if fast is not None:
            return fast
        if k_norm is None:
            q_metric, _, k_norm = _terms(q, k, None)
        columns = _split(-beta * k_norm, k.dtype)
        # The fused kernels need one width in all three, a multiple of 8; the query's padding holds the ones.
        width = max(k.shape[-1] + columns.shape[-1], v.shape[-1])
        width += -width % 8
        query = F.pad((2 * beta * q_metric).to(q.dtype), (0, width - q.shape[-1]), value=1.0)
        zeros = k.new_zeros(*k.shape[:-1], width - k.shape[-1] - columns.shape[-1])
        key = torch.cat([k, columns, zeros], dim=-1)
        value = F.pad(v, (0, width - v.shape[-1]))
        return F.scaled_dot_product_attention(query, key, value, scale=1.0)[..., : v.shape[-1]]


def _split(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Columns in `dtype` whose sum is x: one if that holds all digits, else two.  [...] -> [..., C]."""
    leading = x.to(dtype)
    if dtype == x.dtype:
        return leading[..., None]
    return torch.stack([leading, (x - leading).to(dtype)], dim=-1)
