"""Triton implementation of `yat_attention` for GPUs; no GPU has run it yet.

The plain implementation holds several maps of scores for every head.  For the twelve layers of GPT-2 and 1,024 tokens
they don't fit a GPU.  Forward and backward are torch operators, so compilers leave them alone and CUDA graphs can
capture them.

The kernels store no map of scores: each block of queries loops over blocks of keys.

    a_ij = q_i·k_j,  d_ij = max(‖q_i‖² + ‖k_j‖² − 2 a_ij, 0),  z_ij = s a_ij² / (d_ij + ε)
    y_i = Σ_j softmax(z_i)_j v_j

The forward pass computes the softmax with the greatest score so far.  The backward pass recomputes the weights from
the scores, the greatest score and the sum of exponentials, in both the queries' and the keys' kernel.  Half-precision
products run on tensor cores and accumulate in float32, float32 products are exact, and all else is float32.  NaNs
propagate.

Rows are contiguous; strides are those of sample, head and row.  Kernels use only builtin functions of Triton's
language, as in `dac_triton`.

B samples, H heads, T queries, S keys, E features of a head, F of values.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from stages.ops.fast.cpp import TAKEN, head_strides, in_rows, keep_triton_kernels

# Kernel operands have no static types: Triton compiles a kernel for the types that it is called with.
# mypy: disable-error-code="no-untyped-def,untyped-decorator,assignment"


@triton.jit
def _plus(a, b):
    return a + b


@triton.jit
def _greater(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _norms(rows):
    rows = rows.to(tl.float32)
    return tl.reduce(rows * rows, 1, _plus)


@triton.jit
def _rows(base, pair, heads, sample_stride, head_stride, row_stride, row, rows, width, WIDTH: tl.constexpr):
    """Load a block of rows, [rows, WIDTH], with zeros outside."""
    e = tl.arange(0, WIDTH)
    first = base + pair // heads * sample_stride + pair % heads * head_stride
    inside = (row < rows)[:, None] & (e < width)[None, :]
    return tl.load(first + row[:, None] * row_stride + e[None, :], mask=inside, other=0.0)


@triton.jit
def _scores(dot, raw, s, eps):
    """Compute scores bit-identically in both passes, because rounding a large score scales its weight."""
    d = tl.maximum(raw, 0.0, propagate_nan=tl.PropagateNan.ALL)
    ratio = dot / (d + eps)
    return s * dot * ratio, ratio


@triton.jit
def forward_kernel(
    query,
    key,
    value,
    scale,  # scalar
    epsilon,  # scalar
    out,  # [samples, queries, heads, depth], float32: the backward pass amplifies rounding errors
    peaks,  # [pairs, queries, 2], float32: the greatest score, and one over the sum of exponentials
    heads,
    queries,
    keys,
    width,
    depth,
    q_sample,
    q_head,
    q_row,
    k_sample,
    k_head,
    k_row,
    v_sample,
    v_head,
    v_row,
    CAUSAL: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Compute QUERIES queries of one head in a loop over blocks of all keys that they see."""
    pair = tl.program_id(0)
    i = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    q = _rows(query, pair, heads, q_sample, q_head, q_row, i, queries, width, WIDTH)
    q_norm = _norms(q)
    s = tl.load(scale).to(tl.float32)
    eps = tl.load(epsilon).to(tl.float32)
    greatest = tl.full([QUERIES], -float("inf"), tl.float32)
    total = tl.full([QUERIES], 0.0, tl.float32)
    mixed = tl.full([QUERIES, DEPTH], 0.0, tl.float32)
    last = keys
    if CAUSAL:
        last = tl.minimum(keys, (tl.program_id(1) + 1) * QUERIES)
    for start in range(0, last, KEYS):
        j = start + tl.arange(0, KEYS)
        k = _rows(key, pair, heads, k_sample, k_head, k_row, j, keys, width, WIDTH)
        v = _rows(value, pair, heads, v_sample, v_head, v_row, j, keys, depth, DEPTH)
        dot = tl.dot(q, tl.trans(k), input_precision="ieee")
        raw = q_norm[:, None] + _norms(k)[None, :] - 2.0 * dot
        score, _ = _scores(dot, raw, s, eps)
        seen = (j < keys)[None, :]
        if CAUSAL:
            seen = seen & (j[None, :] <= i[:, None])
        score = tl.where(seen, score, -float("inf"))
        most = _greater(greatest, tl.reduce(score, 1, _greater))
        weight = tl.exp(score - most[:, None])
        shrunk = tl.exp(greatest - most)
        total = total * shrunk + tl.reduce(weight, 1, _plus)
        mixed = mixed * shrunk[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        greatest = most
    f = tl.arange(0, DEPTH)
    to = out + (((pair // heads) * queries + i) * heads + pair % heads)[:, None] * depth + f[None, :]
    mixed = mixed / total[:, None]
    tl.store(to, mixed.to(out.dtype.element_ty), mask=(i < queries)[:, None] & (f < depth)[None, :])
    peak = peaks + 2 * (pair * queries + i)
    tl.store(peak, greatest, mask=i < queries)
    tl.store(peak + 1, 1.0 / total, mask=i < queries)


@triton.jit
def _score_gradients(dot, raw, seen, peak, mean, back, s, eps, like):
    """Return weights, and gradients of inner product, distance, scale and ε per pair; `back` is the weights' gradient.

    The first two gradients enter a query as Σ t_j k_j + 2 q Σ d_j, whose terms nearly cancel if q and k_j are close.
    So t is rounded to the type of `like`, as its product requires, and d compensates for the rounding.
    """
    greatest, share = peak
    score, ratio = _scores(dot, raw, s, eps)
    weight = tl.where(seen, tl.exp(score - greatest[:, None]) * share[:, None], 0.0)
    to_score = weight * (back - mean[:, None])
    to_epsilon = -s * to_score * ratio * ratio
    aligned = 2.0 * s * to_score * ratio
    to_dot = tl.where(raw > 0.0, aligned - 2.0 * to_epsilon, aligned).to(like.dtype)
    to_distance = tl.where(raw > 0.0, 0.5 * (aligned - to_dot.to(tl.float32)), 0.0)
    return weight, to_dot, to_distance, to_score * ratio * dot, to_epsilon


@triton.jit
def _peaks(peaks, pair, queries, i):
    pointer = peaks + 2 * (pair * queries + i)
    return tl.load(pointer, mask=i < queries, other=0.0), tl.load(pointer + 1, mask=i < queries, other=0.0)


@triton.jit
def query_gradient_kernel(
    query,
    key,
    value,
    scale,
    epsilon,
    grad,
    peaks,  # [pairs, queries, 2], float32
    means,  # [pairs, queries], float32: inner products of `grad` and the result
    to_query,  # [pairs, queries, width]
    to_factors,  # [pairs, blocks of queries, 2], float32: gradients of scale and ε
    heads,
    queries,
    keys,
    width,
    depth,
    q_sample,
    q_head,
    q_row,
    k_sample,
    k_head,
    k_row,
    v_sample,
    v_head,
    v_row,
    g_sample,
    g_head,
    g_row,
    CAUSAL: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Compute QUERIES queries of one head in a loop over blocks of all keys that they see."""
    pair = tl.program_id(0)
    i = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES)
    q = _rows(query, pair, heads, q_sample, q_head, q_row, i, queries, width, WIDTH)
    g = _rows(grad, pair, heads, g_sample, g_head, g_row, i, queries, depth, DEPTH)
    q_norm = _norms(q)
    peak = _peaks(peaks, pair, queries, i)
    mean = tl.load(means + pair * queries + i, mask=i < queries, other=0.0)
    s = tl.load(scale).to(tl.float32)
    eps = tl.load(epsilon).to(tl.float32)
    to_q = tl.full([QUERIES, WIDTH], 0.0, tl.float32)
    to_norm = tl.full([QUERIES], 0.0, tl.float32)
    to_scale = tl.full([QUERIES], 0.0, tl.float32)
    to_eps = tl.full([QUERIES], 0.0, tl.float32)
    last = keys
    if CAUSAL:
        last = tl.minimum(keys, (tl.program_id(1) + 1) * QUERIES)
    for start in range(0, last, KEYS):
        j = start + tl.arange(0, KEYS)
        k = _rows(key, pair, heads, k_sample, k_head, k_row, j, keys, width, WIDTH)
        v = _rows(value, pair, heads, v_sample, v_head, v_row, j, keys, depth, DEPTH)
        dot = tl.dot(q, tl.trans(k), input_precision="ieee")
        back = tl.dot(g, tl.trans(v), input_precision="ieee")
        raw = q_norm[:, None] + _norms(k)[None, :] - 2.0 * dot
        seen = (i < queries)[:, None] & (j < keys)[None, :]
        if CAUSAL:
            seen = seen & (j[None, :] <= i[:, None])
        _, to_dot, to_distance, of_scale, of_eps = _score_gradients(dot, raw, seen, peak, mean, back, s, eps, k)
        to_q += tl.dot(to_dot, k, input_precision="ieee")
        to_norm += tl.reduce(to_distance, 1, _plus)
        to_scale += tl.reduce(of_scale, 1, _plus)
        to_eps += tl.reduce(of_eps, 1, _plus)
    e = tl.arange(0, WIDTH)
    to_q += 2.0 * q.to(tl.float32) * to_norm[:, None]
    to = to_query + (pair * queries + i)[:, None] * width + e[None, :]
    tl.store(to, to_q.to(to_query.dtype.element_ty), mask=(i < queries)[:, None] & (e < width)[None, :])
    factors = to_factors + (pair * tl.num_programs(1) + tl.program_id(1)) * 2
    tl.store(factors, tl.reduce(to_scale, 0, _plus))
    tl.store(factors + 1, tl.reduce(to_eps, 0, _plus))


@triton.jit
def key_gradient_kernel(
    query,
    key,
    value,
    scale,
    epsilon,
    grad,
    peaks,  # [pairs, queries, 2], float32
    means,  # [pairs, queries], float32
    to_key,  # [pairs, keys, width]
    to_value,  # [pairs, keys, depth]
    heads,
    queries,
    keys,
    width,
    depth,
    q_sample,
    q_head,
    q_row,
    k_sample,
    k_head,
    k_row,
    v_sample,
    v_head,
    v_row,
    g_sample,
    g_head,
    g_row,
    CAUSAL: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """Compute KEYS keys of one head in a loop over blocks of all queries that see them."""
    pair = tl.program_id(0)
    j = tl.program_id(1) * KEYS + tl.arange(0, KEYS)
    k = _rows(key, pair, heads, k_sample, k_head, k_row, j, keys, width, WIDTH)
    v = _rows(value, pair, heads, v_sample, v_head, v_row, j, keys, depth, DEPTH)
    k_norm = _norms(k)
    s = tl.load(scale).to(tl.float32)
    eps = tl.load(epsilon).to(tl.float32)
    to_k = tl.full([KEYS, WIDTH], 0.0, tl.float32)
    to_v = tl.full([KEYS, DEPTH], 0.0, tl.float32)
    to_norm = tl.full([KEYS], 0.0, tl.float32)
    first = 0
    if CAUSAL:
        first = tl.program_id(1) * KEYS // QUERIES * QUERIES
    for start in range(first, queries, QUERIES):
        i = start + tl.arange(0, QUERIES)
        q = _rows(query, pair, heads, q_sample, q_head, q_row, i, queries, width, WIDTH)
        g = _rows(grad, pair, heads, g_sample, g_head, g_row, i, queries, depth, DEPTH)
        peak = _peaks(peaks, pair, queries, i)
        mean = tl.load(means + pair * queries + i, mask=i < queries, other=0.0)
        dot = tl.dot(q, tl.trans(k), input_precision="ieee")
        back = tl.dot(g, tl.trans(v), input_precision="ieee")
        raw = _norms(q)[:, None] + k_norm[None, :] - 2.0 * dot
        seen = (i < queries)[:, None] & (j < keys)[None, :]
        if CAUSAL:
            seen = seen & (j[None, :] <= i[:, None])
        weight, to_dot, to_distance, _, _ = _score_gradients(dot, raw, seen, peak, mean, back, s, eps, k)
        to_v += tl.dot(tl.trans(weight.to(g.dtype)), g, input_precision="ieee")
        to_k += tl.dot(tl.trans(to_dot), q, input_precision="ieee")
        to_norm += tl.reduce(to_distance, 0, _plus)
    e = tl.arange(0, WIDTH)
    f = tl.arange(0, DEPTH)
    to_k += 2.0 * k.to(tl.float32) * to_norm[:, None]
    keys_of_map = (pair * keys + j)[:, None]
    is_real = (j < keys)[:, None]
    to = to_key + keys_of_map * width + e[None, :]
    tl.store(to, to_k.to(to_key.dtype.element_ty), mask=is_real & (e < width)[None, :])
    to = to_value + keys_of_map * depth + f[None, :]
    tl.store(to, to_v.to(to_value.dtype.element_ty), mask=is_real & (f < depth)[None, :])


keep_triton_kernels()
_HALF = (torch.bfloat16, torch.float16)
_COUNTED = 2**31  # limit of a kernel's 32-bit indices
_WIDEST = 128  # features of a head, so that a block of each operand fits on chip
# Queries, keys and warps in half precision.  Larger blocks spill.
_BLOCKS = {"forward": (64, 64, 4), "query gradient": (64, 32, 4), "key gradient": (32, 64, 8)}


def applies(query: Tensor, key: Tensor, value: Tensor, scale: Tensor, epsilon: Tensor) -> bool:
    """True if `attention` supports these: one device and dtype, heads that fit, and 32-bit addresses."""
    tensors = (query, key, value)
    is_known = {tensor.dtype for tensor in tensors} in ({torch.float32}, {torch.bfloat16}, {torch.float16})
    is_together = len({tensor.device for tensor in (*tensors, scale, epsilon)}) == 1
    numbers = [query.shape[:3].numel() * value.shape[3], *(tensor.numel() for tensor in tensors)]
    spans = [sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True)) for t in tensors]
    fits = max(query.shape[3], value.shape[3]) <= _WIDEST and max(*numbers, *spans) < _COUNTED
    return is_known and is_together and fits and min(numbers) > 0


def attention(query: Tensor, key: Tensor, value: Tensor, scale: Tensor, epsilon: Tensor, is_causal: bool) -> Tensor:
    """[B, H, T, E], [B, H, S, E], [B, H, S, F] -> [B, H, T, F]; scale and epsilon: scalars on the device."""
    return _YatAttention.apply(query, key, value, scale, epsilon, is_causal)


class _YatAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: Tensor, epsilon: Tensor, is_causal: bool
    ) -> Tensor:
        out, peaks = forward(query, key, value, scale, epsilon, is_causal)
        ctx.save_for_backward(query, key, value, scale, epsilon, out, peaks)
        ctx.is_causal = is_causal
        return out.to(query.dtype).transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, scale, epsilon, out, peaks = ctx.saved_tensors
        means = (grad.float() * out.transpose(1, 2)).sum(-1)
        to_query, to_key, to_value, to_factors = backward(
            query, key, value, scale, epsilon, grad, peaks, means, ctx.is_causal
        )
        to_scale, to_epsilon = to_factors.sum((0, 1)).unbind()
        return to_query, to_key, to_value, to_scale.to(scale.dtype), to_epsilon.to(epsilon.dtype), None


@torch.library.custom_op("claimcheck::yat_attention_forward", mutates_args=())
def forward(
    query: Tensor, key: Tensor, value: Tensor, scale: Tensor, epsilon: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor]:
    """Return [B, T, H, F] and each query's greatest score and inverse sum of exponentials [B·H, T, 2], in float32."""
    TAKEN.add("yat_triton")
    query, key, value = map(in_rows, (query, key, value))
    (samples, heads, queries, width), (keys, depth) = query.shape, value.shape[2:]
    out, peaks = _results(query, value)
    options = _options("forward", query, value, is_causal)
    with torch.cuda.device_of(query):
        forward_kernel[(samples * heads, -(-queries // options["QUERIES"]))](
            query,
            key,
            value,
            scale,
            epsilon,
            out,
            peaks,
            *(heads, queries, keys, width, depth),
            *head_strides(query, key, value),
            **options,
        )
    return out, peaks


@torch.library.custom_op("claimcheck::yat_attention_backward", mutates_args=())
def backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: Tensor,
    epsilon: Tensor,
    grad: Tensor,
    peaks: Tensor,
    means: Tensor,
    is_causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of query, key and value, and partial gradients of scale and epsilon [B·H, parts, 2]."""
    query, key, value, grad = map(in_rows, (query, key, value, grad.to(value.dtype)))
    (samples, heads, queries, width), (keys, depth) = query.shape, value.shape[2:]
    by_query, by_key = (_options(f"{name} gradient", query, value, is_causal) for name in ("query", "key"))
    to_query, to_key, to_value, to_factors = _gradients(query, key, value, by_query["QUERIES"])
    operands = query, key, value, scale, epsilon, grad, peaks, means.contiguous()
    sizes = heads, queries, keys, width, depth, *head_strides(query, key, value, grad)
    pairs = samples * heads
    with torch.cuda.device_of(query):
        query_gradient_kernel[(pairs, to_factors.shape[1])](*operands, to_query, to_factors, *sizes, **by_query)
        key_gradient_kernel[(pairs, -(-keys // by_key["KEYS"]))](*operands, to_key, to_value, *sizes, **by_key)
    return to_query, to_key, to_value, to_factors


@forward.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, scale: Tensor, epsilon: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor]:
    return _results(query, value)


@backward.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: Tensor,
    epsilon: Tensor,
    grad: Tensor,
    peaks: Tensor,
    means: Tensor,
    is_causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _gradients(query, key, value, _options("query gradient", query, value, is_causal)["QUERIES"])


def _results(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    samples, heads, queries, _ = query.shape
    out = query.new_empty(samples, queries, heads, value.shape[3], dtype=torch.float32)
    return out, query.new_empty(samples * heads, queries, 2, dtype=torch.float32)


def _gradients(query: Tensor, key: Tensor, value: Tensor, block: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    pairs, queries = query.shape[0] * query.shape[1], query.shape[2]
    to_factors = query.new_empty(pairs, -(-queries // block), 2, dtype=torch.float32)
    to_query, to_key, to_value = (tensor.new_empty(tensor.shape) for tensor in (query, key, value))
    return to_query, to_key, to_value, to_factors


def _options(kernel: str, query: Tensor, value: Tensor, is_causal: bool) -> dict[str, Any]:
    """Return blocks of queries and keys that fit the registers, and a head's features rounded up to powers of two."""
    is_half = query.dtype in _HALF
    queries, keys, warps = _BLOCKS[kernel] if is_half else (32, 32, 4)
    wide, deep = (max(16, 2 ** (tensor.shape[3] - 1).bit_length()) for tensor in (query, value))
    sizes = {"QUERIES": queries, "KEYS": keys, "WIDTH": wide, "DEPTH": deep}
    return {"CAUSAL": is_causal, **sizes, "num_warps": warps, "num_stages": 2 if is_half else 1}
