"""The data that a Fisher-based optimiser needs from Linear layers: their inputs a and the gradients g of outputs.

B samples, T uses of the layer per sample (tokens), I inputs (and one more, a constant 1, if the layer has a bias),
O outputs.  The loss is the mean over B samples, so its gradient times B is that of a sample's own loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class LayerBatch:
    """One layer in one backward pass: `inputs` a [B, T, I]; `gradients` g [B, T, O], of each sample's own loss."""

    inputs: Tensor
    gradients: Tensor


def select_layers(model: nn.Module, patterns: Sequence[str]) -> dict[str, nn.Linear]:
    """Return the Linear layers whose names match a pattern (`*` is any text), in the model's order.

    Raises:
        ValueError: a pattern matches no Linear layer.
    """
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in linear):
            raise ValueError(f"layers: {pattern!r} matches no nn.Linear of the model; it has {', '.join(linear)}")
    return {name: layer for name, layer in linear.items() if any(fnmatchcase(name, p) for p in patterns)}


def working_dtype(layer: nn.Linear) -> torch.dtype:
    """Return float32 or wider: half precision can't represent products of small gradients and solutions."""
    return torch.promote_types(layer.weight.dtype, torch.float32)


def gradient_matrix(layer: nn.Linear) -> Tensor:
    """Return the matrix b = ∇L [O, I] of Algorithm 1, the bias as its last column."""
    assert layer.weight.grad is not None, "called after backward"
    parts = [layer.weight.grad]
    if layer.bias is not None:
        assert layer.bias.grad is not None, "a bias has a gradient where its weight has one"
        parts.append(layer.bias.grad[:, None])
    return torch.cat(parts, dim=1).to(working_dtype(layer))


def replace_gradient(layer: nn.Linear, direction: Tensor) -> None:
    """Overwrite the layer's gradients with `direction` [O, I]."""
    assert layer.weight.grad is not None, "called after backward"
    layer.weight.grad.copy_(direction[:, : layer.in_features])
    if layer.bias is not None:
        assert layer.bias.grad is not None, "a bias has a gradient where its weight has one"
        layer.bias.grad.copy_(direction[:, -1])


class LayerCapture:
    """Hooks on the named Linear layers; a pass without gradients (evaluation) isn't captured.

    Expects one forward and one backward pass per `take`; if a sample uses a layer several times, T grows.
    """

    def __init__(self, model: nn.Module, patterns: Sequence[str]) -> None:
        self.layers = select_layers(model, patterns)
        self.enabled = True
        self._passes: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in self.layers}
        for name in self.layers:
            self._hook(name)

    def _hook(self, name: str) -> None:
        def remember(layer: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            # A copy of the model carries this hook too, and must not be captured.
            if self.enabled and output.requires_grad and layer is self.layers[name]:
                inputs = args[0].detach()
                output.register_hook(lambda gradient: self._passes[name].append((inputs, gradient)))

        self.layers[name].register_forward_hook(remember)

    def clear(self) -> None:
        for passes in self._passes.values():
            passes.clear()

    def take(self, name: str) -> LayerBatch:
        """Return and remove the layer's data of the last backward pass.

        Raises:
            RuntimeError: nothing was captured, because no pass ran since the last step, or only another model's.
        """
        layer, passes = self.layers[name], self._passes[name]
        if not passes:
            raise RuntimeError(
                f"{name} has a gradient, but no pass was captured since the last step: run forward and backward once "
                "before each step, on the model that the optimiser was built with, compiled after that if at all"
            )
        samples, dtype = len(passes[0][0]), working_dtype(layer)
        inputs = torch.cat([a.reshape(samples, -1, layer.in_features) for a, _ in passes], dim=1).to(dtype)
        gradients = torch.cat([g.reshape(samples, -1, layer.out_features) for _, g in passes], dim=1).to(dtype)
        passes.clear()
        if layer.bias is not None:
            inputs = nn.functional.pad(inputs, (0, 1), value=1.0)
        return LayerBatch(inputs, gradients * samples)
