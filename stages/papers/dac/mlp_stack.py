"""The fast path of `mlp` for several runs: networks of one architecture in one (`stages.training.stacked` finds it).

Every tensor has a leading dimension of M networks here, and in maps a unit's samples lie side by side, over which
BatchNorm takes its means.
M networks, B batch, F input features, U units, I inputs of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.ops.dac_layers import DACLinear
from stages.ops.fast import dac_stack
from stages.papers.dac.mlp import DACMLP, MLP


class Stack(nn.Module):
    """M networks.  Standardised features [M, B, F] -> predictions [M, B].

    Equal to the networks one by one except for rounding; tensors keep each network's own names here, with `/` for the
    dots.

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
        parameters = [dict(network.named_parameters()) for network in networks]
        for name in parameters[0]:
            stacked = torch.stack([own[name].detach() for own in parameters])
            self.register_parameter(name.replace(".", "/"), nn.Parameter(stacked))
        buffers = [dict(network.named_buffers()) for network in networks]
        for name in buffers[0]:
            self.register_buffer(name.replace(".", "/"), torch.stack([own[name] for own in buffers]))

    def forward(self, features: Tensor) -> Tensor:
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
        return (self(features) - targets).square().mean(1)

    def weights(self, column: int) -> dict[str, Tensor]:
        """A copy of one network's state, under its own names."""
        return {name.replace("/", "."): tensor[column].clone() for name, tensor in self.state_dict().items()}

    def _shifted(self, x: Tensor, bias: str) -> Tensor:
        """Maps x [M, U, B] with this bias [M, U], if there is one."""
        shift: Tensor | None = getattr(self, bias, None)
        return x if shift is None else x + shift[..., None]

    def _dac(self, x: Tensor, name: str) -> Tensor:
        """DAC paper, equation 4: a sum over inputs of w · max(0, x + b), each product with its own bias."""
        weight, bias = getattr(self, f"{name}/weight"), getattr(self, f"{name}/bias")
        if self.has_sums and dac_stack.applies(x):
            return dac_stack.dac_stack(x, weight, bias)
        return (F.relu(x[:, None] + bias[..., None]) * weight[..., None]).sum(2)

    def _batch_norm(self, x: Tensor, name: str, layer: nn.BatchNorm1d) -> Tensor:
        """Normalise by each network's own batch; the running variance is the unbiased one, as in PyTorch."""
        mean, variance = getattr(self, f"{name}/running_mean"), getattr(self, f"{name}/running_var")
        if self.training:
            batch_mean = x.mean(2)
            batch_variance = (x - batch_mean[..., None]).square().mean(2)
            momentum, size = layer.momentum or 0.0, x.shape[2]
            with torch.no_grad():
                mean.lerp_(batch_mean, momentum)
                variance.lerp_(batch_variance * (size / (size - 1)), momentum)
                getattr(self, f"{name}/num_batches_tracked").add_(1)
            mean, variance = batch_mean, batch_variance
        scale = torch.rsqrt(variance + layer.eps) * getattr(self, f"{name}/weight")
        return self._shifted((x - mean[..., None]) * scale[..., None], f"{name}/bias")
