"""Checks that a fast path which claims PyTorch's numbers bit by bit gives them here: once per process, at first use.

A fast path is not part of a run key because it changes no number.  PyTorch chooses its own kernels by the processor,
by `ATEN_CPU_CAPABILITY` and by whether oneDNN is on, so the claim is about a machine.  If it doesn't hold, PyTorch's
operators are used instead of the fast path.

Dropout makes this claim.  DAC and attention add in another order and claim to be as close to the equation as PyTorch
is, in the precision that they run in; tests check that against float64.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from functools import cache

import torch
from torch import Tensor

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_answers: dict[tuple[str, bool], bool] = {}
_trying = threading.Lock()


def agrees_here(claim: str, fast: Callable[[], Iterable[Tensor]], plain: Callable[[], Iterable[Tensor]]) -> bool:
    """True if both make the same tensors.  `claim` names the thing tried, in the words that a user reads if it fails.

    Tried anew if oneDNN was turned on or off since, because PyTorch then uses other routines.
    """
    key = claim, torch._C._get_mkldnn_enabled()
    if (known := _answers.get(key)) is not None:
        return known
    with _trying, torch.inference_mode(False), torch.enable_grad():
        if key not in _answers:
            _answers[key] = all(same_bits(*pair) for pair in zip(fast(), plain(), strict=True))
            if not _answers[key]:
                capability = torch.backends.cpu.get_cpu_capability()
                what = f"not PyTorch's bit by bit on this processor ({capability}), using PyTorch's operators"
                print(f"{claim}: {what}", file=sys.stderr)
    return _answers[key]


def same_bits(found: Tensor, wanted: Tensor) -> bool:
    """True if type, shape, order in memory and each number are the same, including the sign of zero; all NaNs are
    equal.
    """
    if (found.dtype, found.shape, found.stride()) != (wanted.dtype, wanted.shape, wanted.stride()):
        return False
    if not wanted.is_floating_point():
        return torch.equal(found, wanted)
    bits = _BITS[wanted.itemsize]
    found, wanted = found.detach(), wanted.detach()
    return torch.equal(*(each.masked_fill(each.isnan(), torch.nan).view(bits) for each in (found, wanted)))


@cache
def all_numbers() -> Tensor:
    """All 65,536 numbers of bfloat16, in the order of their bits."""
    with torch.inference_mode(False):
        return torch.arange(1 << 16, dtype=torch.int32, device="cpu").to(torch.int16).view(torch.bfloat16)
