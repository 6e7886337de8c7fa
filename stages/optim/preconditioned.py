"""Base of CG-FAC and K-FAC: SGD moves named Linear layers along F⁻¹∇L, a first-order rule moves everything else.

A subclass defines how a layer's gradient becomes a direction.  Momentum and weight decay of the named layers act on
that direction, as in the public code of the paper.  The text's equation 18 adds the direction; descent subtracts it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from stages.optim.capture import LayerBatch, LayerCapture, gradient_matrix, replace_gradient

Rest = Literal["adam", "sgd"]
ATTENTION_LAYERS = ("*attention.qkv", "*attention.projection")
"""How our networks name the projections of an attention module."""


class PreconditionedSpec(Protocol):
    """The fields of an optimiser's spec that `build` reads.  None means the default of the class that is built."""

    @property
    def lr(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def betas(self) -> tuple[float, float]: ...
    @property
    def damping(self) -> float | None: ...
    @property
    def cg_iterations(self) -> int | None: ...
    @property
    def cg_tolerance(self) -> float | None: ...
    @property
    def warm_start(self) -> bool | None: ...
    @property
    def reading(self) -> Literal["kronecker", "per-sample"] | None: ...
    @property
    def factor_decay(self) -> float | None: ...
    @property
    def update_interval(self) -> int | None: ...
    @property
    def kl_clip(self) -> float | None: ...
    @property
    def layers(self) -> tuple[str, ...] | None: ...
    @property
    def rest(self) -> Rest | None: ...
    @property
    def rest_lr(self) -> float | None: ...


SHARED_FIELDS = ("damping", "factor_decay", "update_interval", "kl_clip", "layers", "rest", "rest_lr")
CG_FIELDS = ("cg_iterations", "cg_tolerance", "warm_start", "reading")


def keywords(spec: PreconditionedSpec, *, known: tuple[str, ...]) -> dict[str, Any]:
    """Return the constructor's keyword arguments from a spec.

    Raises:
        ValueError: the spec sets a field that this optimiser would ignore.
    """
    chosen = {name: getattr(spec, name) for name in SHARED_FIELDS + CG_FIELDS if getattr(spec, name) is not None}
    if ignored := [name for name in chosen if name not in known]:
        raise ValueError(f"optimizer sets {', '.join(ignored)}, which it doesn't take; it takes {', '.join(known)}")
    first_order = ("lr", "momentum", "weight_decay", "betas")
    return chosen | {name: getattr(spec, name) for name in first_order}


class PreconditionedOptimizer(torch.optim.Optimizer, ABC):
    """Hooks the named layers, computes a direction for each, and applies SGD to them and `rest` to all others.

    Args:
        model: The network, before any compilation; its named layers get a forward hook.
        lr: Learning rate of the named layers; a schedule sets it on every parameter group.
        momentum: Momentum of SGD, wherever it is used.
        weight_decay: Added to the direction (SGD) or gradient (`rest`), as L2.
        betas: Coefficients of Adam, if it is used.
        damping: γ > 0 in (F + γ I) x = ∇L.
        update_interval: Steps from one use of a batch's curvature to the next.
        kl_clip: ε of equation 16: directions shrink together until ½ lr² Σ x·∇L, the step's Kullback-Leibler
            divergence to second order, is at most this.  None leaves them unchanged, as in Algorithm 1.
        layers: Names of the Linear layers, with `*` for any text.
        rest: Rule of all other parameters.
        rest_lr: Their learning rate if it differs from `lr`; a schedule keeps its ratio to `lr`.

    Raises:
        ValueError: a value is out of its range, or a pattern of `layers` matches nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        betas: tuple[float, float],
        damping: float,
        update_interval: int,
        kl_clip: float | None,
        layers: tuple[str, ...],
        rest: Rest,
        rest_lr: float | None,
    ) -> None:
        for name, value in {
            "lr": lr,
            "damping": damping,
            "update_interval": update_interval,
            "kl_clip": kl_clip,
        }.items():
            if value is not None and value <= 0:
                raise ValueError(f"{name} is {value}; expected more than 0")
        self.capture = LayerCapture(model, layers)
        named = [parameter for layer in self.capture.layers.values() for parameter in layer.parameters()]
        ids = {id(parameter) for parameter in named}
        others = [parameter for parameter in model.parameters() if id(parameter) not in ids]
        super().__init__([{"params": named}, {"params": others}], {"lr": lr})
        sgd = partial(torch.optim.SGD, lr=lr, momentum=momentum, weight_decay=weight_decay)
        self._layer_rule = sgd([{"params": named}])
        self._rest_rule: torch.optim.Optimizer
        if rest == "sgd":
            self._rest_rule = sgd([{"params": others}])
        elif rest == "adam":
            self._rest_rule = torch.optim.Adam([{"params": others}], lr=lr, betas=betas, weight_decay=weight_decay)
        else:
            raise ValueError(f"rest is {rest!r}; known: adam, sgd")
        self._rest_scale = 1.0 if rest_lr is None else rest_lr / lr
        self.damping, self.update_interval, self.kl_clip = damping, update_interval, kl_clip
        self.layer_state: dict[str, dict[str, Tensor]] = {name: {} for name in self.capture.layers}
        self._share_groups()
        self._go_to(0)

    @abstractmethod
    def direction(self, state: dict[str, Tensor], gradient: Tensor, batch: LayerBatch | None) -> Tensor:
        """Return one layer's x ≈ (F + γ I)⁻¹ ∇L [O, I]; `batch` is None between updates; `state` is kept and saved."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step; needs a forward and backward pass of the mean loss since the last.  Changes the gradients."""
        assert closure is None, "the curvature belongs to one pass"
        found = {}
        for name, layer in self.capture.layers.items():
            if layer.weight.grad is not None:
                gradient = gradient_matrix(layer)
                batch = self.capture.take(name) if self.capture.enabled else None
                found[name] = self.direction(self.layer_state[name], gradient, batch), gradient
        scale = self._clip(list(found.values()))
        for name, (direction, _) in found.items():
            replace_gradient(self.capture.layers[name], direction * scale)
        self._layer_rule.step()
        rest = self._rest_rule.param_groups[0]
        lr = rest["lr"]
        rest["lr"] = lr * self._rest_scale
        self._rest_rule.step()
        rest["lr"] = lr
        self._go_to(self._steps + 1)

    def _clip(self, found: list[tuple[Tensor, Tensor]]) -> Tensor | float:
        if self.kl_clip is None or not found:
            return 1.0
        divergence = 0.5 * self.param_groups[0]["lr"] ** 2 * sum((x * b).sum() for x, b in found)
        return (self.kl_clip / divergence).sqrt().clamp(max=1.0)

    def _go_to(self, step: int) -> None:
        self._steps = step
        self.capture.enabled = step % self.update_interval == 0
        self.capture.clear()

    def _share_groups(self) -> None:
        self.param_groups = [*self._layer_rule.param_groups, *self._rest_rule.param_groups]

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self.capture.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of both rules, the step and each layer's tensors, loadable with `weights_only`."""
        return {
            "layer_rule": self._layer_rule.state_dict(),
            "rest_rule": self._rest_rule.state_dict(),
            "step": self._steps,
            "layers": {name: dict(state) for name, state in self.layer_state.items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore `state_dict`'s result on the model's device; the tensors are copied."""
        if state_dict["layers"].keys() != self.layer_state.keys():
            raise ValueError(f"saved for layers {', '.join(state_dict['layers'])}, not {', '.join(self.layer_state)}")
        self._layer_rule.load_state_dict(state_dict["layer_rule"])
        self._rest_rule.load_state_dict(state_dict["rest_rule"])
        for name, tensors in state_dict["layers"].items():
            device = self.capture.layers[name].weight.device
            self.layer_state[name] = {key: tensor.to(device, copy=True) for key, tensor in tensors.items()}
        self._share_groups()
        self._go_to(state_dict["step"])
