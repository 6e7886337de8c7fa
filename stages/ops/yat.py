"""The Yat product, alignment over distance: dense, convolution, attention      (NMN architecture guide; our numbers).

    h_i(x) = s · (w_i·x + b_i)² / (‖w_i − x‖² + ε)          (1)  dense, one output for each unit i of n
    s = (n / log(1 + n))^α,  α learned                      (2)  the guide's scale
    s = α                                                   (3)  the scale of the released package
    ‖w − x‖² = ‖w‖² + ‖x‖² − 2 w·x                          (4)  the guide's reuse of the dot product
    (Yat-Conv(K, I))_{i,j} = ⟨K, I_{i,j}⟩² / (‖K − I_{i,j}‖² + ε)          (5)
    Yat-Attention(Q, K, V) = softmax(s · (Q ⵟ K)) V,    (Q ⵟ K)_ij = (q_i·k_j)² / (‖q_i − k_j‖² + ε)      (6)
    the released package:    s = α / √E,  α learned, from 1                                                (7)
    its spherical option:    q / √(‖q‖² + ε) for q, the same for k, and 2 − 2 q·k for the distance         (8)

The guide prints a sum over i in front of (1); its own example has one output per unit, and so does the package.
Types narrower than float32 (bfloat16, float16, autocast) are widened to float32 first, and only the result is rounded.
(4) cancels if x is near w: its error is a few units in the last place of ‖w‖² + ‖x‖² + 2|b|, which may exceed ε.  It
is clamped at 0, so responses are never negative or infinite; the clamp's zero gradient is the true one at x = w.

Equation 5 is for every kernel K of an output channel and patch I_{i,j}.  The functions also take the dense layer's
scale and bias, s (⟨K, I⟩ + b)², which the guide doesn't print for convolutions: s = 1 and b = 0 give equation 5.
Patches at the border include the padding: its zeros add nothing to ⟨K, I⟩ and ‖I‖², while ‖K‖² counts the whole
kernel.  In attention, PyTorch's operators round the weights to the values' dtype before they multiply.

B samples, D input features (in attention H·E), N units or output channels, C input channels, G groups, H x W pixels; in
attention H heads, T queries, S keys, E features of a head.
"""

from __future__ import annotations

import math
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.utils import _pair

from stages.ops.fast import attention
from stages.ops.patches import Size, patch_norms
from stages.ops.precision import widen, without_autocast

# Equation 2, equation 3, a constant, or 1.
ScaleReading = Literal["guide", "multiplier"] | float | None
Factor = Tensor | float


def yat_linear_reference(x: Tensor, w: Tensor, b: Tensor, s: Factor, eps: Factor) -> Tensor:
    """Equation 1 as printed, unit by unit.  x: [..., D]; w: [N, D]; b: [N]; returns [..., N]."""
    difference = w - x.unsqueeze(-2)  # [..., N, D]
    return s * ((w * x.unsqueeze(-2)).sum(-1) + b).square() / (difference.square().sum(-1) + eps)


def guide_scale(alpha: Tensor, n: int) -> Tensor:
    """Equation 2."""
    return (n / math.log1p(n)) ** alpha


def yat_ratio(aligned: Tensor, squared_norms: Tensor, scale: Factor, epsilon: Factor) -> Tensor:
    """Return aligned² · scale / (distance + ε) with distance = `squared_norms` − 2 · `aligned` (equation 4).

    If `aligned` includes a bias, w·x + b, pass ‖w‖² + ‖x‖² + 2b, so that the map without the bias isn't needed.
    """
    distance = torch.sub(squared_norms, aligned, alpha=2).clamp(min=0)
    return scale * aligned.square() / (distance + epsilon)


def yat_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, scale: Factor = 1.0, epsilon: Factor = 1e-5
) -> Tensor:
    """Equations 1 and 4 with one matrix product.  x: [..., D]; weight: [N, D]; returns [..., N]."""
    with without_autocast(x.device):
        wide_x, weight, bias = widen(x, weight, bias)
        units = weight.square().sum(-1)
        squared_norms = wide_x.square().sum(-1, keepdim=True) + (units if bias is None else units + 2 * bias)
        return yat_ratio(F.linear(wide_x, weight, bias), squared_norms, scale, epsilon).to(x.dtype)


