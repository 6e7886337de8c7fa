"""HyperBF transformer, the proposed architecture (HyperBF paper, eqs. 1, 6 and 7).

    y = x + HyperBF(LayerNorm(x + HyperBF(LayerNorm(x))))     (1)

The first HyperBF is `RBFAttention` (6), the second `RBFFeedForward` (7), both from `stages.ops.rbf`.  The
authors' code adds the second to the first one's sum (`HyperBF`); equation 1 adds it to x (`HyperBFAsWritten`).
"""

from __future__ import annotations

import torch

from stages.ops.rbf import RBFAttention, RBFFeedForward
from stages.papers.hyperbf.vit import AsWrittenBlock, Block, TokenClassifier, TokenEmbedding


class HyperBF(TokenClassifier):
    """Normalised images [B, C, S, S] -> logits [B, K].

    A metric is "euclidean" (M = I), "factored" (M = WᵀW, W learned) or "free" (M learned, the authors' code).  Betas
    are the initial values of the learned ones, 1 / 2σ²; for attention, None is head_dim^-0.5.  `position_image_size` is
    the image size that the position table is built for, None for the images' own.
    """

    block_class: type[Block] = Block

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
        num_centers: int,
        kernel: str,
        attention_metric: str,
        attention_beta: float | None = None,
        feedforward_metric: str,
        feedforward_beta: float,
        feedforward_bias: bool,
        feedforward_normalised: bool,
        position_image_size: int | None = None,
    ) -> None:
        blocks = (
            self.block_class(
                dim=dim,
                attention=RBFAttention(dim, num_heads, metric=attention_metric, kernel=kernel, beta=attention_beta),
                feedforward=RBFFeedForward(
                    dim,
                    num_centers,
                    dim,
                    bias=feedforward_bias,
                    metric=feedforward_metric,
                    kernel=kernel,
                    beta=feedforward_beta,
                    normalised=feedforward_normalised,
                ),
            )
            for _ in range(depth)
        )
        embedding = TokenEmbedding(
            image_size=image_size,
            in_channels=in_channels,
            patch_size=patch_size,
            dim=dim,
            position_image_size=position_image_size,
        )
        super().__init__(embedding=embedding, blocks=blocks, dim=dim, num_classes=num_classes)

    def observe_kernels(self) -> dict[str, list[float]]:
        """Return the quantities of the paper's section 4 and appendix 6.2, one number per block.

        σ = (2β)^-1/2 of attention and (mean over centres) of the feed-forward, nan if a beta became negative; and
        ‖M - I‖ / ‖I‖ (Frobenius) of each learned metric, which is 0 at the start.
        """
        observed: dict[str, list[float]] = {}
        for name, unit in self.named_modules():
            if isinstance(unit, RBFAttention | RBFFeedForward):
                layer = name.rpartition(".")[2]
                observed.setdefault(f"{layer}_sigma", []).append((2 * unit.beta).rsqrt().mean().item())
                factor = unit.metric_factor
                metric = unit.metric if factor is None else factor.T @ factor
                if metric is not None:  # it is learned
                    eye = torch.eye(len(metric), device=metric.device)
                    change = (metric - eye).norm() / eye.norm()
                    observed.setdefault(f"{layer}_metric_change", []).append(change.item())
        return observed


class HyperBFAsWritten(HyperBF):
    """`HyperBF` with equation 1's residuals as printed: attention reaches the output only through the second unit."""

    block_class = AsWrittenBlock
