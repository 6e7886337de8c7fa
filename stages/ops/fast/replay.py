"""A training's forward and backward pass as a CUDA graph, recorded once and replayed with one launch per step.

A step of a small network launches hundreds of kernels, which takes most of its time.  `torch.cuda.graph` records the
kernels of `gradients(inputs, targets)` for one batch shape; replaying runs the same kernels on the same memory.  So
batches are copied into the recorded buffers, gradients stay at their addresses, and dropout continues PyTorch's random
sequence as in eager code.  Crops, flips, the optimiser, the learning rate and a smaller last batch stay outside.

Off unless `CLAIMCHECK_CUDA_GRAPHS=1`: no GPU has run it yet (decision 0060).  Before use, a replayed pass is compared
with an eager one: both must agree bit by bit, or as closely as two eager passes.  Otherwise, or if recording fails,
steps stay eager and stderr says why.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol as Interface

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from stages.ops.fast.cpp import TAKEN, same_bits

Pass = Callable[[Tensor, Tensor], Tensor]
"""(inputs, targets) -> sums; it leaves gradients in the parameters."""
SETTING = "CLAIMCHECK_CUDA_GRAPHS"
WARM_UPS = 3
"""Passes on a side stream before one is recorded, as PyTorch asks for: libraries choose their kernels in them."""


class Recorder(Interface):
    """Records the work of a function and replays it."""

    def record(self, work: Callable[[], Tensor]) -> Tensor:
        """Run `work` and return its tensor, which `replay` overwrites."""
        ...

    def replay(self) -> None: ...


class GraphRecorder:
    """Recorder that uses a CUDA graph; recording runs no kernels and draws no random numbers."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.graph = device, torch.cuda.CUDAGraph()

    def record(self, work: Callable[[], Tensor]) -> Tensor:
        with torch.cuda.device(self.device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UPS):
                    work()
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(self.graph):
                return work()

    def replay(self) -> None:
        self.graph.replay()


def is_wanted(device: torch.device) -> bool:
    """True if the user requests graphs and the device supports them."""
    return device.type == "cuda" and os.environ.get(SETTING) == "1"


def describe_graphs(device: torch.device) -> dict[str, bool]:
    """Return the field of a result's environment for requested CUDA graphs; empty if they weren't."""
    return {"cuda_graphs": True} if is_wanted(device) else {}


def replayed(gradients: Pass, model: nn.Module, device: torch.device) -> Pass:
    """Wrap `gradients` so that its first batch shape is recorded and replayed, if requested and possible."""
    if not is_wanted(device):
        return gradients
    if (reason := why_not(model)) is not None:
        return _stays_eager(gradients, reason)
    return Replayed(gradients, model, device, GraphRecorder)


def why_not(model: nn.Module) -> str | None:
    """Return why no graph can record this network; None if no reason is known."""
    if isinstance(model, DistributedDataParallel):
        return "its gradients are added among devices"
    for name, layer in model.named_modules():
        if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks:
            return (
                f"something watches its layer {name or 'itself'}, as CG-FAC and K-FAC do, and would see one pass only"
            )
    return None


def _stays_eager(gradients: Pass, reason: str) -> Pass:
    print(f"{SETTING}: steps stay eager, {reason}", file=sys.stderr)
    return gradients


@dataclass
class _Recorded:
    """Inputs and outputs of one recorded pass, at fixed addresses."""

    inputs: Tensor
    targets: Tensor
    sums: Tensor
    gradients: list[Tensor | None]
    recorder: Recorder


