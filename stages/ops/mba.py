"""Multi-bias activation: K copies of each input, each with its own bias    (Li et al. 2016; Metta et al., eq. 3).

    z_i = Σ_j Σ_k w_ijk φ(b_j^(k) + z_j)

φ is ReLU.  The activation outputs the K m maps φ(b_j^(k) + z_j), with copy k of input j at index j K + k.  The next
linear layer sums them; its weights [n, m, K] are stored as [n, m K].  B batch, m inputs, n outputs, K copies.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def mba_reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Equation 3 as printed.  x: [B, m]; weight: [n, m, K]; bias: [m, K]; returns [B, n]."""
    z, w, b = x[:, None, :, None], weight, bias
    return (w * (b + z).relu()).sum((-2, -1))


def mba(x: Tensor, bias: Tensor) -> Tensor:
    """Return the activated copies of equation 3.  x: [B, m, ...]; bias: [m, K]; returns [B, m K, ...].

    Raises:
        ValueError: the biases don't match x's channels.
    """
    if bias.ndim != 2 or x.shape[1] != bias.shape[0]:
        raise ValueError(f"x and bias have shapes {[*x.shape]}, {[*bias.shape]}; expected [B, m, ...], [m, K]")
    spread = bias.view(*bias.shape, *[1] * (x.ndim - 2))
    return (spread + x.unsqueeze(2)).relu().flatten(1, 2)


class MBA(nn.Module):
    """Equation 3's activation in place of ReLU; the next layer has `copies` times the inputs.  Biases start at 0."""

    def __init__(
        self,
        num_features: int,
        copies: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_features, self.copies = num_features, copies
        self.bias = nn.Parameter(torch.zeros(num_features, copies, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return mba(x, self.bias)

    def extra_repr(self) -> str:
        return f"{self.num_features}, copies={self.copies}"
