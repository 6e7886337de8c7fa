"""Fast attention with Yat or HyperBF scores: C++ on CPUs (`attention.cpp`).

If no fast path applies, `attention` returns None and the caller uses PyTorch's operators.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from stages.ops.fast.cpp import call, head_strides, in_parts, in_rows, is_plain, load_library

Factor = Tensor | float

SOURCE = Path(__file__).with_suffix(".cpp")
_NAMES = {torch.float32: "attention_{}", torch.bfloat16: "attention_{}_half"}
_PEAK = 2  # numbers stored per query for the backward pass, unless its weights are stored
_VECTOR = 16  # floats in the widest vector register; rows of weights are padded to a multiple of it


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: Factor,
    epsilon: Factor | None,
    *,
    key_terms: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor | None:
    """Softmax of scores times values.  Scores are Yat's or, without `epsilon`, s (2 q·k − t) with the keys' terms t.

    query: [..., T, E]; key: [..., S, E]; value: [..., S, F]; key_terms: [..., S], else ‖k‖²; returns [..., T, F].
    """
    if not _fit(query, key, value, key_terms) or not _can_attend(query, key, value):
        return None
    is_yat, terms = epsilon is not None, [] if key_terms is None else [key_terms]
    scale, epsilon = _as_tensor(scale), _as_tensor(0.0 if epsilon is None else epsilon)
    if not scale.ndim == epsilon.ndim == 0 or not is_plain(scale, epsilon, *terms, compiled=True):
        return None
    outer, queries, keys, values = query.shape[:-2], query, key, value
    if len(outer) != 2:
        queries, keys, values = (tensor.reshape(1, -1, *tensor.shape[-2:]) for tensor in (query, key, value))
    tensors = query, key, value, scale, epsilon, *terms
    is_trained = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    keeps_weights = is_trained and not is_yat and _is_small(query, value)
    mixed = _Attention.apply(queries, keys, values, key_terms, scale, epsilon, is_causal, is_yat, keeps_weights)
    return mixed if len(outer) == 2 else mixed.reshape(*outer, *mixed.shape[-2:])


def _as_tensor(factor: Factor) -> Tensor:
    return factor if isinstance(factor, Tensor) else torch.full((), factor, dtype=torch.float32, device="cpu")


def _fit(query: Tensor, key: Tensor, value: Tensor, key_terms: Tensor | None = None) -> bool:
    """True if the shapes match without broadcasting; PyTorch's operators handle or reject all others."""
    is_one = query.ndim > 1 and query.shape[:-2] == key.shape[:-2] and query.shape[-1] == key.shape[-1]
    return is_one and key.shape[:-1] == value.shape[:-1] and (key_terms is None or key_terms.shape == key.shape[:-1])


def _is_small(query: Tensor, value: Tensor) -> bool:
    """True if a map of weights takes no more memory than keys and values."""
    return query.shape[-2] <= query.shape[-1] + value.shape[-1]


def _can_attend(*tensors: Tensor) -> bool:
    dtype = tensors[0].dtype
    return dtype in _NAMES and is_plain(*tensors, dtype=dtype, compiled=True) and is_available()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def is_available() -> bool:
    """True if the C++ library can be compiled and loaded."""
    return load_library(SOURCE) is not None


