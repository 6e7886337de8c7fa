"""Work and memory of a computation as PyTorch runs it, without running it: give it tensors on the meta device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

_ELEMENTWISE = {"add", "sub", "mul", "div", "pow", "relu", "clamp", "clamp_min", "rsub", "reciprocal"}
_REDUCTIONS = {"sum"}


class _Counter(TorchDispatchMode):
    """2 x multiply-accumulates of matrix products; one operation per element that any other arithmetic produces or
    sums.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if func.overloadpacket in flop_registry:
            self.operations += int(flop_registry[func.overloadpacket](*args, **kwargs, out_val=result))
        elif name in _ELEMENTWISE:
            self.operations += result.numel()
        elif name in _REDUCTIONS:
            self.operations += args[0].numel()
        return result


def count_operations(compute: Callable[[], Tensor]) -> int:
    """Floating-point operations of `compute()`: matrix products, sums and elementwise arithmetic, each result once."""
    with torch.no_grad(), _Counter() as counter:
        compute()
    return counter.operations


def saved_bytes(model: Callable[..., Tensor], *inputs: Tensor) -> int:
    """Bytes that autograd keeps for the backward pass of `model(*inputs)`, each storage once.

    Parameters and leaves that need a gradient don't count: they exist anyway.
    """
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        owner = tensor if tensor._base is None else tensor._base
        if not (owner.is_leaf and owner.requires_grad):
            storage = tensor.untyped_storage()
            storages[storage._cdata] = storage  # held, so that no other storage takes its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(*inputs)
    return sum(storage.nbytes() for storage in storages.values())
