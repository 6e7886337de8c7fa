"""Operations as the DAC paper counts them (section 4): multiplications and additions, no activation functions.

    convolution, fully connected   2 for each weight and output position
    BN                             2 for each output, with or without its shift
    DAC biases                     1 for each pair (i, j) and position where the activated map is kept

Section 4 keeps those maps at the output's resolution; with a stride the input's is larger, and Table 2 has its numbers.
Pooling, sums with shortcuts and the biases of single channels (below 0.3 %) are left out, as in Table 2's baselines.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stages.ops.dac_layers import DACConv2d, DACLinear


@dataclass(frozen=True, kw_only=True)
class Operations:
    """Operations of one sample's forward pass.  `bias_at_input` and `bias_at_output` count the same additions in two
    ways.
    """

    linear: int = 0
    norm: int = 0
    bias_at_input: int = 0
    bias_at_output: int = 0

    @property
    def total_at_input(self) -> int:
        return self.linear + self.norm + self.bias_at_input

    @property
    def total_at_output(self) -> int:
        return self.linear + self.norm + self.bias_at_output


def count_operations(model: nn.Module, shape: tuple[int, ...], *, scale: int = 1) -> Operations:
    """Layer by layer over one sample of `shape`.  The model's training mode is kept.

    `scale` counts every map's pixels that many times: the cost of an image of 80 x 80 is found faster from one of 8 x
    8.
    """
    rows: list[Operations] = []

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        rows.append(_of_layer(layer, inputs[0], output, scale if output.ndim == 4 else 1))

    handles = [module.register_forward_hook(count) for module in model.modules()]
    was_training = model.training
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(1, *shape))
    finally:
        model.train(was_training)
        for handle in handles:
            handle.remove()
    names = Operations.__dataclass_fields__
    return Operations(**{name: sum(getattr(row, name) for row in rows) for name in names})


def _of_layer(layer: nn.Module, x: Tensor, output: Tensor, scale: int) -> Operations:
    at_input, at_output = scale * x[0, 0].numel(), scale * output[0, 0].numel()
    if isinstance(layer, nn.Conv2d | nn.Linear):
        return Operations(linear=2 * layer.weight.numel() * at_output)
    if isinstance(layer, DACConv2d | DACLinear):
        biases = layer.bias.numel()
        return Operations(
            linear=2 * layer.weight.numel() * at_output,
            bias_at_input=biases * at_input,
            bias_at_output=biases * at_output,
        )
    if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
        return Operations(norm=2 * layer.num_features * at_output)
    return Operations()
