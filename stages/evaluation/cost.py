"""What a model costs: parameters, operations, inference time.

`shape` is that of a sample: (C, H, W) of an image, (D,) of a table's row, (T,) of a window of tokens.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from stages.device import device_name

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Median seconds per sample of a forward pass, with all that a reader needs to repeat the measurement.

    `warmup` passes come first and are not counted, then `repeats` are timed one by one.  The clock starts and stops
    with the device idle, so that queued work counts; on a CPU a call returns when it is done.
    """

    seconds_per_sample: float
    batch_size: int
    warmup: int
    repeats: int
    device: str
    threads: int


def count_parameters(model: nn.Module) -> int:
    """Trainable numbers; shared ones count once, buffers such as BatchNorm's running statistics don't count."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def flops_per_sample(model: nn.Module, shape: Shape, vocabulary: int | None = None) -> int:
    """2 x multiply-accumulates of one sample's forward pass: matrix products, convolutions and attention.

    Biases, normalisation, activations and softmax don't count.  `model` must not be compiled, since a compiled one
    hides its operations from the counter.  `vocabulary`: the sample is one of tokens.
    """
    # Shapes alone are computed with: nothing is multiplied, and no operator takes a way that hides its products.
    tensors = {name: tensor.to("meta") for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    dtype = next(model.parameters()).dtype if vocabulary is None else torch.int64
    samples = torch.zeros(1, *shape, device="meta", dtype=dtype)
    # Attention as two matrix products: every torch version and device counts those alike.
    with _inference(model), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        functional_call(model, tensors, (samples,))
    return counter.get_total_flops()


def measure_latencies(
    models: Sequence[nn.Module],
    shape: Shape,
    *,
    vocabulary: int | None = None,
    device: str | torch.device = "cpu",
    batch_size: int,
    warmup: int,
    repeats: int,
) -> list[Latency]:
    """Time `models` in turn, pass by pass, so that a machine whose speed drifts slows all of them alike.

    Every pass gets the same batch of `batch_size` samples, which are tokens where there is a `vocabulary`.  The models
    are moved to `device`, their training mode stays.
    """
    if batch_size < 1 or warmup < 0 or repeats < 1:
        raise ValueError(
            f"batch_size, warmup, repeats are {batch_size}, {warmup}, {repeats}; expected at least 1, 0, 1"
        )
    device = torch.device(device)
    generator = torch.Generator().manual_seed(0)
    if vocabulary is None:
        samples = torch.randn(batch_size, *shape, generator=generator).to(device)
    else:
        samples = torch.randint(vocabulary, (batch_size, *shape), generator=generator).to(device)
    seconds: list[list[float]] = [[] for _ in models]
    with ExitStack() as stack:
        for model in models:
            stack.enter_context(_inference(model.to(device)))
        for _ in range(warmup + repeats):
            for model, timings in zip(models, seconds, strict=True):
                inputs = samples.to(next(model.parameters()).dtype) if samples.is_floating_point() else samples
                _synchronise(device)
                start = time.perf_counter()
                model(inputs)
                _synchronise(device)
                timings.append(time.perf_counter() - start)
    return [
        Latency(
            seconds_per_sample=statistics.median(timings[warmup:]) / batch_size,
            batch_size=batch_size,
            warmup=warmup,
            repeats=repeats,
            device=device_name(device),
            threads=torch.get_num_threads(),
        )
        for timings in seconds
    ]


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _inference(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; each module's training mode comes back afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
