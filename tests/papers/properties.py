"""What every model has to have, measured: the tests of each paper say how much of it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def draw_images(n: int = 4, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal noise [n, 3, 12, 12], the same at each call."""
    return torch.randn(n, 3, 12, 12, generator=torch.Generator().manual_seed(1)).to(dtype)


def without_gradient(model: nn.Module) -> list[str]:
    """Names of the parameters to which the last backward pass gave nothing."""
    return [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]


def moved_by_the_second(model: nn.Module, images: Tensor) -> Tensor:
    """How far each sample's logits move when the second image changes: [N]."""
    changed = images.clone()
    changed[1] += 1
    with torch.no_grad():
        return (model(images) - model(changed)).abs().amax(dim=1)


def loss_of_one_batch(model: nn.Module, images: Tensor, labels: Tensor, optimizer: torch.optim.Optimizer) -> float:
    """The loss on a batch after 60 steps on it."""
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return F.cross_entropy(model(images), labels).item()
