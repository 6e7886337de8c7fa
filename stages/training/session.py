"""One training, from its spec and packed rows to a trained network.

The run key covers this module, the loop, the task and the model.  It doesn't cover `stages.worker`, which therefore
touches neither network nor rows: it saves and publishes the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from stages.datasets.packed import PackedInfo, Split
from stages.ops.fast.dropout import with_fast_dropout
from stages.ops.fast.wide_attention import use_wide_attention
from stages.papers import build_model
from stages.run import RunSpec
from stages.training.kinds import make_task, read_rows
from stages.training.loop import Observer, Outcome, Progress, Task, TrainingState, fit, measure, seeded_model


@dataclass(frozen=True)
class Session:
    """A training that is ready to begin or resume: the network with its initial weights, and its task."""

    spec: RunSpec
    model: nn.Module
    task: Task
    observe: Observer | None

    def train(
        self,
        *,
        state: TrainingState | None,
        save: Callable[[TrainingState], None],
        progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> Outcome:
        """Train the network in place, resuming from `state` if one is given.

        Raises:
            TrainingStopped: `should_stop` returned True.
        """
        with flushing_denormals():
            return fit(
                self.model,
                self.task,
                self.spec.protocol,
                self.spec.replicate,
                state=state,
                save=save,
                observe=self.observe,
                progress=progress,
                should_stop=should_stop,
            )


def open_session(spec: RunSpec, data: Path, info: PackedInfo, device: torch.device) -> Session:
    """Prepare the training of `spec` on the packed set in `data`, with fast dropout.

    Raises:
        PackedDataError: a split can't be read.
        ValueError, TypeError: the model can't be built with the spec's arguments.
    """
    protocol = spec.protocol
    task = task_of(spec, data, info, "train", device)
    observe = None
    if protocol.observe_test:
        observe = _test_observer(task_of(spec, data, info, "test", device))
    if device.type == "cpu" and protocol.precision == "bfloat16":
        use_wide_attention()
    model = seeded_model(lambda: with_fast_dropout(build_model(spec.model)), spec.replicate).to(device)
    return Session(spec, model, task, observe)


def task_of(spec: RunSpec, data: Path, info: PackedInfo, split: Split, device: torch.device) -> Task:
    """Return one split of the packed set as the task of `spec`."""
    return make_task(read_rows(data, info, split), info, spec.protocol, device)


def plain_network(spec: RunSpec, device: torch.device) -> nn.Module:
    """Build the network of `spec` with its initial weights and PyTorch's dropout."""
    return seeded_model(lambda: build_model(spec.model), spec.replicate).to(device)


@contextmanager
def flushing_denormals() -> Iterator[None]:
    """Make the processor treat numbers below 1.2e-38 as 0 inside this block (docs/decisions.md#0020).

    Weights of units that are never active decay to such numbers, which the processor handles a hundred times slower.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _test_observer(task: Task) -> Observer:
    def observe(model: nn.Module) -> dict[str, float]:
        return {f"test_{name}": value for name, value in measure(model, task).items()}

    return observe
