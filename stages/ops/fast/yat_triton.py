"""The fast path of `yat_attention` on a GPU: launches the kernels of `yat_kernels`.

The plain form holds several maps of scores for every head, which for the twelve layers of GPT-2 and 1,024 tokens is
more than a GPU has.  Forward and backward are torch operators, so that a compiler leaves them as they are and a CUDA
graph can hold them.

B samples, H heads, T queries, S keys, E features of a head, F of values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from stages.ops.fast import yat_kernels as kernels
from stages.ops.fast.cpp import TAKEN, head_strides, in_rows, keep_triton_kernels

keep_triton_kernels()
_HALF = (torch.bfloat16, torch.float16)
_COUNTED = 2**31  # as many as a kernel's 32 bits can count
_WIDEST = 128  # features of a head: a block of each operand stays on chip
# In half types: queries, keys and warps.  Larger blocks spill.
_BLOCKS = {"forward": (64, 64, 4), "query gradient": (64, 32, 4), "key gradient": (32, 64, 8)}


def applies(query: Tensor, key: Tensor, value: Tensor, scale: Tensor, epsilon: Tensor) -> bool:
    """True if `attention` can handle these: one device and type, heads that fit, and addresses that can be counted."""
    tensors = (query, key, value)
    is_known = {tensor.dtype for tensor in tensors} in ({torch.float32}, {torch.bfloat16}, {torch.float16})
    is_together = len({tensor.device for tensor in (*tensors, scale, epsilon)}) == 1
    numbers = [query.shape[:3].numel() * value.shape[3], *(tensor.numel() for tensor in tensors)]
    spans = [sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True)) for t in tensors]
    fits = max(query.shape[3], value.shape[3]) <= _WIDEST and max(*numbers, *spans) < _COUNTED
    return is_known and is_together and fits and min(numbers) > 0


def attention(query: Tensor, key: Tensor, value: Tensor, scale: Tensor, epsilon: Tensor, is_causal: bool) -> Tensor:
    """[B, H, T, E], [B, H, S, E], [B, H, S, F] -> [B, H, T, F]; scale and epsilon: one number each, on the device."""
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
    """The result [B, T, H, F] and, per query, the greatest score and one over the sum [B·H, T, 2]; float32."""
    TAKEN.add("yat_triton")
    query, key, value = map(in_rows, (query, key, value))
    (samples, heads, queries, width), (keys, depth) = query.shape, value.shape[2:]
    out, peaks = _results(query, value)
    options = _options("forward", query, value, is_causal)
    with torch.cuda.device_of(query):
        kernels.forward_kernel[(samples * heads, -(-queries // options["QUERIES"]))](
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
    """Gradients of query, key and value, and partial gradients of scale and epsilon [B·H, parts, 2] to be summed."""
    query, key, value, grad = map(in_rows, (query, key, value, grad.to(value.dtype)))
    (samples, heads, queries, width), (keys, depth) = query.shape, value.shape[2:]
    by_query, by_key = (_options(f"{name} gradient", query, value, is_causal) for name in ("query", "key"))
    to_query, to_key, to_value, to_factors = _gradients(query, key, value, by_query["QUERIES"])
    operands = query, key, value, scale, epsilon, grad, peaks, means.contiguous()
    sizes = heads, queries, keys, width, depth, *head_strides(query, key, value, grad)
    pairs = samples * heads
    with torch.cuda.device_of(query):
        kernels.query_gradient_kernel[(pairs, to_factors.shape[1])](*operands, to_query, to_factors, *sizes, **by_query)
        kernels.key_gradient_kernel[(pairs, -(-keys // by_key["KEYS"]))](*operands, to_key, to_value, *sizes, **by_key)
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
    """Blocks of queries and keys that fit the registers, and a head's features rounded up to a power of two."""
    is_half = query.dtype in _HALF
    queries, keys, warps = _BLOCKS[kernel] if is_half else (32, 32, 4)
    wide, deep = (max(16, 2 ** (tensor.shape[3] - 1).bit_length()) for tensor in (query, value))
    sizes = {"QUERIES": queries, "KEYS": keys, "WIDTH": wide, "DEPTH": deep}
    return {"CAUSAL": is_causal, **sizes, "num_warps": warps, "num_stages": 2 if is_half else 1}
