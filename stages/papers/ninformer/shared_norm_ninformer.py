"""NiNformer as the authors' code runs it: equations 9 and 10 share one LayerNorm module, so one scale and one shift.

    Y(X) = Gating(LayerNorm(X)) + X        (9)
    Z(Y) = MLP(LayerNorm(Y)) + Y           (10)

B batch, N tokens, D token dimension.
"""

from __future__ import annotations

from torch import Tensor, nn

from stages.papers.ninformer.layers import FeedForward
from stages.papers.ninformer.ninformer import GatingUnit, NiNformer


class SharedNormBlock(nn.Module):
    """Equations 9 and 10 with the same LayerNorm.  [B, N, D] -> [B, N, D]."""

    def __init__(
        self, *, num_tokens: int, dim: int, mlp_dim: int, token_dim: int, channel_dim: int, dropout: float
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.gating = GatingUnit(
            num_tokens=num_tokens, dim=dim, token_dim=token_dim, channel_dim=channel_dim, dropout=dropout
        )
        self.mlp = FeedForward(dim=dim, hidden_dim=mlp_dim, dropout=dropout)

    def forward(self, x: Tensor) -> Tensor:
        y = self.gating(self.norm(x)) + x
        return self.mlp(self.norm(y)) + y


class SharedNormNiNformer(NiNformer):
    """`NiNformer` with `SharedNormBlock`s."""

    block_class = SharedNormBlock
