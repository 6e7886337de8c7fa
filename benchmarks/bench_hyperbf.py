"""Goals for HyperBF on a CPU, against the fastest of all that is written with PyTorch alone: attention and a training
step of the whole model 1.2 times as fast.  Beside PyTorch's plain attention, at most 1.3 times its time; beside the
ViT, a step at least 0.85 times as fast.

Peers of attention: `torch.cdist`, the distance by a matrix product, and PyTorch's fused attention on vectors with the
norms appended, each eager and compiled.  Peers of a step: the model with `torch.cdist` in both units, and ours without
our C++, each eager and compiled, with a fused Adam.  Ours is eager, or compiled with a fused Adam, as trainings are.
Attention has 64 tokens in heads of 64.  The models have the width of 256 in 4 blocks, 4 heads, 64 tokens; both
feed-forwards are 512 wide.  A step is forward, backward and Adam on 64 images, in float32, and in bfloat16 if the
processor multiplies in it.  At most: if all but the peer's products cost nothing.
Run: python -m benchmarks hyperbf
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.timing import (
    Line,
    Step,
    compiled_apart,
    eager_and_compiled,
    has_bfloat16,
    passes,
    pytorch_alone,
    race,
    training_step,
    without_cpp,
)
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


def attention() -> list[Line]:
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.randn(8, 4, 64, 64, generator=generator).requires_grad_() for _ in range(3)]
    beta = torch.tensor(0.125, requires_grad=True)

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return rbf_attention(q, k, v, beta=beta)

    def by_cdist(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (-beta * torch.cdist(q, k).square()).softmax(-1) @ v

    def by_products(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        norms = q.square().sum(-1, keepdim=True) + k.square().sum(-1).unsqueeze(-2)
        return (beta * (2 * q @ k.mT - norms)).softmax(-1) @ v

    def fused_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with pytorch_alone():
            return rbf_attention(q, k, v, beta=beta)

    peers = {
        **eager_and_compiled("torch.cdist", by_cdist),
        **eager_and_compiled("products", by_products),
        "fused attention with norms": fused_attention,
    }
    own = passes(eager_and_compiled("ours", ours), leaves)
    plain = passes(eager_and_compiled("scaled_dot_product_attention", F.scaled_dot_product_attention), leaves)
    what = "HyperBF attention, 32 heads of 64, 64 tokens"
    return [
        race(own, passes(peers, leaves), rounds=101).line(what, 1.2),
        race(own, plain, rounds=101).cost(f"{what}, beside the plain one", 1.3),
    ]


def as_trained(name: str, *, in_bfloat16: bool) -> dict[str, Step]:
    """A step of our training, eager and compiled."""
    found = {}
    for way in ("eager", "compiled"):
        model = hyperbf()
        adam = torch.optim.Adam(model.parameters(), lr=1e-4, fused=way == "compiled" or None)
        forward = torch.compile(model) if way == "compiled" else model
        found[f"{name}, {way}"] = training_step(forward, adam, batch=BATCH, classes=100, in_bfloat16=in_bfloat16)
    return found


def as_a_script(name: str, build: Callable[[], nn.Module], *, in_bfloat16: bool) -> dict[str, Step]:
    """A step by PyTorch alone with a fused Adam, eager and compiled."""
    found = {}
    for way in ("eager", "compiled"):
        model = build()
        adam = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
        forward = compiled_apart(model) if way == "compiled" else model
        step = training_step(forward, adam, batch=BATCH, classes=100, in_bfloat16=in_bfloat16)
        found[f"{name}, {way}, fused Adam"] = without_cpp(step)
    return found


def model_line(*, in_bfloat16: bool = False) -> Line:
    peers = as_a_script("torch.cdist", with_distances, in_bfloat16=in_bfloat16)
    peers |= as_a_script("without C++", hyperbf, in_bfloat16=in_bfloat16)
    if in_bfloat16:
        use_wide_attention()
    dtype = "bfloat16" if in_bfloat16 else "float32"
    result = race(as_trained("ours", in_bfloat16=in_bfloat16), peers, rounds=11)
    what = f"HyperBF, a training step of {BATCH} images"
    return result.line(what, 1.2, dtype=dtype, images=BATCH, same_products=True)


def beside_the_vit() -> Line:
    peers = as_a_script("ViT", vit, in_bfloat16=False)
    result = race(as_trained("HyperBF", in_bfloat16=False), peers, rounds=11)
    return result.line(f"HyperBF beside the ViT, a training step of {BATCH} images", 0.85, images=BATCH)


def measure() -> list[Line]:
    lines = [*attention(), model_line(), beside_the_vit()]
    return [*lines, model_line(in_bfloat16=True)] if has_bfloat16() else lines
