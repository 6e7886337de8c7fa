"""The cost of a model: parameters, operations, inference time.

`shape` is the shape of one sample: (C, H, W) for an image, (D,) for a table row, (T,) for a window of tokens.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from stages.device import device_name

Shape = tuple[int, ...]

_ROUNDS, _PASSES = 3, 2
"""Rounds of a measurement, at most, and the passes that each has at least."""


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Median seconds per sample of a forward pass, with everything needed to repeat the measurement.

    `repeats` passes are timed one by one, in rounds that each begin with `warmup` uncounted ones.  The clock starts and
    stops with the device idle, so that queued work counts; on a CPU a call returns when it is done.
    """

    seconds_per_sample: float
    batch_size: int
    warmup: int
    repeats: int
    device: str
    threads: int


def count_parameters(model: nn.Module) -> int:
    """Number of trainable values; shared ones count once, buffers such as BatchNorm's running statistics don't."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def flops_per_sample(model: nn.Module, shape: Shape, vocabulary: int | None = None, *, device: str = "meta") -> int:
    """2 x multiply-accumulates of one sample's forward pass: matrix products, convolutions and attention.

    Biases, normalisation, activations and softmax don't count.  `model` must not be compiled, because that hides its
    operations from the counter.  With a `vocabulary`, samples are tokens.  On the meta device only shapes are
    computed, so nothing is multiplied and no fast path hides its products.
    """
    tensors = {name: tensor.to(device) for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    first = next(model.parameters(), torch.zeros(()))
    dtype = first.dtype if vocabulary is None else torch.int64
    samples = torch.zeros(1, *shape, device=device, dtype=dtype)
    # Attention as two matrix products, which all torch versions and devices count alike.
    with _inference(model), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        functional_call(model, tensors, (samples,))
    return counter.get_total_flops()


class Stopwatch:
    """Times models in alternating rounds of passes, so that drifting machine speed affects all alike.

    Every pass gets the same batch of `batch_size` samples, which are tokens if there is a `vocabulary`.  Each round
    begins with `warmup` passes.

    Raises:
        ValueError: a size leaves nothing to measure.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        vocabulary: int | None = None,
        device: str | torch.device = "cpu",
        batch_size: int,
        warmup: int,
        repeats: int,
    ) -> None:
        if batch_size < 1 or warmup < 0 or repeats < 1:
            raise ValueError(
                f"batch_size, warmup, repeats are {batch_size}, {warmup}, {repeats}; expected at least 1, 0, 1"
            )
        self.batch_size, self.warmup, self.repeats = batch_size, warmup, repeats
        self.rounds = max(1, min(_ROUNDS, repeats // _PASSES))
        self.device = torch.device(device)
        generator = torch.Generator().manual_seed(0)
        if vocabulary is None:
            self.samples = torch.randn(batch_size, *shape, generator=generator).to(self.device)
        else:
            self.samples = torch.randint(vocabulary, (batch_size, *shape), generator=generator).to(self.device)
        self.seconds: dict[str, list[list[float]]] = {}

    def time(self, name: str, model: nn.Module) -> None:
        """Run the next round for `name`.  The model is moved to the device; its training mode is unchanged."""
        rounds = self.seconds.setdefault(name, [])
        counted = len(range(len(rounds), self.repeats, self.rounds))
        timings = []
        with _inference(model.to(self.device)):
            inputs = self.samples
            if inputs.is_floating_point():
                inputs = inputs.to(next(model.parameters()).dtype)
            for _ in range(self.warmup + counted):
                _synchronise(self.device)
                start = time.perf_counter()
                model(inputs)
                _synchronise(self.device)
                timings.append(time.perf_counter() - start)
        rounds.append(timings[self.warmup :])

    def latencies(self) -> dict[str, Latency]:
        """Return the latency of every model that was timed in all rounds."""
        return {
            name: Latency(
                seconds_per_sample=statistics.median(second for timings in rounds for second in timings)
                / self.batch_size,
                batch_size=self.batch_size,
                warmup=self.warmup,
                repeats=self.repeats,
                device=device_name(self.device),
                threads=torch.get_num_threads(),
            )
            for name, rounds in self.seconds.items()
            if len(rounds) == self.rounds
        }


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _inference(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode without gradients, then restore each module's training mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
