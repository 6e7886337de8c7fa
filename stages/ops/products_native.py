"""Matrix products in float32 on AMD's processors since Zen 5: oneDNN's in the place of MKL's.

PyTorch multiplies float32 by Intel's MKL, which uses half of a register of 512 bits on another maker's processor.
oneDNN, by which PyTorch convolves, uses all of it and is twice as fast (docs/decisions/0022).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# Multiplications below which handing a product over costs more than it saves; several in a row gain later than one.
_WORTHWHILE, _WORTHWHILE_EACH = 1 << 21, 1 << 22
_FEWEST_ROWS = 4
_ZEN_5 = 26  # a processor's family; those before it work off 512 bits in halves
_registering = threading.Lock()
Product = Callable[..., Tensor | None]


def use_fast_products() -> bool:
    """From now on, and for good, this process multiplies float32 on its CPU by oneDNN where that is faster.

    Returns whether it does; where MKL isn't held back all stays as it is.
    """
    if not _mkl_is_held_back():
        return False
    with _registering:
        _register()
    return True


def has_fast_products() -> bool:
    """Whether this process has been told to use them, and does."""
    return _register.cache_info().currsize > 0


@cache
def _register() -> torch.library.Library:
    library = torch.library.Library("aten", "IMPL")
    for name, product in _PRODUCTS.items():
        for overload in (name, f"{name}.out"):
            plain = torch.library.get_kernel(f"aten::{overload}", "CPU")
            library.impl(overload, _kernel(product, plain), "CPU", with_keyset=True, allow_override=True)
    return library


@cache
def _mkl_is_held_back() -> bool:
    processor = Path("/proc/cpuinfo")
    return (
        processor.is_file()
        and _has_whole_registers(processor.read_text())
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
    )


def _has_whole_registers(processor: str) -> bool:
    """By Linux's description: AMD's, and of a family that works off 512 bits at once."""
    family = re.search(r"^cpu family\s*:\s*(\d+)$", processor, re.MULTILINE)
    return "AuthenticAMD" in processor and family is not None and int(family[1]) >= _ZEN_5


def _kernel(product: Product, plain: Any) -> Callable[..., Tensor]:
    """Takes the place of `plain`, which gets what `product` leaves to it: what gains nothing, and what doesn't fit."""

    def kernel(keys: Any, *tensors: Tensor, out: Tensor | None = None, **scales: float) -> Tensor:
        found = None
        if all(scale == 1 for scale in scales.values()) and all(tensor.dtype == torch.float32 for tensor in tensors):
            found = product(*tensors)
        if found is None or (out is not None and (out.dtype, out.shape) != (found.dtype, found.shape)):
            places: dict[str, Any] = {} if out is None else {"out": out}
            left: Tensor = plain.call_boxed(keys, *tensors, **scales, **places)
            return left
        return found if out is None else out.copy_(found)

    return kernel


def _mm(a: Tensor, b: Tensor) -> Tensor | None:
    """[M, K] by [K, N]."""
    return _multiply(a, b) if _gains(a, b, 2, _WORTHWHILE) else None


def _addmm(bias: Tensor, a: Tensor, b: Tensor) -> Tensor | None:
    """[M, K] by [K, N], and a row [N] added to each."""
    if not _gains(a, b, 2, _WORTHWHILE) or bias.shape != b.shape[1:]:
        return None
    return _linear(a, b, bias.contiguous())  # of one with gaps oneDNN would read the gaps


def _bmm(a: Tensor, b: Tensor) -> Tensor | None:
    """[B, M, K] by [B, K, N]."""
    if not _gains(a, b, 3, _WORTHWHILE_EACH):
        return None
    return torch.stack([_multiply(*pair) for pair in zip(a.unbind(), b.unbind(), strict=True)])


_PRODUCTS: Mapping[str, Product] = {"mm": _mm, "addmm": _addmm, "bmm": _bmm}


def _gains(a: Tensor, b: Tensor, dimensions: int, least: int) -> bool:
    """Whether two matrices, or each two of a stack, fit and are large enough."""
    if not (a.ndim == b.ndim == dimensions and a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-2]):
        return False
    return a.shape[-2] >= _FEWEST_ROWS and a.shape[-2] * b.shape[-2] * b.shape[-1] >= least


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    # A transposed left side with more rows than there are columns, as a layer's gradient is, goes faster turned round.
    if a.shape[0] > b.shape[1] and a.stride(0) == 1:
        return _linear(b.t(), a.t(), None).t().contiguous()
    return _linear(a, b, None)


def _linear(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise.default(a, _whole(b).t(), bias, "none", [], "")
    return out


def _whole(b: Tensor) -> Tensor:
    """Without gaps, by rows or columns: by a right side with gaps oneDNN takes a thousand times as long."""
    return b if b.is_contiguous() or b.t().is_contiguous() else b.contiguous()