class Replayed:
    """Gradients that replay a recording for the first batch shape and run eagerly for other shapes."""

    def __init__(
        self,
        gradients: Pass,
        model: nn.Module,
        device: torch.device,
        make_recorder: Callable[[torch.device], Recorder],
    ) -> None:
        self.eager, self.model, self.device, self.make_recorder = gradients, model, device, make_recorder
        self.parameters = list(model.parameters())
        self.recorded: _Recorded | None = None
        self.is_tried = False

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        if not self.is_tried:
            self.is_tried = True
            self._try(inputs, targets)
        if self.recorded is None or not _is_alike(self.recorded, inputs, targets):
            return self.eager(inputs, targets)
        return self._replay(self.recorded, inputs, targets)

    def _replay(self, recorded: _Recorded, inputs: Tensor, targets: Tensor) -> Tensor:
        TAKEN.add("replay")
        recorded.inputs.copy_(inputs)
        recorded.targets.copy_(targets)
        recorded.recorder.replay()
        for parameter, gradient in zip(self.parameters, recorded.gradients, strict=True):
            parameter.grad = gradient  # an eager pass in between replaces it
        return recorded.sums

    def _try(self, inputs: Tensor, targets: Tensor) -> None:
        """Record a pass and keep it if it agrees with eager ones; restore weights, buffers and generators."""
        try:
            with self._unchanged():
                recorded = self._record(inputs, targets)
            reason = self._why_unlike(recorded, inputs, targets)
        except RuntimeError as error:  # CUDA can't record the pass
            recorded, reason = None, str(error).splitlines()[0]
        if reason is None:
            self.recorded = recorded
        else:
            _stays_eager(self.eager, reason)

    def _record(self, inputs: Tensor, targets: Tensor) -> _Recorded:
        inputs, targets = inputs.clone(), targets.clone()
        recorder = self.make_recorder(self.device)
        sums = recorder.record(lambda: self.eager(inputs, targets))
        gradients = [parameter.grad for parameter in self.parameters]
        return _Recorded(inputs=inputs, targets=targets, sums=sums, gradients=gradients, recorder=recorder)

    def _why_unlike(self, recorded: _Recorded, inputs: Tensor, targets: Tensor) -> str | None:
        """Describe how the replayed pass differs from the eager one; None if no more than two eager passes do."""
        first, again = (self._results(lambda: self.eager(inputs, targets)) for _ in range(2))
        ours = self._results(lambda: self._replay(recorded, inputs, targets))
        if all(map(same_bits, first, ours)):
            return None
        repeats = max(map(_distance, first, again))
        apart = max(map(_distance, first, ours))
        if 0 < apart <= repeats:
            return None
        return (
            f"a recorded pass is {apart:.1e} of its values from an eager one, which repeats itself within {repeats:.1e}"
        )

    def _results(self, work: Callable[[], Tensor]) -> list[Tensor]:
        """Return sums, gradients, buffers and generator states after a pass, which is then undone."""
        with self._unchanged():
            made = [work(), *(parameter.grad for parameter in self.parameters), *self.model.buffers()]
            return [*(one.clone() for one in made if one is not None), *_generators(self.device)]

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Restore buffers (such as running means), gradients and generators after the block."""
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        gradients = [parameter.grad for parameter in self.parameters]
        states = _generators(self.device)
        try:
            yield
        finally:
            for buffer, value in zip(self.model.buffers(), buffers, strict=True):
                buffer.copy_(value)
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = gradient
            torch.set_rng_state(states[0])
            if self.device.type == "cuda":
                torch.cuda.set_rng_state(states[1], self.device)


def _generators(device: torch.device) -> list[Tensor]:
    """Return the states of the PyTorch generators that a pass may use."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _is_alike(recorded: _Recorded, inputs: Tensor, targets: Tensor) -> bool:
    pairs = ((recorded.inputs, inputs), (recorded.targets, targets))
    return all((ours.shape, ours.dtype) == (given.shape, given.dtype) for ours, given in pairs)


def _distance(one: Tensor, other: Tensor) -> float:
    """Return the largest difference, relative to the largest value."""
    one, other = one.double(), other.double()
    return float((one - other).abs().max() / one.abs().max().clamp_min(1e-300)) if one.numel() else 0.0
