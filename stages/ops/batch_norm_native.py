"""Batch normalisation, a sum and ReLU in one forward and one backward pass on a CPU (`batch_norm_native.cpp`).

    y = ReLU(γ (x − μ) / √(σ² + ε) + β + added)        μ and σ² of a channel over the batch and the image

PyTorch uses an operator for each and keeps a map between each two.  Maps come out with their channels side by side, so
that oneDNN convolves them without reordering them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from stages.ops.native import call, in_parts, is_plain, load_library

_SOURCE = Path(__file__).with_suffix(".cpp")
_SUFFIXES = {torch.float32: "_float", torch.bfloat16: "_half"}
_LANES = 128  # as there
_PART = 1 << 19  # numbers that keep another thread busy for longer than waking it takes


def batch_norm_relu(norm: nn.Module, x: Tensor, added: Tensor | None = None) -> Tensor:
    """`norm(x)`, plus `added` if there is one, then ReLU.  [B, C, H, W] both -> [B, C, H, W]."""
    if _applies(norm, x, added):
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
        out: Tensor = _BatchNormReLU.apply(x, added, norm.weight, norm.bias, norm)
        return out
    plain: Tensor = norm(x)
    return (plain if added is None else plain + added).relu()


class Sequential(nn.Sequential):
    """`torch.nn.Sequential` that fuses a batch normalisation with the ReLU behind it.

    Fused maps come out with their channels side by side, which `view` can't flatten; `flatten` can.
    """

    def forward(self, x: Any) -> Any:
        """[...] -> [...]."""
        if not self.training or not isinstance(x, Tensor) or not is_plain(x, dtype=x.dtype):
            return super().forward(x)  # nothing to gain, and nothing for a compiler to look through
        layers = deque(_unpacked(self))
        while layers:
            layer = layers.popleft()
            if type(layer) is nn.BatchNorm2d and layers and type(layers[0]) is nn.ReLU and not is_watched(layers[0]):
                x = batch_norm_relu(layer, x)
                layers.popleft()
            else:
                x = layer(x)
        return x


def _unpacked(layers: nn.Sequential) -> Iterator[nn.Module]:
    """The modules in order, with those inside a `Sequential`."""
    for layer in layers:
        if type(layer) is Sequential and not is_watched(layer):
            yield from _unpacked(layer)
        else:
            yield layer


def is_watched(layer: nn.Module) -> bool:
    """True if a hook or anything else observes or changes the inputs or outputs."""
    return bool(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)


def _applies(norm: nn.Module, x: Tensor, added: Tensor | None) -> TypeGuard[nn.BatchNorm2d]:
    """True if C++ can do it: in training, a layer with all its defaults, and maps in whole rows."""
    maps = (x,) if added is None else (x, added)
    return (
        type(norm) is nn.BatchNorm2d
        and norm.training
        and x.dtype in _SUFFIXES
        and is_plain(*maps, dtype=x.dtype)
        and not is_watched(norm)
        and norm.momentum is not None
        and norm.running_mean is not None
        and norm.running_var is not None
        and norm.affine
        and _can_be_read(norm.weight, norm.bias, norm.running_mean, norm.running_var)
        and x.shape == maps[-1].shape
        and x.ndim == 4
        and x.shape[1] == norm.num_features
        and (x.shape[1] % _LANES == 0 or (_LANES % x.shape[1] == x.numel() % _LANES == 0))
        and x.numel() > x.shape[1]
        and load_library(_SOURCE) is not None
    )


def _can_be_read(*by_channel: Tensor | None) -> bool:
    return all(one is None or (is_plain(one) and one.is_contiguous()) for one in by_channel)


class _BatchNormReLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, added: Tensor | None, weight: Tensor, bias: Tensor | None, norm: nn.BatchNorm2d
    ) -> Tensor:
        x = _channels_last(x)
        added = None if added is None else _channels_last(added)
        out, sums = torch.empty_like(x), _sums(x)
        origin, (statistics, factors) = weight.new_empty(x.shape[1]), weight.new_empty(2, 2, x.shape[1])
        _call("origins", x, x, origin, *_sizes(x))
        _over_rows("moments", x, lambda part: (x, origin, sums[part]))
        # `statistics` are means and 1 / deviations, `factors` scale and shift.
        found = origin, weight, bias, statistics, factors, norm.running_mean, norm.running_var
        call(_SOURCE, "finish_moments", sums, len(sums), *found, float(norm.eps), float(norm.momentum or 0), *_sizes(x))
        _over_rows("forward", x, lambda part: (x, added, factors, out))
        ctx.save_for_backward(x, out, weight, statistics)
        ctx.has_bias, ctx.has_added = bias is not None, added is not None
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, out, weight, statistics = ctx.saved_tensors
        grad, to_x = _channels_last(grad.resolve_neg()), torch.empty_like(x)
        to_added = torch.empty_like(x) if ctx.has_added else None
        sums, factors = _sums(x), weight.new_empty(3, x.shape[1])
        to_weight, to_bias = torch.empty_like(weight), torch.empty_like(weight)
        _over_rows("gradient_sums", x, lambda part: (grad, x, out, statistics, sums[part]))
        call(_SOURCE, "finish_gradients", sums, len(sums), weight, statistics, factors, to_weight, to_bias, *_sizes(x))
        _over_rows("backward", x, lambda part: (grad, x, out, statistics, factors, to_x, to_added))
        return to_x, to_added, to_weight, to_bias if ctx.has_bias else None, None


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _sizes(x: Tensor) -> tuple[int, int]:
    """Numbers of pixels and channels."""
    return x.numel() // x.shape[1], x.shape[1]


def _sums(x: Tensor) -> Tensor:
    """Two sums per channel for each part; those of parts that no thread takes stay zero."""
    return x.new_zeros(-(-x.numel() // _PART), 2, x.shape[1], dtype=torch.float64)


def _over_rows(name: str, x: Tensor, arguments: Callable[[int], tuple[Tensor | None, ...]]) -> None:
    """Call a function for all rows of `x`, each thread for its parts; `arguments` get the first of these."""
    width = max(_LANES, x.shape[1])
    rows, parts = x.numel() // width, -(-x.numel() // _PART)

    def work(part: slice) -> None:
        start, stop = rows * part.start // parts, rows * part.stop // parts
        _call(name, x, *arguments(part.start), x.shape[1], start, stop)

    in_parts(parts, work)


def _call(name: str, x: Tensor, *arguments: Any) -> None:
    call(_SOURCE, f"{name}{_SUFFIXES[x.dtype]}", *arguments)
