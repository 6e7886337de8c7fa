"""Parts that the architectures share: Procedures 1-4 around the blocks, attention (eq. 1), the MLP of eqs. 3-5 and 10.

B batch, C channels, S image size, N tokens, D token dimension, H heads, E = D / H head dimension, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor, nn


def count_patches(image_size: int, patch_size: int) -> int:
    """Return N, the number of patches of a square image (Procedure 1, step 1).

    Raises:
        ValueError: patches of this size don't tile the image.
    """
    if patch_size < 1 or image_size < patch_size or image_size % patch_size:
        raise ValueError(f"patch_size is {patch_size}; expected a divisor of image_size, which is {image_size}")
    return (image_size // patch_size) ** 2


class PatchEmbedding(nn.Module):
    """Cut into patches, flatten, embed linearly (Procedure 1, steps 1-3).  [B, C, S, S] -> [B, N, D], raster order.

    A convolution whose stride equals its kernel size is that linear map.
    """

    def __init__(self, *, image_size: int, in_channels: int, dim: int, patch_size: int) -> None:
        super().__init__()
        self.num_tokens = count_patches(image_size, patch_size)
        self.projection = nn.Conv2d(in_channels, dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, images: Tensor) -> Tensor:
        return self.projection(images).flatten(2).transpose(1, 2)


class TokenClassifier(nn.Module):
    """Procedures 1-4, steps 1-5: patches, blocks, mean over tokens, Linear head.  [B, C, S, S] -> logits [B, K]."""

    def __init__(
        self, patch_embedding: PatchEmbedding, blocks: Iterable[nn.Module], *, dim: int, num_classes: int
    ) -> None:
        super().__init__()
        self.patch_embedding = patch_embedding
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.blocks(self.patch_embedding(images))
        return self.head(tokens.mean(dim=1))


class FeedForward(nn.Module):
    """MLP(x) of eqs. 3, 4, 5 and 10: Linear - GELU - Dropout - Linear - Dropout over the last axis.

    Activation and dropout follow the authors' code; the text names neither.
    """

    def __init__(self, *, dim: int, hidden_dim: int, dropout: float) -> None:
        super().__init__()
        self.expand = nn.Linear(dim, hidden_dim)
        self.contract = nn.Linear(hidden_dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.dropout(nn.functional.gelu(self.expand(x)))
        return self.dropout(self.contract(hidden))


def attention_reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Equation 1 as printed: softmax(QKᵀ / √d_k) V.  q, k, v: [B, H, N, E]; returns [B, H, N, E]."""
    d_k = q.shape[-1]
    return (q @ k.transpose(-2, -1) / math.sqrt(d_k)).softmax(dim=-1) @ v


class MultiHeadAttention(nn.Module):
    """Equation 1 in H parallel heads, then a Linear over the joined heads.  [B, N, D] -> [B, N, D].

    q, k and v are one Linear without bias; no dropout inside, since in the authors' code only the MLP has any.

    Raises:
        ValueError: the heads don't divide `dim`.
    """

    def __init__(self, *, dim: int, num_heads: int) -> None:
        super().__init__()
        if num_heads < 1 or dim % num_heads:
            raise ValueError(f"num_heads is {num_heads}; expected a divisor of dim, which is {dim}")
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.projection = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)  # each [B, H, N, E]
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)  # equals attention_reference
        return self.projection(mixed.transpose(1, 2).flatten(2))
