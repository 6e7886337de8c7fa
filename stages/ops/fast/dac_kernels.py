"""The sums of `dac_recompute` as Triton kernels: matrix products on tensor cores (half types), or exact in float32.

    f_i(h)  = Σ_t Σ_j w_tij φ(b_ij + z_j(h + t - before))
    ∂E/∂z_j = Σ_i φ'(b_ij + z_j(q)) Σ_t w_tij g_i(q - t + before)
    ∂E/∂w   = Σ_q φ(b_ij + z_j(q)) g_i(q - t + before),   ∂E/∂b = Σ_t w_tij Σ_q φ'(b_ij + z_j(q)) g_i(q - t + before)

Each φ(b_ij + z_j) serves only output i, so a product can't have other outputs as columns.  In the forward pass its
columns are the neighbouring positions of a patch of ROWS x COLS outputs, whose weights are those of the taps that reach
them; in the backward pass they are the kernel positions t, padded to TAPS.  No map of activations leaves the registers.

z is padded with -inf, which φ maps to 0 for any bias, and is laid out [images, rows, columns, channels]; the output's
gradient g is padded with 0, [images, channels, rows, columns]; `dac_triton` lays them out.  A NaN stays a NaN.

Only builtin functions of Triton's language are used here: its interpreter handles those whenever it is requested, the
others only if requested before Triton was loaded.  In Triton 3.6 `maximum` gives float32, whatever its operands are.
"""

# The types of a kernel's operands are known only when it is compiled for them.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,assignment"

from __future__ import annotations

import triton
import triton.language as tl


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
    """PATCHES patches of OUTPUTS channels; a step takes one position of all patches and CHUNK input channels."""
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
    """PIXELS pixels of CHUNK channels, looping over all outputs."""
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
    active_sums,  # [parts, n, inputs, A * B], float32: the gradient of w
    passed_sums,  # [parts, n, inputs, A * B], float32: that of the bias, before its sum with w
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
    """One output, CHUNK inputs and one part of the blocks of PIXELS, ACROSS per row; the caller adds the parts."""
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
