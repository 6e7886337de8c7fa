"""A small Vision Transformer for training attention with the paper's optimiser: pre-norm, as section 3.1 prefers.

    P = softmax(Q Kᵀ / √E),   Attention = P V                                      (equation 13, in each head)

B images, C channels, S image size, N tokens, D width, H heads, E = D / H head width, K classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    """Equation 13 in H heads with the projections of equation 19.  [B, N, D] -> [B, N, D].

    `qkv` and `projection` are the layers that CG-FAC and K-FAC optimise by default.
    """

    def __init__(self, *, dim: int, num_heads: int) -> None:
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise ValueError(f"num_heads is {num_heads}; expected a divisor of dim, which is {dim}")
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.projection = nn.Linear(dim, dim)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v, each [B, H, N, E]."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def forward(self, x: Tensor) -> Tensor:
        mixed = nn.functional.scaled_dot_product_attention(*self.heads(x))  # P V
        return self.projection(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention, then an MLP, each with a LayerNorm before it and a shortcut around it.  [B, N, D] -> [B, N, D]."""

    def __init__(self, *, dim: int, num_heads: int, mlp_dim: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = Attention(dim=dim, num_heads=num_heads)
        self.mlp_norm = nn.LayerNorm(dim)
        self.expand = nn.Linear(dim, mlp_dim)
        self.contract = nn.Linear(mlp_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.attention(self.attention_norm(x))
        return y + self.contract(nn.functional.gelu(self.expand(self.mlp_norm(y))))


class ViT(nn.Module):
    """Patches, learned positions, blocks, LayerNorm, mean over tokens, Linear.  [B, C, S, S] -> logits [B, K].

    PyTorch's initialisation, positions from N(0, 0.02²); no class token, so all tokens are equal, as in the paper.
    """

    def __init__(
        self,
        *,
        image_size: int,
        in_channels: int,
        num_classes: int,
        patch_size: int,
        dim: int,
        depth: int,
        num_heads: int,
        mlp_dim: int,
    ) -> None:
        super().__init__()
        if patch_size < 1 or image_size < patch_size or image_size % patch_size:
            raise ValueError(f"patch_size is {patch_size}; expected a divisor of image_size, which is {image_size}")
        self.patch_embedding = nn.Conv2d(in_channels, dim, kernel_size=patch_size, stride=patch_size)
        self.positions = nn.Parameter(torch.randn((image_size // patch_size) ** 2, dim) * 0.02)
        self.blocks = nn.ModuleList(Block(dim=dim, num_heads=num_heads, mlp_dim=mlp_dim) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def embed(self, images: Tensor) -> Tensor:
        """Return the tokens [B, N, D] that enter the first block, in raster order."""
        return self.patch_embedding(images).flatten(2).transpose(1, 2) + self.positions

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.embed(images)
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens).mean(dim=1))
