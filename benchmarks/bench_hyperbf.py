"""Goals for HyperBF on a CPU: attention at most 1.3 times the plain one, forward and backward; a training step of the
whole model at least 0.85 times as fast as the ViT's, and 1.5 times as fast as with `torch.cdist` in both units.

Attention has 64 tokens in heads of 64.  The models have the width of 256 in 4 blocks, 4 heads, 64 tokens; both
feed-forwards are 512 wide.  A step is forward, backward and Adam on 64 images, in float32, and beside `torch.cdist`
also in bfloat16 if the processor multiplies in it.  The protocol has 256 images; with fewer, the fixed costs of a step
(Adam, W in the projections) weigh more than they do there.
Run: python -m benchmarks hyperbf
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.timing import Line, compare, has_bfloat16, time_line, training_step
from stages.ops.fast.wide_attention import use_wide_attention
from stages.ops.rbf import rbf_attention
from stages.ops.rbf_layers import RBFAttention, RBFFeedForward
from stages.papers.hyperbf.hyperbf import HyperBF
from stages.papers.hyperbf.vit import ViT

BATCH = 64
SHARED = {
    "image_size": 32,
    "in_channels": 3,
    "num_classes": 100,
    "patch_size": 4,
    "dim": 256,
    "depth": 4,
    "num_heads": 4,
}


class DistanceAttention(RBFAttention):
    """The same unit with the distances of `torch.cdist`."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        assert self.metric_factor is not None
        distance = torch.cdist(F.linear(q, self.metric_factor), F.linear(k, self.metric_factor))
        mixed = (-self.beta * distance.square()).softmax(-1) @ v
        return self.projection(mixed.transpose(1, 2).flatten(2))


class DistanceFeedForward(RBFFeedForward):
    """The same unit with the distances of `torch.cdist`."""

    def forward(self, x: Tensor) -> Tensor:
        return self.values((-self.beta * torch.cdist(x, self.centers).square()).exp())


def vit() -> nn.Module:
    return ViT(**SHARED, hidden_dim=512, scale_exponent=-0.5, has_unused_matrix=False)


def hyperbf() -> nn.Module:
    return HyperBF(
        **SHARED,
        num_centers=512,
        kernel="gaussian",
        attention_metric="factored",
        feedforward_metric="euclidean",
        feedforward_beta=0.001,
        feedforward_bias=False,
        feedforward_normalised=False,
    )


def with_distances() -> nn.Module:
    model = hyperbf()
    for module in model.modules():
        if isinstance(module, RBFAttention):
            module.__class__ = DistanceAttention
        elif isinstance(module, RBFFeedForward):
            module.__class__ = DistanceFeedForward
    return model


def attention() -> Line:
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.randn(8, 4, 64, 64, generator=generator).requires_grad_() for _ in range(3)]
    beta = torch.tensor(0.125, requires_grad=True)

    def ours() -> None:
        rbf_attention(*leaves, beta=beta).sum().backward()

    def peer() -> None:
        F.scaled_dot_product_attention(*leaves).sum().backward()

    result = compare(ours, peer, repeats=101)
    what = "HyperBF attention, 32 heads of 64, 64 tokens"
    return time_line(what, "scaled_dot_product_attention", result, goal=1.3)


def model_line(name: str, peer: nn.Module, goal: float, *, in_bfloat16: bool = False) -> Line:
    steps = [
        training_step(
            model,
            torch.optim.Adam(model.parameters(), lr=1e-4),
            batch=BATCH,
            classes=100,
            in_bfloat16=in_bfloat16,
        )
        for model in (hyperbf(), peer)
    ]
    if in_bfloat16:
        use_wide_attention()
    result = compare(*steps, repeats=15)
    return Line(
        what=f"HyperBF, a training step of {BATCH} images{', bfloat16' * in_bfloat16}",
        peer=f"{name}: {BATCH / result.peer_seconds:.3g} images/s",
        ours=f"{BATCH / result.ours_seconds:.3g} images/s",
        value=result.ratio,
        goal=goal,
        unit="× its speed",
    )


def measure() -> list[Line]:
    lines = [attention(), model_line("ViT", vit(), 0.85), model_line("with torch.cdist", with_distances(), 1.5)]
    if has_bfloat16():
        lines.append(model_line("with torch.cdist", with_distances(), 1.5, in_bfloat16=True))
    return lines
