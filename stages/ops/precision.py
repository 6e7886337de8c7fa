"""The precision that operators compute in: float32 at least, with or without autocast."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Switch autocast off, which would round the operands of a product."""
    return torch.autocast(device.type, enabled=False) if has_autocast(device.type) else nullcontext()


def has_autocast(device: str) -> bool:
    """All devices that anything here is computed on have it.  PyTorch's own question breaks 2.11's compiled graphs."""
    return device != "meta"


def at_least_float32(x: Tensor) -> Tensor:
    """The same numbers in float32, or in their own type if that is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def widen(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The operands in their common type, at least float32."""
    dtype = torch.promote_types(torch.promote_types(x.dtype, weight.dtype), torch.float32)
    return x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
