"""Train and evaluate M networks of dense layers, BatchNorm and ReLU at once, in C++.

These are PyTorch operators so that compiled code can call them.  One operator computes loss and gradients, so that a
network's activations stay in a core's caches in both passes.
M networks, B batch, F features, U units.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages.ops.fast.cpp import call, in_parts, is_single, load_library, require_single

SOURCE = Path(__file__).with_suffix(".cpp")


def is_available() -> bool:
    """True if the C++ library can be compiled and loaded."""
    return load_library(SOURCE) is not None


def applies(features: Tensor) -> bool:
    """True if the operators support these features, and no dispatch mode watches the products (as `tf32` does)."""
    is_watched = not torch.compiler.is_compiling() and torch._C._len_torch_dispatch_stack() > 0
    return is_single(features) and not features.requires_grad and not is_watched


def losses(
    features: Tensor, targets: Tensor, parameters: Sequence[Tensor], epsilon: float
) -> tuple[Tensor, list[Tensor]]:
    """Return mean squared errors [M] in training mode, and each hidden layer's batch means and biased variances [M, U].

    features: [M, B, F]; targets: [M, B]; parameters: for each hidden layer weights [M, U, inputs] and BatchNorm scales
    and shifts [M, U], with ε `epsilon`; then the output unit's weights [M, 1, inputs] and biases [M, 1].  All are
    float32 on a CPU.  Only parameters get gradients; there are no second derivatives.

    Raises:
        TypeError: a tensor isn't float32 on a CPU.
        ValueError: the shapes don't match.
    """
    found: tuple[Tensor, list[Tensor], list[Tensor]] = _step(features, targets, list(parameters), epsilon)
    return found[0], found[1]


@torch.library.custom_op("claimcheck::dense_stack_step", mutates_args=(), device_types="cpu")
def _step(
    features: Tensor, targets: Tensor, parameters: list[Tensor], epsilon: float
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Return losses [M], statistics, and the parameters' gradients for a loss gradient of 1."""
    _check([features, targets, *parameters], parameters)
    if targets.shape != features.shape[:2]:
        raise ValueError(
            f"features, targets have shapes {[*features.shape]}, {[*targets.shape]}; expected [M, B, F], [M, B]"
        )
    found, statistics, gradients = _fake_step(features, targets, parameters, epsilon)
    tensors = [features.contiguous(), targets.contiguous(), found]
    _call("dense_stack_step", tensors, parameters, [*statistics, *gradients], epsilon)
    return found, statistics, gradients


@torch.library.custom_op("claimcheck::dense_stack_predict", mutates_args=(), device_types="cpu")
def predict(features: Tensor, parameters: list[Tensor], statistics: list[Tensor], epsilon: float) -> Tensor:
    """Return predictions [M, B] in evaluation mode, without gradients; arguments as for `losses`.

    statistics: means and variances [M, U] of each hidden layer.

    Raises:
        TypeError: a tensor isn't float32 on a CPU.
        ValueError: the shapes don't match.
    """
    _check([features, *parameters, *statistics], parameters)
    wanted = [scale.shape for scale in parameters[1:-2:3] for _ in range(2)]
    if [tensor.shape for tensor in statistics] != wanted:
        raise ValueError(
            f"statistics have shapes {[[*tensor.shape] for tensor in statistics]}; expected those of scales"
        )
    found = _fake_predict(features, parameters, statistics, epsilon)
    own = [tensor.contiguous() for tensor in statistics]
    _call("dense_stack_predict", [features.contiguous(), found], parameters, own, epsilon)
    return found


def _check(tensors: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
    """Check dtype and device of `tensors`, and the shapes of `parameters` for the features, the first of `tensors`."""
    require_single("dense_stack", tensors)
    networks, _, inputs = tensors[0].shape
    wanted: list[tuple[int, ...]] = []
    for weight in parameters[:-2:3]:
        units = weight.shape[1]
        wanted += [(networks, units, inputs), (networks, units), (networks, units)]
        inputs = units
    wanted += [(networks, 1, inputs), (networks, 1)]
    shapes = [tuple(parameter.shape) for parameter in parameters]
    if shapes != wanted:
        raise ValueError(f"parameters have shapes {shapes}; expected {wanted}")


def _call(
    name: str, tensors: Sequence[Tensor], parameters: Sequence[Tensor], others: Sequence[Tensor], epsilon: float
) -> None:
    """Call kernel `name` with `tensors`, features first, and the addresses of the parameters and others."""
    networks, samples, features = tensors[0].shape
    units = [weight.shape[1] for weight in parameters[:-2:3]]
    own = [parameter.contiguous() for parameter in parameters]
    addresses, sizes = [tensor.data_ptr() for tensor in (*own, *others)], (samples, features, len(units), *units)

    def work(part: slice) -> None:
        call(SOURCE, name, *tensors, addresses, (part.start, part.stop), sizes, epsilon)

    in_parts(networks, work)


@_step.register_fake
def _fake_step(
    features: Tensor, targets: Tensor, parameters: list[Tensor], epsilon: float
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    statistics = [scale.new_empty(scale.shape) for scale in parameters[1:-2:3] for _ in range(2)]
    gradients = [parameter.new_empty(parameter.shape) for parameter in parameters]
    return features.new_empty(len(features)), statistics, gradients


@predict.register_fake
def _fake_predict(features: Tensor, parameters: list[Tensor], statistics: list[Tensor], epsilon: float) -> Tensor:
    return features.new_empty(features.shape[:2])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, list[Tensor], list[Tensor]]) -> None:
    _, statistics, gradients = output
    ctx.mark_non_differentiable(*statistics, *gradients)
    ctx.save_for_backward(*gradients)


def _differentiate(ctx: Any, grad: Tensor, *_: Any) -> tuple[None, None, list[Tensor], None]:
    if torch.is_grad_enabled():  # the saved gradients would be treated as constants
        raise RuntimeError("a stack of dense networks has no second derivatives")
    return None, None, [own * grad.view(-1, *[1] * (own.ndim - 1)) for own in ctx.saved_tensors], None


_step.register_autograd(_differentiate, setup_context=_save)
