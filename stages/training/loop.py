"""The training loop (`stages.training.stacked` has one for several small networks at once).

The loop handles rows, steps and epochs; a `Task` defines what the rows are.  Data live on the device.

A stopped run resumes as if it had never stopped.  Each random draw therefore has its own generator, seeded by purpose,
epoch and step: on the device for a step's crops and flips, on the CPU for the order of rows.  Only dropout uses
torch's global generator, whose state is part of `TrainingState`.

The loop never sees the test set.  An observer may measure it between epochs, but its numbers only go into the history.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from typing import Protocol as Interface

import torch
from torch import Tensor, nn

from stages.run import Protocol, Replicate
from stages.training.protocol import (
    build_optimizer,
    derive_seed,
    generator_for,
    learning_rate,
    stops_early,
    training_rows,
)
from stages.training.tf32 import products_of

_CUDA_CHECK_STEPS = 50  # checking whether the loss is finite waits for the device
_SAVE_SECONDS = 60.0


class TrainingStopped(Exception):
    """Training stopped on request; its state is saved, and the same call resumes from it."""


class Task(Interface):
    """A data set and the task learned from it.

    `scores` names the quantities that are summed over rows; the first one is the loss.
    """

    scores: tuple[str, ...]
    device: torch.device

    def __len__(self) -> int: ...

    def training_batch(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of `rows`, augmented with draws from `generator`, on the task's device."""
        ...

    def plain_batches(self, rows: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets of `rows` in order, without augmentation."""
        ...

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the quantity to minimise, a mean over the batch."""
        ...

    def sums(self, outputs: Tensor, targets: Tensor, loss: Tensor) -> Tensor:
        """Return `scores` summed over the batch, as float64."""
        ...


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Position of a run, for progress displays; `scores` are means over the current epoch so far."""

    epoch: int
    epochs: int
    step: int
    total_steps: int
    scores: dict[str, float]
    samples_per_second: float


@dataclass
class TrainingState:
    """Everything needed to resume training with identical results: position, sums, history and tensors.

    `sums` are the task's scores over the `samples` rows of the current epoch; `last_loss` is the mean loss between the
    last two checks of the loss.
    """

    epoch: int = 0
    step_in_epoch: int = 0
    sums: list[float] | None = None
    samples: int = 0
    last_loss: float | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    epoch_seconds: list[float] = field(default_factory=list)
    open_seconds: float = 0.0
    model: dict[str, Tensor] | None = None
    optimizer: dict[str, Any] | None = None
    random: list[Tensor] | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Curves of a run, with one `history` row per epoch, and the step at which its loss diverged, if it did."""

    history: list[dict[str, Any]]
    epoch_seconds: list[float]
    samples: int
    divergence: dict[str, Any] | None


Observer = Callable[[nn.Module], dict[str, float]]


def seeded_model(build: Callable[[], nn.Module], replicate: Replicate) -> nn.Module:
    """Build the network with the replicate's initial weights, independent of earlier random draws."""
    torch.manual_seed(derive_seed(replicate, "init"))
    return build()


def measure(model: nn.Module, task: Task, rows: Tensor | None = None, *, batch_size: int = 256) -> dict[str, float]:
    """Return the task's scores over `rows` (None: all), in evaluation mode and float32, without random draws."""
    rows = torch.arange(len(task), device=task.device) if rows is None else rows
    was_training = model.training
    model.eval()
    sums = torch.zeros(len(task.scores), dtype=torch.float64, device=task.device)
    with torch.inference_mode():
        for inputs, targets in task.plain_batches(rows, batch_size):
            outputs = model(inputs)
            sums += task.sums(outputs, targets, task.loss(outputs, targets))
    model.train(was_training)
    return {name: total / len(rows) for name, total in zip(task.scores, sums.tolist(), strict=True)}


def fit(
    model: nn.Module,
    task: Task,
    protocol: Protocol,
    replicate: Replicate,
    *,
    state: TrainingState | None = None,
    save: Callable[[TrainingState], None] = lambda state: None,
    observe: Observer | None = None,
    progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Train `model` in place and return its outcome; resume from `state` if one is given.

    Raises:
        TrainingStopped: `should_stop` returned True; `save` was called with the state at that step.
    """
    return _Training(model, task, protocol, replicate, save, observe, progress, should_stop).run(state)


@dataclass(frozen=True)
class _Means:
    """Scores summed over the first `samples` rows of an epoch."""

    sums: list[float]
    samples: int

    def named(self, scores: tuple[str, ...]) -> dict[str, float]:
        return {name: total / self.samples for name, total in zip(scores, self.sums, strict=True)}

    def since(self, earlier: _Means) -> float:
        """Return the mean loss of the rows after `earlier`."""
        return (self.sums[0] - earlier.sums[0]) / (self.samples - earlier.samples)


class _Training:
    """Everything that stays the same during one call of `fit`."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        protocol: Protocol,
        replicate: Replicate,
        save: Callable[[TrainingState], None],
        observe: Observer | None,
        progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> None:
        self.model, self.task, self.protocol, self.replicate = model, task, protocol, replicate
        self.save, self.observe, self.progress, self.should_stop = save, observe, progress, should_stop
        self.device = task.device
        train_rows, validation_rows = training_rows(len(task), protocol, replicate)
        self.rows, self.validation = train_rows.to(self.device), validation_rows.to(self.device)
        # Eager training on a CPU isn't fused, so that it rounds as it did for the published results.
        is_fused = protocol.compile or self.device.type == "cuda"
        self.optimizer = build_optimizer(model, protocol.optimizer, fused=is_fused)
        self.products = products_of(protocol, self.device)
        self.forward: Callable[[Tensor], Tensor] = torch.compile(model) if protocol.compile else model
        full = math.ceil(len(self.rows) / protocol.batch_size)
        self.steps_per_epoch = min(full, protocol.steps_per_epoch or full)
        self.total_steps = self.steps_per_epoch * protocol.epochs
        self.check_every = _CUDA_CHECK_STEPS if self.device.type == "cuda" else 1

    def run(self, state: TrainingState | None) -> Outcome:
        if self.device.type == "cuda":
            torch.backends.cudnn.allow_tf32 = False  # no TF32 in float32 runs; False is already matmul's default
        state = self._restore(state) if state is not None else self._start()
        divergence = None
        while divergence is None and not self._is_over(state):
            divergence = self._epoch(state)
        samples = sum(row["samples"] for row in state.history)
        return Outcome(history=state.history, epoch_seconds=state.epoch_seconds, samples=samples, divergence=divergence)

    def _is_over(self, state: TrainingState) -> bool:
        return state.epoch >= self.protocol.epochs or stops_early(state.history, self.protocol.early_stop)

    def _start(self) -> TrainingState:
        torch.manual_seed(derive_seed(self.replicate, "dropout"))
        return TrainingState()

    def _restore(self, state: TrainingState) -> TrainingState:
        assert state.model is not None and state.optimizer is not None and state.random is not None, "saved by _save"
        self.model.load_state_dict(state.model)
        self.optimizer.load_state_dict(state.optimizer)
        torch.set_rng_state(state.random[0])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state.random[1], self.device)
        return state

    def _save(self, state: TrainingState) -> None:
        random = [torch.get_rng_state()]
        if self.device.type == "cuda":
            random.append(torch.cuda.get_rng_state(self.device))
        self.save(
            dataclasses.replace(
                state, model=self.model.state_dict(), optimizer=self.optimizer.state_dict(), random=random
            )
        )

    def _epoch(self, state: TrainingState) -> dict[str, Any] | None:
        """Train to the end of the current epoch and add its row; return the divergence, if the loss diverged."""
        self.model.train()
        order = torch.randperm(len(self.rows), generator=generator_for(self.replicate, "order", state.epoch))
        batches = self.rows[order.to(self.device)].split(self.protocol.batch_size)[: self.steps_per_epoch]
        looked_at = _Means(state.sums or [0.0] * len(self.task.scores), state.samples)
        sums = torch.tensor(looked_at.sums, dtype=torch.float64, device=self.device)
        first_step = state.epoch * self.steps_per_epoch
        looked_at_step = first_step + state.step_in_epoch
        samples = state.samples
        saved = time.monotonic()
        started = saved - state.open_seconds
        for index in range(state.step_in_epoch, len(batches)):
            sums += self._step(batches[index], state.epoch, index)
            samples += len(batches[index])
            done = index + 1
            step = first_step + done
            stopping = self.should_stop()
            saving = done < len(batches) and (stopping or time.monotonic() - saved > _SAVE_SECONDS)
            if saving or done % self.check_every == 0 or done == len(batches):
                means = _Means(sums.tolist(), samples)
                if not math.isfinite(means.sums[0]):
                    return {"step": step, "last_finite_step": looked_at_step, "last_finite_loss": state.last_loss}
                state.last_loss = means.since(looked_at)
                looked_at, looked_at_step = means, step
                self._report(state.epoch, step, means, time.monotonic() - started)
            if saving:
                state.step_in_epoch, state.sums, state.samples = done, looked_at.sums, samples
                state.open_seconds = time.monotonic() - started
                self._save(state)
                saved = time.monotonic()
                if stopping:
                    raise TrainingStopped(f"stopped after step {step} of {self.total_steps}")
        self._close_epoch(state, looked_at, time.monotonic() - started)
        return None

    def _step(self, rows: Tensor, epoch: int, index: int) -> Tensor:
        """Make one optimiser step and return the task's sums over the batch."""
        step = epoch * self.steps_per_epoch + index
        rate = learning_rate(self.protocol.schedule, self.protocol.optimizer.lr, step, self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        generator = generator_for(self.replicate, "augment", epoch, index, device=self.device)
        inputs, targets = self.task.training_batch(rows, generator)
        sums = self._gradients(inputs, targets)
        self.optimizer.step()
        return sums

    def _gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Leave the gradients of the batch's loss in the parameters; return the task's sums over the batch."""
        with self.products():
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.protocol.precision == "bfloat16"):
                outputs = self.forward(inputs)
            loss = self.task.loss(outputs, targets)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
        return self.task.sums(outputs.detach(), targets, loss.detach())

    def _close_epoch(self, state: TrainingState, means: _Means, seconds: float) -> None:
        row: dict[str, Any] = {
            "epoch": state.epoch + 1,
            "steps": (state.epoch + 1) * self.steps_per_epoch,
            "samples": means.samples,
            "lr": self.optimizer.param_groups[0]["lr"],
        }
        row |= {f"train_{name}": value for name, value in means.named(self.task.scores).items()}
        if len(self.validation):
            row |= {f"val_{name}": value for name, value in measure(self.model, self.task, self.validation).items()}
        if self.observe is not None:
            row |= self.observe(self.model)
        state.history.append(row)
        state.epoch_seconds.append(seconds)
        state.epoch, state.step_in_epoch, state.sums, state.samples, state.open_seconds = (
            state.epoch + 1,
            0,
            None,
            0,
            0.0,
        )
        self._save(state)
        if self.should_stop() and not self._is_over(state):
            raise TrainingStopped(f"stopped after epoch {state.epoch} of {self.protocol.epochs}")

    def _report(self, epoch: int, step: int, means: _Means, seconds: float) -> None:
        self.progress(
            Progress(
                epoch=epoch + 1,
                epochs=self.protocol.epochs,
                step=step,
                total_steps=self.total_steps,
                scores=means.named(self.task.scores),
                samples_per_second=means.samples / max(seconds, 1e-9),
            )
        )
