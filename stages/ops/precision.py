"""The precision that operators compute in: at least float32, with or without autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Switch autocast off, because it would round the operands of products."""
    return torch.autocast(device.type, enabled=False) if has_autocast(device.type) else nullcontext()


def has_autocast(device: str) -> bool:
    """True for every device that this project computes on; PyTorch's own query breaks compiled graphs in 2.11."""
    return device != "meta"


def at_least_float32(x: Tensor) -> Tensor:
    """Convert to float32, unless the dtype is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def widen(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Convert the operands to their common type, at least float32."""
    dtype = torch.promote_types(torch.promote_types(x.dtype, weight.dtype), torch.float32)
    return x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
