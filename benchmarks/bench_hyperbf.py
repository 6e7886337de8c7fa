"""Goals for HyperBF's attention on a CPU, forward and backward, in float32.

It must be 1.2 times as fast as the fastest PyTorch implementation, and take at most 1.3 times as long as PyTorch's
plain attention. Peers, eager and compiled: `torch.cdist`, distances by a matrix product, and PyTorch's fused attention
on vectors with appended norms. 64 tokens, heads of 64. `bench_training` measures whole trainings.
Run: python -m benchmarks hyperbf
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.timing import (
    Line,
    eager_and_compiled,
    passes,
    pytorch_alone,
    race,
)
from stages.ops.rbf import rbf_attention


def measure() -> list[Line]:
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
        race(own, plain, rounds=101).cost(f"{what}, against plain attention", 1.3),
    ]
