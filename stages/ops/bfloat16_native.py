"""Backward passes that are slow in PyTorch in bfloat16 on a CPU: attention's goes through float32, since PyTorch's own
takes four times as long, and GELU's through a table (`bfloat16_native.cpp`), in half the time.

Attention's numbers are those of float32, rounded once.  GELU's are PyTorch's bit by bit: the table holds its float32
results, and `agrees_here` checks that it computes the same in bfloat16.  Without AVX512 it doesn't: it uses oneDNN's
routine for one and its own for the other.  If a thread's part of a tensor leaves a remainder that fills no register,
PyTorch computes that by a third routine, and such a tensor is left to it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from stages.ops.agreement_native import agrees_here, all_numbers
from stages.ops.native import call, in_parts, load_library

_SOURCE = Path(__file__).with_suffix(".cpp")
_PART = 1 << 15  # as in PyTorch, which gives no thread fewer numbers than these
_FULL = 64  # numbers that PyTorch processes at once, in registers of any width


@cache
def use_fast_bfloat16() -> torch.library.Library:
    """From now on, permanently, `scaled_dot_product_attention` widens bfloat16 on a CPU and rounds its result, and
    GELU's gradient there is looked up if C++ can be compiled.

    In inference mode attention uses PyTorch's own way, which is as fast there.
    """
    library = torch.library.Library("aten", "IMPL")
    library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")
    if sys.byteorder == "little" and load_library(_SOURCE) is not None:
        library.impl("gelu_backward", _gelu_backward, "CPU", allow_override=True)
    # Compiled code is kept on disk under a key that doesn't include this.
    torch.compiler.config.cache_key_tag += "attention in float32"
    return library


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    dtype = query.dtype
    is_known_mask = attn_mask is None or attn_mask.dtype in (torch.bool, torch.bfloat16)
    if dtype == torch.bfloat16 and key.dtype == value.dtype == dtype and is_known_mask:
        query, key, value = query.float(), key.float(), value.float()
        if attn_mask is not None and attn_mask.dtype == dtype:
            attn_mask = attn_mask.float()
    plain = torch.ops.aten.scaled_dot_product_attention.default.decompose
    out = plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    return out.to(dtype)


def _gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    is_known = all(tensor.dtype == torch.bfloat16 and tensor.is_contiguous() for tensor in (grad, x))
    if is_known and grad.shape == x.shape and _fills_registers(x.numel()) and _agrees(approximate):
        return _fast_gelu_backward(grad, x, approximate)
    return _plain_gelu_backward(grad, x, approximate)


def _fills_registers(count: int) -> bool:
    """True if no PyTorch thread has numbers left over after its last full registers."""
    threads = max(1, min(torch.get_num_threads(), -(-count // _PART)))
    return count > 0 and count % _FULL == 0 and -(-count // threads) % _FULL == 0


def _agrees(approximate: str) -> bool:
    """Compare for every number, with gradients of all sizes."""

    def tried(way: Callable[[Tensor, Tensor, str], Tensor]) -> Iterator[Tensor]:
        x = all_numbers()
        drawn = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float32, device="cpu")
        for grad in (torch.ones_like(x), drawn.bfloat16(), x.flip(0), x.roll(1 << 14)):
            yield way(grad, x, approximate)

    claim = f"GELU's gradient in bfloat16, approximate={approximate!r}"
    return agrees_here(claim, lambda: tried(_fast_gelu_backward), lambda: tried(_plain_gelu_backward))


def _fast_gelu_backward(grad: Tensor, x: Tensor, approximate: str) -> Tensor:
    to_x, count = torch.empty_like(x), x.numel()
    slopes = _slopes_of_gelu(approximate, torch._C._get_mkldnn_enabled())

    def work(parts: slice) -> None:
        call(_SOURCE, "gelu_backward", grad, x, slopes, to_x, parts.start * _PART, min(parts.stop * _PART, count))

    in_parts(-(-count // _PART), work)
    return to_x


def _plain_gelu_backward(grad: Tensor, x: Tensor, approximate: str) -> Tensor:
    """PyTorch's, by the form of the operator that stays unchanged; it gives an empty tensor its shape and strides."""
    to_x = torch.empty(0, dtype=torch.result_type(grad, x), device="cpu")
    return torch.ops.aten.gelu_backward.grad_input(grad, x, approximate=approximate, grad_input=to_x)


@cache
def _slopes_of_gelu(approximate: str, by_onednn: bool) -> Tensor:
    """The factors that PyTorch multiplies gradients with: float32 [65536], in the order of the numbers' bits.

    `by_onednn`: whether oneDNN is on, which makes PyTorch use another routine.
    """
    x = all_numbers().float()
    return _plain_gelu_backward(torch.ones_like(x), x, approximate)
