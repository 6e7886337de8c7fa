"""The fast path of `dac_recompute` on a GPU: lays its operands out for the kernels of `dac_kernels` and launches
those.

Half types multiply on tensor cores and add in float32; float32 multiplies exactly, without TF32.  If images of a half
type meet float32 weights, as under autocast, everything is computed and returned in the images' type.  Both functions
are torch operators, so that a compiler leaves them as they are and a CUDA graph can hold them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from stages.ops.fast.cpp import TAKEN, keep_triton_kernels

keep_triton_kernels()
_HALF = (torch.bfloat16, torch.float16)
_TAPS = 16  # kernel positions as columns of a product, padded
_COUNTED = 2**31  # as many as a kernel's 32 bits can count
_PROGRAMS = 2048  # of one or two warps: enough to keep a GPU of 132 multiprocessors busy


def applies(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """True if `forward` and `backward` can handle these.  x: [B, m, H, W]; weight: [n, m, La, Lb]; bias: [n, m]."""
    others = {weight.dtype, bias.dtype}
    is_known = (x.dtype in _HALF and others <= {x.dtype, torch.float32}) or {x.dtype} | others == {torch.float32}
    is_small = weight.shape[2] * weight.shape[3] <= _TAPS
    # Padding at most quadruples a map, of inputs or of outputs.
    maps = max(weight.shape[0], weight.shape[1], 16) * x.shape[0] * x.shape[2] * x.shape[3]
    return is_known and is_small and maps > 0 and 4 * maps < _COUNTED and weight.numel() > 0


@torch.library.custom_op("claimcheck::dac_forward", mutates_args=())
def forward(x: Tensor, weight: Tensor, bias: Tensor, before: list[int], size: list[int]) -> Tensor:
    """`dac_taps`, [B, n, *size], in the dtype of x."""
    TAKEN.add("dac_triton")
    laid = _lay_out(x, weight, bias, before, size)
    out = x.new_zeros(len(x), len(weight), *size)
    if laid is None:
        return out
    down, across = (-(-length // step) for length, step in zip(size, laid.patch, strict=True))
    patches = len(x) * down * across
    outputs = 8 if laid.is_half else 2
    together = (128 if patches >= 8192 else 64) if laid.is_half else 32
    with torch.cuda.device_of(x):
        forward_kernel[(-(-patches // together), -(-len(weight) // outputs))](
            *laid.operands,
            out,
            len(x),
            laid.z.shape[3],
            len(weight),
            *laid.z.shape[1:3],
            *size,
            A=weight.shape[2],
            B=weight.shape[3],
            ROWS=laid.patch[0],
            COLS=laid.patch[1],
            PATCHES=together,
            CHUNK=laid.chunk,
            OUTPUTS=outputs,
            num_warps=4,
            num_stages=1,
        )
    return out


@torch.library.custom_op("claimcheck::dac_backward", mutates_args=())
def backward(x: Tensor, weight: Tensor, bias: Tensor, grad: Tensor, before: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and bias from the gradient of the result, `grad` [B, n, H', W']."""
    laid = _lay_out(x, weight, bias, before, list(grad.shape[2:]))
    grad_x = torch.zeros_like(x, memory_format=torch.contiguous_format)
    if laid is None:
        return grad_x, torch.zeros_like(weight), torch.zeros_like(bias)
    used = laid.used(grad_x)
    to_used = torch.empty_like(used, memory_format=torch.contiguous_format)
    grad = _padded_gradient(grad.to(x.dtype), weight, used, laid.before)
    inputs, n = laid.z.shape[3], len(weight)
    pixels = 64 if laid.is_half else 32
    chunks = inputs // laid.chunk
    parts = max(1, min(-(-to_used[:, 0].numel() // pixels), _PROGRAMS // (n * chunks)))
    sums = weight.new_empty(2, parts, n, inputs, weight[0, 0].numel(), dtype=torch.float32)
    sizes = (*laid.z.shape[1:3], *grad.shape[2:], *used.shape[2:], *laid.before)
    options: dict[str, Any] = {"A": weight.shape[2], "B": weight.shape[3], "TAPS": _TAPS, "PIXELS": pixels}
    options |= {"CHUNK": laid.chunk, "num_stages": 1}
    with torch.cuda.device_of(x):
        input_gradient_kernel[(-(-to_used[:, 0].numel() // pixels), chunks)](
            *laid.operands, grad, to_used, len(x), x.shape[1], inputs, n, *sizes, **options, num_warps=4
        )
        weight_gradient_kernel[(n, chunks, parts)](
            laid.z,
            laid.bias,
            grad,
            *sums,
            len(x),
            inputs,
            n,
            *sizes,
            **options,
            ACROSS=_across(pixels, *used.shape[2:]),
            num_warps=laid.chunk // 16,
        )
    used.copy_(to_used)
    active, passed = sums.sum(1)[:, :, : x.shape[1]].unflatten(3, weight.shape[2:])
    return grad_x, active.to(weight.dtype), (passed * weight).sum((2, 3)).to(bias.dtype)


@forward.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, before: list[int], size: list[int]) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0], *size)


@backward.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, grad: Tensor, before: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    contiguous = torch.contiguous_format
    like_x = torch.empty_like(x, memory_format=contiguous)
    return like_x, torch.empty_like(weight, memory_format=contiguous), torch.empty_like(bias, memory_format=contiguous)


@dataclass(frozen=True)
class _LaidOut:
    """Operands as the kernels read them; `before` refers to the part of x that kernels reach at all."""

    z: Tensor  # [B, rows, columns, inputs], -inf around the image and in channels that fill a chunk up
    w: Tensor  # [n, La, Lb, inputs]
    bias: Tensor  # [n, inputs]
    before: tuple[int, int]
    cut: tuple[int, int]
    chunk: int
    patch: tuple[int, int]  # rows and columns of outputs that are computed together

    @property
    def operands(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.z, self.w, self.bias

    @property
    def is_half(self) -> bool:
        return self.z.dtype in _HALF

    def used(self, x: Tensor) -> Tensor:
        return x[:, :, self.cut[0] :, self.cut[1] :]


def _lay_out(x: Tensor, weight: Tensor, bias: Tensor, before: list[int], size: list[int]) -> _LaidOut | None:
    """Lay the operands out; None if every kernel position meets only padding."""
    top, left = (max(0, length) for length in before)
    cut = max(0, -before[0]), max(0, -before[1])
    x = x[:, :, cut[0] :, cut[1] :]
    if x.numel() == 0:
        return None
    chunk = 16 if x.shape[1] <= 16 or x.dtype not in _HALF else 32
    more = -x.shape[1] % chunk
    patch = (1, 8) if size[0] == 1 else (4, 2)
    rows, columns = (
        max(
            -(-size[axis] // patch[axis]) * patch[axis] + weight.shape[2 + axis] - 1,
            (top, left)[axis] + x.shape[2 + axis],
        )
        for axis in (0, 1)
    )
    z = x.new_full((len(x), rows, columns, x.shape[1] + more), -torch.inf)
    z[:, top : top + x.shape[2], left : left + x.shape[3], : x.shape[1]] = x.permute(0, 2, 3, 1)
    w = F.pad(weight.permute(0, 2, 3, 1).to(x.dtype), (0, more)).contiguous()
    return _LaidOut(z, w, F.pad(bias.to(x.dtype), (0, more)).contiguous(), (top, left), cut, chunk, patch)


def _padded_gradient(grad: Tensor, weight: Tensor, x: Tensor, before: tuple[int, int]) -> Tensor:
    """Pad with zeros so that every position of x plus `before`, minus any kernel position, is inside."""
    head = [weight.shape[2 + axis] - 1 for axis in (0, 1)]
    tail = [max(0, x.shape[2 + axis] + before[axis] - grad.shape[2 + axis]) for axis in (0, 1)]
    return F.pad(grad, (head[1], tail[1], head[0], tail[0])).contiguous()


def _across(pixels: int, height: int, width: int) -> int:
    """Number of a block's pixels per row, a power of two, chosen so that the fewest blocks cover an image."""
    choices = [2**power for power in range(pixels.bit_length())]
    return min(choices, key=lambda across: -(-width // across) * -(-height // (pixels // across)))
