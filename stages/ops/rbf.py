"""Hyper radial basis functions: distances, normalised and unnormalised units, attention  (HyperBF paper, eqs. 2-7).

    ‖x - t‖²_W = (x - t)ᵀ Wᵀ W (x - t)                          Mahalanobis-like distance (section 2.1.2)
    K(d²) = exp(-β d²)  Gaussian,   K(d²) = exp(-β d)  Laplacian (footnote 1)
    f(x) = Σ_i y_i K(‖x - x_i‖²) / Σ_i K(‖x - x_i‖²)            (2), normalised unit
    ϕ(x) = Σ_α c_α K(‖x - t_α‖²_W)                              (4), (7), unnormalised unit
    attn(q, k, v) = Σ_i K(‖q - k_i‖²) / Σ_j K(‖q - k_j‖²) v_i   (6), Gaussian with β = 1 / 2σ²

Functions named `…_reference` implement these equations as printed.  The others compute distances by matrix products,

    ‖x - t‖²_M = xᵀMx + tᵀMt - 2 xᵀMt.

M is WᵀW if W is given (`metric_factor`), or any matrix (`metric`), as in the authors' code: an asymmetric M gives no
quadratic form of x - t, and possibly negative distances.  Distances are at least float32, with or without autocast.
W x before them is a linear layer's product, which Gaussian attention computes in the dtype of its queries.

Gaussian attention needs no map of scores, in C++ or by PyTorch's fused attention: terms of the query alone cancel in
the normalisation, so -β‖q - k‖² becomes s (2 q·k - ‖k‖²) with s = β, the inner product of (2βq, 1) and (k, -β‖k‖²).

B batch, H heads, N tokens, queries or samples, T keys or centres, E their width, F width of values.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stages.ops.fast import attention
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


def gaussian_attention(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor | float, metric_factor: Tensor | None, metric: Tensor | None
) -> Tensor:
    """Equation 6 in the dtype of q.  q: [..., N, E]; k: [..., T, E]; v: [..., T, F]; returns [..., N, F]."""
    # The norm is taken of the rounded key, so that the score is the exact distance of rounded vectors.
    q, k = factored(q, metric_factor), factored(k, metric_factor)
    q_metric, k_norm = q, None  # None: the squared norm, which the fast path computes itself
    if metric is not None:
        q_metric, _, k_norm = terms(q, k, metric)
    fast = attention.attention(q_metric, k, v, beta, None, key_terms=k_norm)
    if fast is not None:
        return fast
    if k_norm is None:
        q_metric, _, k_norm = terms(q, k, None)
    columns = _split(-beta * k_norm, k.dtype)
    # Fused kernels need the same width for query, key and value, a multiple of 8; the query's padding holds the ones.
    width = max(k.shape[-1] + columns.shape[-1], v.shape[-1])
    width += -width % 8
    query = F.pad((2 * beta * q_metric).to(q.dtype), (0, width - q.shape[-1]), value=1.0)
    zeros = k.new_zeros(*k.shape[:-1], width - k.shape[-1] - columns.shape[-1])
    key = torch.cat([k, columns, zeros], dim=-1)
    value = F.pad(v, (0, width - v.shape[-1]))
    return F.scaled_dot_product_attention(query, key, value, scale=1.0)[..., : v.shape[-1]]


def _split(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Split x into columns of `dtype` with sum x: one if `dtype` holds all digits, else two.  [...] -> [..., C]."""
    leading = x.to(dtype)
    if dtype == x.dtype:
        return leading[..., None]
    return torch.stack([leading, (x - leading).to(dtype)], dim=-1)


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


Device = torch.device | str | None
METRICS = ("euclidean", "factored", "free")


def _register_metric(module: nn.Module, metric: str, dim: int, device: Device, dtype: torch.dtype | None) -> None:
    """Register the metric's parameters, starting at the identity: W of M = WᵀW ("factored"), M ("free"), or neither.

    Raises:
        ValueError: no metric has this name.
    """
    if metric not in METRICS:
        raise ValueError(f"metric is {metric!r}; known: {', '.join(METRICS)}")
    for name, kind in (("metric_factor", "factored"), ("metric", "free")):
        module.register_parameter(
            name, nn.Parameter(torch.eye(dim, device=device, dtype=dtype)) if metric == kind else None
        )