class _Attention(torch.autograd.Function):
    """query: [B, H, T, E]; key: [B, H, S, E]; value: [B, H, S, F]; returns [B, H, T, F], stored as [B, T, H, F].

    These tensors are float32 or bfloat16; everything else is float32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_terms: Tensor | None,
        scale: Tensor,
        epsilon: Tensor,
        is_causal: bool,
        is_yat: bool,
        keeps_weights: bool,
    ) -> Tensor:
        attend = _forward_operator if torch.compiler.is_compiling() else _forward
        out, kept = attend(query, key, value, key_terms, scale, epsilon, is_causal, is_yat, keeps_weights)
        ctx.save_for_backward(query, key, value, key_terms, scale, epsilon, kept)
        ctx.options = is_causal, is_yat
        result: Tensor = out
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        differentiate = _backward_operator if torch.compiler.is_compiling() else _backward
        query, key, value, key_terms, scale, epsilon, kept = ctx.saved_tensors
        gradients = differentiate(query, key, value, key_terms, scale, epsilon, kept, grad, *ctx.options)
        to_query, to_key, to_value, to_terms, (to_scale, to_epsilon) = gradients
        to_terms = None if key_terms is None else to_terms
        return to_query, to_key, to_value, to_terms, to_scale, to_epsilon, None, None, None


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_terms: Tensor | None,
    scale: Tensor,
    epsilon: Tensor,
    is_causal: bool,
    is_yat: bool,
    keeps_weights: bool,
) -> tuple[Tensor, Tensor]:
    """Return the result and, for the backward pass, weights [B H, T, S or more] or maxima and sums [B H, T, 2]."""
    query, key, value = map(in_rows, (query, key, value))
    key_terms = None if key_terms is None else key_terms.contiguous()
    out, kept = _empty(query, key, value, keeps_weights)
    options = _sizes(query, key, value, kept), head_strides(query, key, value, out), scale.item(), epsilon.item()

    def work(maps: slice) -> None:
        tensors = query, key, value, key_terms, out, kept
        _call(_NAMES[query.dtype].format("forward"), *tensors, *options, is_causal, is_yat, maps.start, maps.stop)

    in_parts(len(kept), work)
    return out, kept


def _backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_terms: Tensor | None,
    scale: Tensor,
    epsilon: Tensor,
    kept: Tensor,
    grad: Tensor,
    is_causal: bool,
    is_yat: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return gradients of query, key, value, keys' terms (empty without them), and of scale and epsilon, [2]."""
    query, key, value, grad = map(in_rows, (query, key, value, grad))
    terms = None if key_terms is None else key_terms.contiguous()
    to_query, to_key, to_value = (tensor.new_empty(tensor.shape) for tensor in (query, key, value))
    to_terms = _gradient_of(terms, query)
    totals = kept.new_zeros(len(kept), 2, dtype=torch.float64)
    options = _sizes(query, key, value, kept), head_strides(query, key, value, grad), scale.item(), epsilon.item()

    def work(maps: slice) -> None:
        gradients = to_query, to_key, to_value, None if terms is None else to_terms, totals
        tensors = query, key, value, terms, grad, kept, *gradients
        _call(_NAMES[query.dtype].format("backward"), *tensors, *options, is_causal, is_yat, maps.start, maps.stop)

    in_parts(len(kept), work)
    return to_query, to_key, to_value, to_terms, totals.sum(0).float()


def _sizes(query: Tensor, key: Tensor, value: Tensor, kept: Tensor) -> tuple[int, ...]:
    _, heads, queries, width = query.shape
    return heads, queries, key.shape[2], width, value.shape[3], kept.shape[2]


def _empty(query: Tensor, key: Tensor, value: Tensor, keeps_weights: bool) -> tuple[Tensor, Tensor]:
    """Allocate the results of `_forward`."""
    samples, heads, queries, _ = query.shape
    out = query.new_empty(samples, queries, heads, value.shape[3]).transpose(1, 2)
    row = -(-key.shape[2] // _VECTOR) * _VECTOR if keeps_weights else _PEAK
    return out, query.new_empty(samples * heads, queries, row, dtype=torch.float32)


def _gradient_of(key_terms: Tensor | None, query: Tensor) -> Tensor:
    """Allocate the gradient of the keys' terms; empty without them."""
    return query.new_empty(0, dtype=torch.float32) if key_terms is None else torch.empty_like(key_terms)


def _call(name: str, *arguments: Any) -> None:
    call(SOURCE, name, *arguments)


# Under `torch.compile` these functions are opaque operators.  Eager code calls them directly to avoid dispatch costs.
_forward_operator = torch.library.custom_op("claimcheck::attention_forward", _forward, mutates_args=())
_backward_operator = torch.library.custom_op("claimcheck::attention_backward", _backward, mutates_args=())


@_forward_operator.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_terms: Tensor | None,
    scale: Tensor,
    epsilon: Tensor,
    is_causal: bool,
    is_yat: bool,
    keeps_weights: bool,
) -> tuple[Tensor, Tensor]:
    return _empty(query, key, value, keeps_weights)


@_backward_operator.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_terms: Tensor | None,
    scale: Tensor,
    epsilon: Tensor,
    kept: Tensor,
    grad: Tensor,
    is_causal: bool,
    is_yat: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    to_query, to_key, to_value = (tensor.new_empty(tensor.shape) for tensor in (query, key, value))
    terms = None if key_terms is None else key_terms.contiguous()
    return to_query, to_key, to_value, _gradient_of(terms, query), kept.new_empty(2)
