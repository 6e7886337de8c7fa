"""HyperBF units as modules: attention (HyperBF paper, eq. 6) and feed-forward (eqs. 4, 7; normalised: eq. 2).

The functional forms, the symbols and the distances are in `stages.ops.rbf`.  B batch, N tokens, H heads, T centres.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stages.ops.precision import without_autocast
from stages.ops.rbf import log_kernel, rbf_attention, rbf_feedforward

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
