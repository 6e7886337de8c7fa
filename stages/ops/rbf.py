"""Hyper radial basis functions: distances, normalised and unnormalised units, attention  (HyperBF paper, eqs. 2-7).

    ‖x - t‖²_W = (x - t)ᵀ Wᵀ W (x - t)                          Mahalanobis-like distance (section 2.1.2)
    K(d²) = exp(-β d²)  Gaussian,   K(d²) = exp(-β d)  Laplacian (footnote 1)
    f(x) = Σ_i y_i K(‖x - x_i‖²) / Σ_i K(‖x - x_i‖²)            (2), normalised unit
    ϕ(x) = Σ_α c_α K(‖x - t_α‖²_W)                              (4), (7), unnormalised unit
    attn(q, k, v) = Σ_i K(‖q - k_i‖²) / Σ_j K(‖q - k_j‖²) v_i   (6), Gaussian with β = 1 / 2σ²

Functions named `…_reference` implement these equations as printed.  The others compute distances by matrix products
(`rbf_distance`) and Gaussian attention without a map of scores (`rbf_fused`); the modules are in `rbf_layers`.
Distances are at least float32, with or without autocast.  W x before them is a linear layer's product, which Gaussian
attention computes in the dtype of its queries.  N queries or samples, T keys or centres, E their width, F width of
values.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from stages.ops.precision import without_autocast
from stages.ops.rbf_distance import require_one_metric, squared_distance
from stages.ops.rbf_fused import gaussian_attention

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
    # Distances below the rounding error are noise, and the gradient of the root is infinite at 0.
    return -beta * d_squared.clamp_min(torch.finfo(d_squared.dtype).eps).sqrt()


_LOG_KERNELS: dict[str, Kernel] = {"gaussian": _log_gaussian, "laplacian": _log_laplacian}


def log_kernel(kernel: str) -> Kernel:
    """Return the logarithm of K as a function of (squared distance, beta).

    Raises:
        ValueError: no kernel has this name.
    """
    if kernel not in _LOG_KERNELS:
        raise ValueError(f"kernel is {kernel!r}; known: {', '.join(_LOG_KERNELS)}")
    return _LOG_KERNELS[kernel]


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
    """HyperBF feed-forward (eq. 7; `normalised`: eq. 2); `weight` and `bias` as in `torch.nn.functional.linear`.

    x: [..., E]; centers: [T, E]; weight: [F, T], column i is v_i; bias: [F]; beta: [T] or a number; returns [..., F].
    """
    rows = x.reshape(-1, x.shape[-1])
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
    """HyperBF attention (eq. 6), beta = 1 / 2σ²; the dtype of q determines the precision of the products.

    q: [..., N, E]; k: [..., T, E]; v: [..., T, F]; metric_factor: W [R, E]; metric: M [E, E]; returns [..., N, F].

    Raises:
        ValueError: no kernel has this name, or both W and M are given.
    """
    require_one_metric(metric_factor, metric)
    log_k = log_kernel(kernel)
    with without_autocast(q.device):
        if kernel == "gaussian":
            return gaussian_attention(q, k, v, beta, metric_factor, metric)
        weights = log_k(squared_distance(q, k, metric_factor=metric_factor, metric=metric), beta).softmax(dim=-1)
        return weights.to(v.dtype) @ v