class YatScale(nn.Module):
    """Scale s for `n` units: equation 2 or 3 with a learned α that starts at 1, or a constant.

    Raises:
        ValueError: the scale is neither a known name nor a number.
    """

    def __init__(self, n: int, reading: ScaleReading, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        if reading is not None and not isinstance(reading, int | float) and reading not in ("guide", "multiplier"):
            raise ValueError(f"scale is {reading!r}; known: guide, multiplier, a number, None")
        self.n, self.reading = n, reading
        self.alpha = nn.Parameter(torch.ones((), device=device, dtype=dtype)) if isinstance(reading, str) else None

    def forward(self) -> Factor:
        if self.alpha is None:
            return 1.0 if self.reading is None else float(cast(float, self.reading))
        alpha = self.alpha.to(torch.promote_types(self.alpha.dtype, torch.float32))
        return guide_scale(alpha, self.n) if self.reading == "guide" else alpha


class YatEpsilon(nn.Module):
    """ε > 0: a constant, or learned as softplus(raw), which starts at `value`.

    Raises:
        ValueError: `value` is not positive.
    """

    def __init__(self, value: float, is_learned: bool, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        if not 0 < value < math.inf:
            raise ValueError(f"epsilon is {value}; expected a positive number")
        self.value = value
        raw = value + math.log(-math.expm1(-value))  # the inverse of softplus, without cancellation
        self.raw = nn.Parameter(torch.full((), raw, device=device, dtype=dtype)) if is_learned else None

    def forward(self) -> Factor:
        if self.raw is None:
            return self.value
        return F.softplus(self.raw.to(torch.promote_types(self.raw.dtype, torch.float32)))


class YatLinear(nn.Linear):
    """Equation 1 in place of `nn.Linear` and its activation.  [..., in_features] -> [..., out_features].

    Weights start as Xavier normal, biases as uniform within 1/√in_features, as in the released package.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        scale: ScaleReading = "guide",
        epsilon: float = 1e-5,
        learnable_epsilon: bool = False,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self.scale = YatScale(out_features, scale, device, dtype)
        self.epsilon = YatEpsilon(epsilon, learnable_epsilon, device, dtype)

    def reset_parameters(self) -> None:
        nn.init.xavier_normal_(self.weight)
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features)
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        return yat_linear(x, self.weight, self.bias, scale=self.scale(), epsilon=self.epsilon())


PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]


def yat_conv2d_reference(
    image: Tensor,
    k: Tensor,
    b: Tensor,
    s: Factor,
    eps: Factor,
    *,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
) -> Tensor:
    """Equation 5 with s and b of equation 1.  image: [B, C, H, W]; k: [N, C / G, kH, kW]; b: [N]."""
    padded = F.pad(image, (padding,) * 4)
    reach_y, reach_x = (dilation * (size - 1) + 1 for size in k.shape[2:])
    rows = []
    for i in range(0, padded.shape[2] - reach_y + 1, stride):
        row = []
        for j in range(0, padded.shape[3] - reach_x + 1, stride):
            patch = padded[:, :, i : i + reach_y : dilation, j : j + reach_x : dilation].unflatten(1, (groups, 1, -1))
            kernels = k.unflatten(0, (groups, -1))  # [G, N / G, C / G, kH, kW], with patches [B, G, 1, C / G, kH, kW]
            dot = (kernels * patch).sum((-3, -2, -1)).flatten(1)
            distance = (kernels - patch).square().sum((-3, -2, -1)).flatten(1)
            row.append(s * (dot + b).square() / (distance + eps))
        rows.append(torch.stack(row, dim=-1))
    return torch.stack(rows, dim=-2)


def yat_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
    *,
    scale: Factor = 1.0,
    epsilon: Factor = 1e-5,
) -> Tensor:
    """Equation 5 by one convolution; arguments as in `F.conv2d`.  x: [B, C, H, W]; weight: [N, C / G, kH, kW]."""
    with without_autocast(x.device):
        wide_x, weight, bias = widen(x, weight, bias)
        aligned = F.conv2d(wide_x, weight, bias, stride, padding, dilation, groups)
        patches = patch_norms(wide_x, weight.shape[2:], _pair(stride), padding, _pair(dilation), groups)
        kernels = weight.square().sum((1, 2, 3))
        if bias is not None:
            kernels = kernels + 2 * bias
        squared_norms = (patches.unsqueeze(2) + kernels.view(groups, -1, 1, 1)).flatten(1, 2)
        return yat_ratio(aligned, squared_norms, scale, epsilon).to(x.dtype)


class YatConv2d(nn.Conv2d):
    """Equation 5 in place of `nn.Conv2d` and its activation, times a scale.  [B, C, H, W] -> [B, out_channels, H', W'].

    n of the guide's scale is `out_channels`.  Weights and biases start as those of `nn.Conv2d`, as in the package.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        scale: ScaleReading = "guide",
        epsilon: float = 1e-5,
        learnable_epsilon: bool = False,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype
        )
        self.scale = YatScale(out_channels, scale, device, dtype)
        self.epsilon = YatEpsilon(epsilon, learnable_epsilon, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        stride: Any = self.stride
        padding: Any = self.padding
        dilation: Any = self.dilation
        if self.padding_mode != "zeros":
            x = F.pad(x, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        return yat_conv2d(
            x,
            self.weight,
            self.bias,
            stride,
            padding,
            dilation,
            self.groups,
            scale=self.scale(),
            epsilon=self.epsilon(),
        )


# s is learned, starting at 1 (the guide), or given by equation 7.
AttentionScale = Literal["learned", "package"]


def yat_attention_reference(q: Tensor, k: Tensor, v: Tensor, s: Factor, eps: Factor) -> Tensor:
    """Equation 6 as printed.  q: [..., T, E]; k: [..., S, E]; v: [..., S, E']; returns [..., T, E']."""
    q, k = q.unsqueeze(-2), k.unsqueeze(-3)
    scores = (q * k).sum(-1).square() / ((q - k).square().sum(-1) + eps)
    return (s * scores).softmax(dim=-1) @ v


def yat_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Factor = 1.0,
    epsilon: Factor = 1e-5,
    is_spherical: bool = False,
) -> Tensor:
    """Equation 6 with the reused dot product; shapes and masks of `F.scaled_dot_product_attention`.

    `attn_mask` is boolean, True if a query may see a key; with `is_causal`, query i sees no key after i either.
    A query that sees no key returns zeros.
    """
    with without_autocast(query.device):
        if attn_mask is None and dropout_p == 0 and not is_spherical:
            fast = attention.attention(query, key, value, scale, epsilon, is_causal=is_causal)
            if fast is not None:
                return fast
        weights = _attention_weights(query, key, attn_mask, is_causal, scale, epsilon, is_spherical)
        if dropout_p > 0:
            weights = F.dropout(weights, dropout_p)
        return (weights.to(value.dtype) @ value).to(query.dtype)


def _attention_weights(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: Factor,
    epsilon: Factor,
    is_spherical: bool,
) -> Tensor:
    """Attention weights [..., T, S], at least float32; rows sum to 1, or to 0 if no key is seen."""
    query, key, _ = widen(query, key, None)
    if is_spherical:
        query, key = (x * (x.square().sum(-1, keepdim=True) + epsilon).rsqrt() for x in (query, key))
        squared_norms = torch.full((), 2.0, device=query.device, dtype=query.dtype)  # as printed: nearly unit vectors
    else:
        squared_norms = query.square().sum(-1).unsqueeze(-1) + key.square().sum(-1).unsqueeze(-2)
    scores = yat_ratio(query @ key.mT, squared_norms, scale, epsilon)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        attn_mask = seen if attn_mask is None else attn_mask & seen
    if attn_mask is None:
        return scores.softmax(dim=-1)
    # The lowest finite number, because -inf would make rows without a key NaN before they are zeroed.
    scores = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1).masked_fill(~attn_mask, 0)


class YatAttention(nn.Module):
    """Multi-head self-attention with equation 6 in each head.  [B, T, D] -> [B, T, D].

    `dropout` acts on the attention weights in training.  Linear maps start as those of `nn.Linear`.

    Raises:
        ValueError: the heads don't divide `embed_dim`, or the scale is unknown.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        scale: AttentionScale = "learned",
        epsilon: float = 1e-5,
        learnable_epsilon: bool = False,
        is_spherical: bool = False,
    ) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"num_heads is {num_heads}; expected a divisor of embed_dim, which is {embed_dim}")
        divisors = {"learned": 1.0, "package": math.sqrt(embed_dim // num_heads)}
        if scale not in divisors:
            raise ValueError(f"scale is {scale!r}; known: {', '.join(divisors)}")
        self.num_heads, self.dropout, self.is_spherical = num_heads, dropout, is_spherical
        self.divisor = divisors[scale]
        self.scale = YatScale(num_heads, "multiplier", device, dtype)
        self.epsilon = YatEpsilon(epsilon, learnable_epsilon, device, dtype)
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias, device, dtype)
        self.projection = nn.Linear(embed_dim, embed_dim, bias, device, dtype)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)  # each [B, H, T, E]
        mixed = yat_attention(
            q,
            k,
            v,
            attn_mask,
            self.dropout if self.training else 0.0,
            is_causal,
            scale=self.scale() / self.divisor,
            epsilon=self.epsilon(),
            is_spherical=self.is_spherical,
        )
        return self.projection(mixed.transpose(1, 2).flatten(2))
