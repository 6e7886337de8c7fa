"""Matrix products in float32 on AMD's Zen 5: oneDNN's in place of MKL's.

PyTorch multiplies float32 by Intel's MKL, which uses half of a register of 512 bits on another maker's processor.
oneDNN, which PyTorch uses for convolutions, uses all of it and is twice as fast (docs/decisions/0022).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# Number of multiplications below which handing a product over costs more than it saves; several in a row gain later.
_WORTHWHILE, _WORTHWHILE_EACH = 1 << 21, 1 << 22
_FEWEST_ROWS, _FEWEST_COLUMNS, _SHORTEST_SUMS = 4, 4, 16
_ROWS_THAT_PAY_A_COPY = 256  # of a right side with gaps
_SMALL = 1 << 20  # multiplications in all: over before another thread misses the lock
_ZEN_5 = 26  # a processor's family, mobile ones included, which process 512 bits in halves; measured on EPYC
_registering = threading.Lock()


def use_fast_products() -> bool:
    """From now on, permanently, this process multiplies float32 on its CPU with oneDNN wherever that is faster.

    Returns whether it does; where MKL isn't held back, nothing changes.
    """
    if not _mkl_is_held_back():
        return False
    with _registering:
        _register()
    return True


def has_fast_products() -> bool:
    """True if this process has been told to use them, and does."""
    return _register.cache_info().currsize > 0


@cache
def _register() -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL")
    for name, way in _WAYS.items():
        for overload in (name, f"{name}.out"):
            plain = torch.library.get_kernel(f"aten::{overload}", "CPU")
            library.impl(overload, _kernel(way, plain), "CPU", with_keyset=True, allow_override=True)
    return library


@cache
def _mkl_is_held_back() -> bool:
    processor = Path("/proc/cpuinfo")
    return (
        processor.is_file()
        and _is_zen_5(processor.read_text())
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
    )


def _is_zen_5(processor: str) -> bool:
    """True by Linux's description of the processor."""
    family = re.search(r"^cpu family\s*:\s*(\d+)$", processor, re.MULTILINE)
    return "AuthenticAMD" in processor and family is not None and int(family[1]) == _ZEN_5


@dataclass(frozen=True)
class _Way:
    """How oneDNN computes an operator's product where it gains, and how PyTorch writes it to a given place."""

    dimensions: int
    worthwhile: int
    fast: Callable[..., Tensor]
    in_place: Callable[..., Tensor]


def _kernel(way: _Way, plain: Any) -> Callable[..., Tensor]:
    """A replacement for `plain`, which still gets small products and those that don't fit.

    Called from here, `plain` holds the interpreter's lock and keeps all other threads waiting.  So large products go to
    PyTorch through in-place operators, which aren't replaced and release the lock.
    """

    def kernel(keys: Any, *tensors: Tensor, out: Tensor | None = None, **scales: float) -> Tensor:
        *bias, a, b = tensors
        if not (_fit(a, b, way.dimensions) and a.numel() * b.shape[-1] >= _SMALL and _are_alike(tensors, out)):
            places: dict[str, Any] = {} if out is None else {"out": out}
            left: Tensor = plain.call_boxed(keys, *tensors, **scales, **places)
            return left
        is_row = all(one.shape == b.shape[1:] for one in bias)
        if is_row and _gains(a, b, way.worthwhile) and all(scale == 1 for scale in scales.values()):
            found = way.fast(*tensors)
            return found if out is None else out.copy_(found)
        place = a.new_empty(*a.shape[:-1], b.shape[-1]) if out is None else out
        return way.in_place(place, *tensors, **scales)

    return kernel


def _fit(a: Tensor, b: Tensor, dimensions: int) -> bool:
    """True if these are two matrices, or two stacks of equally many, whose product exists."""
    return a.ndim == b.ndim == dimensions and a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-2]


def _are_alike(tensors: Sequence[Tensor], out: Tensor | None) -> bool:
    """True if all have the same type, and bias and output the required shape; if not, PyTorch reports it."""
    *bias, a, b = tensors
    shape = (*a.shape[:-1], b.shape[-1])
    return (
        all(tensor.dtype == a.dtype for tensor in (*bias, b, *([] if out is None else [out])))
        and all(one.shape in (shape, shape[1:]) for one in bias)
        and (out is None or out.shape == shape)
    )


def _gains(a: Tensor, b: Tensor, worthwhile: int) -> bool:
    """True if oneDNN is faster for two matrices, or for each pair of a stack."""
    rows, inner, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    return (
        a.dtype == torch.float32
        and rows * inner * columns >= worthwhile
        and rows >= (_FEWEST_ROWS if _is_whole(b) else _ROWS_THAT_PAY_A_COPY)
        and inner >= _SHORTEST_SUMS
        and columns >= _FEWEST_COLUMNS
        and torch._C._get_mkldnn_enabled()
    )


def _fast_addmm(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return _linear(a, b, bias.contiguous())  # for one with gaps oneDNN would read the gaps


def _fast_bmm(a: Tensor, b: Tensor) -> Tensor:
    return torch.stack([_multiply(*pair) for pair in zip(a.unbind(), b.unbind(), strict=True)])


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    # Long sums to few columns from a transposed left side, as in a narrow layer's gradient, are faster transposed.
    if a.shape[0] > b.shape[1] and a.shape[1] > 2 * b.shape[1] and a.stride(0) == 1:
        return _linear(b.t(), a.t(), None).t().contiguous()
    return _linear(a, b, None)


def _linear(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    if not _is_whole(b):
        b = b.contiguous()  # with a right side that has gaps oneDNN takes a thousand times as long
    out: Tensor = torch.ops.mkldnn._linear_pointwise.default(a, b.t(), bias, "none", [], "")
    return out


def _is_whole(b: Tensor) -> bool:
    """True if each matrix has no gaps, by rows or columns."""
    return b.stride()[-2:] in ((b.shape[-1], 1), (1, b.shape[-2]))


def _place_addmm(out: Tensor, bias: Tensor, a: Tensor, b: Tensor, **scales: float) -> Tensor:
    return out.copy_(bias).addmm_(a, b, **scales)


_WAYS: Mapping[str, _Way] = {
    "mm": _Way(2, _WORTHWHILE, _multiply, lambda out, a, b: out.addmm_(a, b, beta=0)),
    "addmm": _Way(2, _WORTHWHILE, _fast_addmm, _place_addmm),
    "bmm": _Way(3, _WORTHWHILE_EACH, _fast_bmm, lambda out, a, b: out.baddbmm_(a, b, beta=0)),
}
