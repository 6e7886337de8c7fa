"""The kernels of a trained HyperBF: σ and M, the subject of section 4 and appendix 6.2."""

from __future__ import annotations

import math
from statistics import fmean

from torch import Tensor, nn

from stages.papers import Observed, refuse_model
from stages.papers.hyperbf.hyperbf import HyperBF

MODELS = (HyperBF,)


def observe(model: nn.Module, images: Tensor) -> Observed:
    """Return `HyperBF.observe_kernels` and one number for each of the paper's two statements; `images` are unused.

    `kernel_width_gap`: mean over the blocks of ln(σ feed-forward / σ attention), above 0 if attention's σ is the
    smaller.  `metric_distance_from_identity`: mean of ‖WᵀW − I‖ / ‖I‖ (Frobenius) over the learned metrics; absent if
    none is learned.

    Raises:
        TypeError: the model isn't a HyperBF.
    """
    if not isinstance(model, HyperBF):
        raise refuse_model(model, MODELS)
    kernels = model.observe_kernels()
    pairs = zip(kernels["attention_sigma"], kernels["feedforward_sigma"], strict=True)
    changes = [change for name, values in kernels.items() if name.endswith("_metric_change") for change in values]
    numbers = {"kernel_width_gap": fmean(math.log(second / first) for first, second in pairs)}
    if changes:
        numbers["metric_distance_from_identity"] = fmean(changes)
    return Observed(numbers=numbers, layers={name: [[value] for value in values] for name, values in kernels.items()})
