"""Fast path of `mlp` for several runs: networks of one architecture as one, for `stages.training.stacked`.

Every tensor has a leading dimension of M networks.  Maps store a unit's samples contiguously, because BatchNorm
averages over them.  M networks, B batch, F input features, U units, I inputs of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.ops.dac import DACLinear
from stages.ops.fast import dac_stack, dense_stack
from stages.ops.fast.cpp import is_single
from stages.papers.dac.mlp import DACMLP, MLP

STATISTICS = "running_mean", "running_var"


class Stack(nn.Module):
    """M networks.  Standardised features [M, B, F] -> predictions [M, B].

    Equal to the single networks except for rounding; tensors keep the networks' names, with `/` for dots.

    Raises:
        TypeError: a layer is of an unknown kind.
    """

    def __init__(self, networks: Sequence[MLP | DACMLP]) -> None:
        super().__init__()
        self.plan = [*((f"layers/{name}", layer) for name, layer in networks[0].layers.named_children())]
        self.plan.append(("head", networks[0].head))
        for name, layer in self.plan:
            if not isinstance(layer, nn.Linear | DACLinear | nn.BatchNorm1d | nn.ReLU):
                raise TypeError(f"{name} is a {type(layer).__name__}, which can't be stacked")
        self.has_sums = isinstance(networks[0].head, DACLinear) and dac_stack.is_available()
        self.is_dense = _is_dense(self.plan) and dense_stack.is_available()
        parameters = [dict(network.named_parameters()) for network in networks]
        for name in parameters[0]:
            stacked = torch.stack([own[name].detach() for own in parameters])
            self.register_parameter(name.replace(".", "/"), nn.Parameter(stacked))
        buffers = [dict(network.named_buffers()) for network in networks]
        for name in buffers[0]:
            self.register_buffer(name.replace(".", "/"), torch.stack([own[name] for own in buffers]))

    def forward(self, features: Tensor) -> Tensor:
        if self.is_dense and not self.training and not torch.is_grad_enabled() and dense_stack.applies(features):
            statistics = [getattr(self, f"{name}/{kind}") for name, _ in self._norms() for kind in STATISTICS]
            return dense_stack.predict(features, [*self.parameters()], statistics, self._norms()[0][1].eps)
        x = features.transpose(1, 2).contiguous()  # [M, F, B]
        for name, layer in self.plan:
            if isinstance(layer, nn.Linear):
                x = self._shifted(torch.bmm(getattr(self, f"{name}/weight"), x), f"{name}/bias")
            elif isinstance(layer, DACLinear):
                x = self._dac(x, name)
            elif isinstance(layer, nn.BatchNorm1d):
                x = self._batch_norm(x, name, layer)
            else:
                x = F.relu(x)
        return self._shifted(x, "output_bias").squeeze(1)

    def losses(self, features: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error of each network, [M], on features [M, B, F] and targets [M, B]."""
        if not (self.is_dense and self.training and dense_stack.applies(features)):
            return (self(features) - targets).square().mean(1)
        norms = self._norms()
        losses, statistics = dense_stack.losses(features, targets, [*self.parameters()], norms[0][1].eps)
        for (name, layer), mean, variance in zip(norms, statistics[::2], statistics[1::2], strict=True):
            self._follow(name, layer, mean, variance, features.shape[1])
        return losses

    def weights(self, column: int) -> dict[str, Tensor]:
        """Copy one network's state, under its own names."""
        return {name.replace("/", "."): tensor[column].clone() for name, tensor in self.state_dict().items()}

    def _shifted(self, x: Tensor, bias: str) -> Tensor:
        """Add this bias [M, U], if there is one, to maps x [M, U, B]."""
        shift: Tensor | None = getattr(self, bias, None)
        return x if shift is None else x + shift[..., None]

    def _dac(self, x: Tensor, name: str) -> Tensor:
        """DAC paper, equation 4: a sum over inputs of w · max(0, x + b), each product with its own bias."""
        weight, bias = getattr(self, f"{name}/weight"), getattr(self, f"{name}/bias")
        if self.has_sums and is_single(x):
            return dac_stack.dac_stack(x, weight, bias)
        return (F.relu(x[:, None] + bias[..., None]) * weight[..., None]).sum(2)

    def _batch_norm(self, x: Tensor, name: str, layer: nn.BatchNorm1d) -> Tensor:
        """Normalise each network by its own batch."""
        mean, variance = (getattr(self, f"{name}/{kind}") for kind in STATISTICS)
        if self.training:
            batch_mean = x.mean(2)
            batch_variance = (x - batch_mean[..., None]).square().mean(2)
            self._follow(name, layer, batch_mean, batch_variance, x.shape[2])
            mean, variance = batch_mean, batch_variance
        scale = torch.rsqrt(variance + layer.eps) * getattr(self, f"{name}/weight")
        return self._shifted((x - mean[..., None]) * scale[..., None], f"{name}/bias")

    def _follow(self, name: str, layer: nn.BatchNorm1d, mean: Tensor, variance: Tensor, size: int) -> None:
        """Move the running statistics towards a batch's; the running variance is the unbiased one, as in PyTorch."""
        momentum = layer.momentum or 0.0
        with torch.no_grad():
            getattr(self, f"{name}/running_mean").lerp_(mean, momentum)
            getattr(self, f"{name}/running_var").lerp_(variance * (size / (size - 1)), momentum)
            getattr(self, f"{name}/num_batches_tracked").add_(1)

    def _norms(self) -> list[tuple[str, nn.BatchNorm1d]]:
        return [(name, layer) for name, layer in self.plan if isinstance(layer, nn.BatchNorm1d)]


def _is_dense(plan: Sequence[tuple[str, nn.Module]]) -> bool:
    """True if `dense_stack` supports it: (dense → BatchNorm → ReLU), d times → dense with 1 unit and a bias."""
    *blocks, head = [layer for _, layer in plan]
    norms = [layer for layer in blocks if isinstance(layer, nn.BatchNorm1d)]
    block = [(nn.Linear, ["weight"]), (nn.BatchNorm1d, ["weight", "bias"]), (nn.ReLU, [])]
    found = [(type(layer), [name for name, _ in layer.named_parameters()]) for layer in (*blocks, head)]
    has_one_unit = isinstance(head, nn.Linear) and head.out_features == 1
    has_one_epsilon = len({layer.eps for layer in norms}) == 1
    return found == [*block * len(norms), (nn.Linear, ["weight", "bias"])] and has_one_unit and has_one_epsilon
