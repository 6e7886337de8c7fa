"""Triton implementation of `dac_recompute` for GPUs; no GPU has run it yet.

Half-precision products run on tensor cores and accumulate in float32; float32 products don't use TF32.  If
half-precision images meet float32 weights, as under autocast, everything is computed and returned in the images'
dtype.  Both functions are torch operators, so compilers leave them alone and CUDA graphs can capture them.

The kernels:

    f_i(h)  = Σ_t Σ_j w_tij φ(b_ij + z_j(h + t - before))
    ∂E/∂z_j = Σ_i φ'(b_ij + z_j(q)) Σ_t w_tij g_i(q - t + before)
    ∂E/∂w   = Σ_q φ(b_ij + z_j(q)) g_i(q - t + before),   ∂E/∂b = Σ_t w_tij Σ_q φ'(b_ij + z_j(q)) g_i(q - t + before)

Each φ(b_ij + z_j) is used by output i only, so other outputs can't be columns of the same matrix product.  In the
forward pass the columns are the positions of a patch of ROWS x COLS outputs, with the weights of the taps that reach
them; in the backward pass they are the kernel positions t, padded to TAPS.  Activations never leave the registers.

z is padded with -inf, which φ maps to 0 for any bias, and is laid out as [images, rows, columns, channels]; the
output's gradient g is padded with 0, [images, channels, rows, columns].  NaNs propagate.

Kernels use only builtin functions of Triton's language: the interpreter supports others only if it was requested
before Triton was loaded.  In Triton 3.6 `maximum` returns float32 for all operands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from stages.ops.fast.cpp import TAKEN, keep_triton_kernels

# Kernel operands have no static types: Triton compiles a kernel for the types that it is called with.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,assignment"


@triton.jit
def forward_kernel(
    z,  # [images, z_height, z_width, inputs]
    w,  # [n, A, B, inputs]
    bias,  # [n, inputs]
    out,  # [images, n, height, width]
    images,
    inputs,
    n,
    z_height,
    z_width,
    height,
    width,
    A: tl.constexpr,
    B: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    PATCHES: tl.constexpr,
    CHUNK: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    """Compute PATCHES patches of OUTPUTS channels; a step takes one position of each and CHUNK input channels."""
    across = (width + COLS - 1) // COLS
    down = (height + ROWS - 1) // ROWS
    patch = tl.program_id(0) * PATCHES + tl.arange(0, PATCHES)
    is_real = patch < images * down * across
    patch = tl.minimum(patch, images * down * across - 1)
    image = patch // (down * across)
    row = patch // across % down * ROWS
    column = patch % across * COLS
    corner = ((image * z_height + row) * z_width + column) * inputs
    cell = tl.arange(0, ROWS * COLS)
    first = tl.program_id(1) * OUTPUTS
    sums = (tl.full([PATCHES, ROWS * COLS], 0.0, tl.float32),) * OUTPUTS
    for start in range(0, inputs, CHUNK):
        j = start + tl.arange(0, CHUNK)
        biases = ()
        for s in tl.static_range(OUTPUTS):
            i = tl.minimum(first + s, n - 1)
            biases += (tl.load(bias + i * inputs + j)[None, :],)
        for step in range((ROWS + A - 1) * (COLS + B - 1)):
            r = step // (COLS + B - 1)
            c = step % (COLS + B - 1)
            values = tl.load(z + (corner + (r * z_width + c) * inputs)[:, None] + j[None, :])
            a = r - cell // COLS
            b = c - cell % COLS
            reaches = ((a >= 0) & (a < A) & (b >= 0) & (b < B))[None, :]
            tap = ((a * B + b) * inputs)[None, :] + j[:, None]
            more = ()
            for s in tl.static_range(OUTPUTS):
                i = tl.minimum(first + s, n - 1)
                active = tl.maximum(values + biases[s], 0.0, propagate_nan=tl.PropagateNan.ALL).to(values.dtype)
                taps = tl.load(w + i * A * B * inputs + tap, mask=reaches, other=0.0)
                more += (tl.dot(active, taps, sums[s], input_precision="ieee"),)
            sums = more
    y = row[:, None] + (cell // COLS)[None, :]
    x = column[:, None] + (cell % COLS)[None, :]
    inside = is_real[:, None] & (y < height) & (x < width)
    for s in tl.static_range(OUTPUTS):
        if first + s < n:
            to = out + (image[:, None] * n + first + s) * height * width + y * width + x
            tl.store(to, sums[s].to(out.dtype.element_ty), mask=inside)


@triton.jit
def input_gradient_kernel(
    z,  # [images, z_height, z_width, inputs]
    w,  # [n, A, B, inputs]
    bias,  # [n, inputs]
    grad,  # [images, n, g_height, g_width]
    grad_x,  # [images, channels, height, width]; the channels are the first of the inputs
    images,
    channels,
    inputs,
    n,
    z_height,
    z_width,
    g_height,
    g_width,
    height,
    width,
    top,
    left,
    A: tl.constexpr,
    B: tl.constexpr,
    TAPS: tl.constexpr,
    PIXELS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Compute PIXELS pixels of CHUNK channels in a loop over all outputs."""
    q = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    is_real = q < images * height * width
    q = tl.minimum(q, images * height * width - 1)
    image = q // (height * width)
    y = q // width % height
    x = q % width
    j = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    t = tl.arange(0, TAPS)
    tap = tl.minimum(t, A * B - 1)
    corner = ((image * z_height + y + top) * z_width + x + left) * inputs
    values = tl.load(z + corner[:, None] + j[None, :])
    met = (image * n * g_height + y + top) * g_width + x + left
    shifted = grad + met[:, None] + ((A - 1 - tap // B) * g_width + B - 1 - tap % B)[None, :]
    total = tl.full([PIXELS, CHUNK], 0.0, tl.float32)
    for i in range(n):
        g = tl.load(shifted + i * g_height * g_width)
        taps = tl.load(w + (i * A * B + tap)[:, None] * inputs + j[None, :], mask=(t < A * B)[:, None], other=0.0)
        back = tl.dot(g, taps, input_precision="ieee")
        active = values + tl.load(bias + i * inputs + j)[None, :]
        total += tl.where(active > 0.0, back, 0.0)
    to = grad_x + (image[:, None] * channels + j[None, :]) * height * width + (y * width + x)[:, None]
    tl.store(to, total.to(grad_x.dtype.element_ty), mask=is_real[:, None] & (j < channels)[None, :])


@triton.jit
def weight_gradient_kernel(
    z,  # [images, z_height, z_width, inputs]
    bias,  # [n, inputs]
    grad,  # [images, n, g_height, g_width]
    active_sums,  # [parts, n, inputs, A * B], float32: gradient of w
    passed_sums,  # [parts, n, inputs, A * B], float32: gradient of the bias, before it is summed with w
    images,
    inputs,
    n,
    z_height,
    z_width,
    g_height,
    g_width,
    height,
    width,
    top,
    left,
    A: tl.constexpr,
    B: tl.constexpr,
    TAPS: tl.constexpr,
    PIXELS: tl.constexpr,
    ACROSS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Compute one output, CHUNK inputs and one part of the blocks of PIXELS, ACROSS per row; callers add the parts."""
    i = tl.program_id(0)
    j = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    t = tl.arange(0, TAPS)
    tap = tl.minimum(t, A * B - 1)
    shift = (A - 1 - tap // B) * g_width + B - 1 - tap % B
    b = tl.load(bias + i * inputs + j)
    p = tl.arange(0, PIXELS)
    across = (width + ACROSS - 1) // ACROSS
    down = (height + PIXELS // ACROSS - 1) // (PIXELS // ACROSS)
    to_active = tl.full([CHUNK, TAPS], 0.0, tl.float32)
    to_passed = tl.full([CHUNK, TAPS], 0.0, tl.float32)
    for block in range(tl.program_id(2), images * down * across, tl.num_programs(2)):
        image = block // (down * across)
        y = block // across % down * (PIXELS // ACROSS) + p // ACROSS
        x = block % across * ACROSS + p % ACROSS
        is_real = (y < height) & (x < width)
        corner = ((image * z_height + top + y) * z_width + left + x) * inputs
        values = tl.load(z + corner[None, :] + j[:, None], mask=is_real[None, :], other=float("-inf"))
        met = ((image * n + i) * g_height + top + y) * g_width + left + x
        g = tl.load(grad + met[:, None] + shift[None, :], mask=is_real[:, None], other=0.0)
        active = values + b[:, None]
        passed = tl.where(active > 0.0, 1.0, 0.0).to(g.dtype)
        active = tl.maximum(active, 0.0, propagate_nan=tl.PropagateNan.ALL).to(g.dtype)
        to_active = tl.dot(active, g, to_active, input_precision="ieee")
        to_passed = tl.dot(passed, g, to_passed, input_precision="ieee")
    pointers = ((tl.program_id(2) * n + i) * inputs + j)[:, None] * A * B + t[None, :]
    known = (t < A * B)[None, :]
    tl.store(active_sums + pointers, to_active, mask=known)
    tl.store(passed_sums + pointers, to_passed, mask=known)


keep_triton_kernels()
_HALF = (torch.bfloat16, torch.float16)
_TAPS = 16  # kernel positions as columns of a product, padded
_COUNTED = 2**31  # limit of a kernel's 32-bit indices
_PROGRAMS = 2048  # of one or two warps: enough to keep a GPU of 132 multiprocessors busy


def applies(x: Tensor, weight: Tensor, bias: Tensor) -> bool:
    """True if `forward` and `backward` support these.  x: [B, m, H, W]; weight: [n, m, La, Lb]; bias: [n, m]."""
    others = {weight.dtype, bias.dtype}
    is_known = (x.dtype in _HALF and others <= {x.dtype, torch.float32}) or {x.dtype} | others == {torch.float32}
    is_small = weight.shape[2] * weight.shape[3] <= _TAPS
    # Padding at most quadruples an input or output map.
    maps = max(weight.shape[0], weight.shape[1], 16) * x.shape[0] * x.shape[2] * x.shape[3]
    return is_known and is_small and maps > 0 and 4 * maps < _COUNTED and weight.numel() > 0


@torch.library.custom_op("claimcheck::dac_forward", mutates_args=())
def forward(x: Tensor, weight: Tensor, bias: Tensor, before: list[int], size: list[int]) -> Tensor:
    """Compute `dac_taps`, [B, n, *size], in the dtype of x."""
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
    """Return gradients of x, weight and bias, given the result's gradient `grad` [B, n, H', W']."""
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
    """Operands in the kernels' layout; `before` refers to the part of x that kernels reach."""

    z: Tensor  # [B, rows, columns, inputs], -inf around the image and in padding channels
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