def _is_plain(layer: nn.Module) -> bool:
    """True if the layer is an unmodified Linear without hooks (such as K-FAC's)."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return type(layer) is nn.Linear and not any(hooks)


class RBFAttention(nn.Module):
    """Multi-head self-attention of HyperBF units, then a Linear over the joined heads (eq. 6).

    The heads share one metric (over a head's width) and one learned beta = 1 / 2σ², which starts at head_dim^-0.5
    unless given, the factor 1/√d of the paper's appendix 6.3.  [B, N, embed_dim] -> [B, N, embed_dim].

    Raises:
        ValueError: the heads don't divide `embed_dim`, or kernel or metric is unknown.
    """

    metric_factor: nn.Parameter | None
    metric: nn.Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        bias: bool = False,
        metric: str = "factored",
        kernel: str = "gaussian",
        beta: float | None = None,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"num_heads is {num_heads}; expected a divisor of embed_dim, which is {embed_dim}")
        log_kernel(kernel)
        head_dim = embed_dim // num_heads
        self.num_heads, self.kernel = num_heads, kernel
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=bias, device=device, dtype=dtype)
        self.projection = nn.Linear(embed_dim, embed_dim, device=device, dtype=dtype)
        self.beta = nn.Parameter(torch.full((), head_dim**-0.5 if beta is None else beta, device=device, dtype=dtype))
        _register_metric(self, metric, head_dim, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        metric_factor = self.metric_factor
        if metric_factor is None or x.numel() <= x.shape[-1] ** 2 or not _is_plain(self.qkv):
            projected = self.qkv(x)
        else:  # with more tokens than D, (W Q) x costs less than W (Q x), and differs from it by rounding
            folded = {name: self._with_metric(parameter) for name, parameter in self.qkv.named_parameters()}
            projected, metric_factor = F.linear(x, **folded), None
        q, k, v = projected.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)  # each [B, H, N, E]
        mixed = rbf_attention(
            q, k, v, beta=self.beta, metric_factor=metric_factor, metric=self.metric, kernel=self.kernel
        )
        return self.projection(mixed.transpose(1, 2).flatten(2))

    def _with_metric(self, parameter: Tensor) -> Tensor:
        """Multiply the query and key parts of a parameter [3 D, ...] of `qkv` by W, in the parameter's precision."""
        assert self.metric_factor is not None
        with without_autocast(parameter.device):
            heads = parameter.reshape(3 * self.num_heads, len(self.metric_factor), -1)
            queries_and_keys, values = heads.split([2 * self.num_heads, self.num_heads])
            metric_factors = self.metric_factor.to(parameter.dtype).expand(len(queries_and_keys), -1, -1)
            measured = torch.bmm(metric_factors, queries_and_keys)
            return torch.cat([measured, values]).reshape(parameter.shape)


class RBFFeedForward(nn.Module):
    """HyperBF feed-forward: kernels around learned centres, then a Linear of their values (eq. 7; normalised: eq. 2).

    Centres start as standard normal; each has a learned beta.  [..., in_features] -> [..., out_features].
    If beta is too large for the width, units are dead: with |x|² = |t|² = E the kernel starts near exp(-2Eβ).
    """

    metric_factor: nn.Parameter | None
    metric: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        num_centers: int,
        out_features: int,
        bias: bool = True,
        metric: str = "euclidean",
        kernel: str = "gaussian",
        beta: float = 0.001,
        normalised: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        log_kernel(kernel)
        self.kernel, self.normalised = kernel, normalised
        self.centers = nn.Parameter(torch.randn(num_centers, in_features, device=device, dtype=dtype))
        self.beta = nn.Parameter(torch.full((num_centers,), beta, device=device, dtype=dtype))
        self.values = nn.Linear(num_centers, out_features, bias=bias, device=device, dtype=dtype)
        _register_metric(self, metric, in_features, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return rbf_feedforward(
            x,
            self.centers,
            self.values.weight,
            self.values.bias,
            beta=self.beta,
            metric_factor=self.metric_factor,
            metric=self.metric,
            kernel=self.kernel,
            normalised=self.normalised,
        )
