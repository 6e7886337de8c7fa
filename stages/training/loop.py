"""The only training loop.

Images live on the device as uint8; every random draw has a generator of its own, seeded by purpose, epoch and step, so
that a training stopped anywhere goes on as if it had not been stopped.  Dropout alone uses torch's global generator,
whose state is part of `TrainingState`.  Nothing here sees the test set: an observer may measure it between epochs and
returns numbers that go into the history and nowhere else.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stages.ops.normalize import normalize
from stages.run import Protocol, Replicate
from stages.training.augment import BatchAugmenter
from stages.training.optimizer import build_optimizer, learning_rate
from stages.training.seeding import derive_seed, generator_for
from stages.training.split import training_rows

_CUDA_CHECK_STEPS = 50  # a finite-loss check waits for the device
_SAVE_SECONDS = 60.0


class TrainingStopped(Exception):
    """Asked to stop; the state is saved and the same call goes on from it."""


@dataclass(frozen=True)
class LabelledImages:
    """uint8 [N, C, H, W] and int64 [N], on one device."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run is, for whoever watches it."""

    epoch: int
    epochs: int
    step: int
    total_steps: int
    loss: float
    accuracy: float
    samples_per_second: float


@dataclass
class TrainingState:
    """All that a training needs to go on bitwise: position, sums of the open epoch, finished rows, tensors."""

    epoch: int = 0
    step_in_epoch: int = 0
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    history: list[dict[str, Any]] = field(default_factory=list)
    epoch_seconds: list[float] = field(default_factory=list)
    open_seconds: float = 0.0
    model: dict[str, Tensor] | None = None
    optimizer: dict[str, Any] | None = None
    random: list[Tensor] | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`history` has a row an epoch; `divergence` says where the loss stopped being finite, None if it never did."""

    history: list[dict[str, Any]]
    epoch_seconds: list[float]
    samples: int
    divergence: dict[str, Any] | None


Observer = Callable[[nn.Module], dict[str, float]]


def seeded_model(build: Callable[[], nn.Module], replicate: Replicate) -> nn.Module:
    """The network with the replicate's initial weights, whatever was drawn before."""
    torch.manual_seed(derive_seed(replicate, "init"))
    return build()


def measure(
    model: nn.Module, data: LabelledImages, protocol: Protocol, *, batch_size: int = 256
) -> tuple[float, float]:
    """(mean cross entropy, accuracy) in evaluation mode and float32, without gradients or random numbers."""
    was_training = model.training
    model.eval()
    loss, correct = 0.0, 0
    with torch.inference_mode():
        for images, labels in zip(data.images.split(batch_size), data.labels.split(batch_size), strict=True):
            logits = model(normalize(images, protocol.mean, protocol.std)).float()
            loss += F.cross_entropy(logits, labels, reduction="sum").item()
            correct += int((logits.argmax(1) == labels).sum())
    model.train(was_training)
    return loss / len(data.labels), correct / len(data.labels)


def fit(
    model: nn.Module,
    train_set: LabelledImages,
    protocol: Protocol,
    replicate: Replicate,
    *,
    state: TrainingState | None = None,
    save: Callable[[TrainingState], None] = lambda state: None,
    observe: Observer | None = None,
    progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Train `model` in place and return its curves; goes on from `state` where one is given.

    Raises:
        TrainingStopped: `should_stop` said so; `save` was called with the state at that step.
    """
    return _Training(model, train_set, protocol, replicate, save, observe, progress, should_stop).run(state)


@dataclass
class _LastFinite:
    """The last step at which an epoch's sums were finite, and the mean loss of the steps that led there."""

    step: int
    sums: list[float]
    loss: float | None = None

    def advance(self, step: int, sums: list[float]) -> bool:
        """Move on to `step` unless the loss is not finite."""
        if not math.isfinite(sums[0]):
            return False
        self.loss = (sums[0] - self.sums[0]) / (sums[2] - self.sums[2])
        self.step, self.sums = step, sums
        return True


class _Training:
    """One call of `fit`: what stays the same over its epochs."""

    def __init__(
        self,
        model: nn.Module,
        train_set: LabelledImages,
        protocol: Protocol,
        replicate: Replicate,
        save: Callable[[TrainingState], None],
        observe: Observer | None,
        progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> None:
        self.model, self.protocol, self.replicate = model, protocol, replicate
        self.save, self.observe, self.progress, self.should_stop = save, observe, progress, should_stop
        self.device = train_set.images.device
        train_rows, validation_rows = training_rows(len(train_set.labels), protocol, replicate)
        self.rows, self.labels = train_rows.to(self.device), train_set.labels
        held_out = validation_rows.to(self.device)
        self.validation = LabelledImages(train_set.images[held_out], train_set.labels[held_out])
        self.augmenter = BatchAugmenter(train_set.images, protocol.augmentation)
        self.optimizer = build_optimizer(model.parameters(), protocol.optimizer)
        self.forward: Callable[[Tensor], Tensor] = torch.compile(model) if protocol.compile else model
        full = math.ceil(len(self.rows) / protocol.batch_size)
        self.steps_per_epoch = min(full, protocol.steps_per_epoch or full)
        self.total_steps = self.steps_per_epoch * protocol.epochs
        self.check_every = _CUDA_CHECK_STEPS if self.device.type == "cuda" else 1

    def run(self, state: TrainingState | None) -> Outcome:
        if self.device.type == "cuda":
            torch.backends.cudnn.allow_tf32 = False  # float32 means float32; matmul's default already does
        state = self._restore(state) if state is not None else self._start()
        divergence = None
        while state.epoch < self.protocol.epochs and divergence is None:
            divergence = self._epoch(state)
        samples = sum(row["samples"] for row in state.history)
        return Outcome(history=state.history, epoch_seconds=state.epoch_seconds, samples=samples, divergence=divergence)

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
        """Train to the end of the open epoch and add its row; returns where the loss diverged, if it did."""
        self.model.train()
        order = torch.randperm(len(self.rows), generator=generator_for(self.replicate, "order", state.epoch))
        batches = self.rows[order.to(self.device)].split(self.protocol.batch_size)[: self.steps_per_epoch]
        sums = torch.tensor(state.sums, dtype=torch.float64, device=self.device)  # loss, correct, samples
        saved = time.monotonic()
        started = saved - state.open_seconds
        finite = _LastFinite(state.epoch * self.steps_per_epoch + state.step_in_epoch, state.sums)
        for index in range(state.step_in_epoch, len(batches)):
            sums += self._step(batches[index], state.epoch, index)
            done = index + 1
            step = state.epoch * self.steps_per_epoch + done
            if done % self.check_every == 0 or done == len(batches):
                if not finite.advance(step, sums.tolist()):
                    return {"step": step, "last_finite_step": finite.step, "last_finite_loss": finite.loss}
                self._report(state.epoch, step, finite.sums, time.monotonic() - started)
            if done < len(batches) and (self.should_stop() or time.monotonic() - saved > _SAVE_SECONDS):
                state.step_in_epoch, state.sums = done, sums.tolist()
                state.open_seconds = time.monotonic() - started
                self._save(state)
                saved = time.monotonic()
                if self.should_stop():
                    raise TrainingStopped(f"stopped after step {step} of {self.total_steps}")
        self._close_epoch(state, sums.tolist(), time.monotonic() - started)
        return None

    def _step(self, rows: Tensor, epoch: int, index: int) -> Tensor:
        """One optimiser step; returns [summed loss, correct, samples]."""
        step = epoch * self.steps_per_epoch + index
        rate = learning_rate(self.protocol.schedule, self.protocol.optimizer.lr, step, self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        images = self.augmenter.batch(rows, generator_for(self.replicate, "augment", epoch, index))
        labels = self.labels[rows]
        inputs = normalize(images, self.protocol.mean, self.protocol.std)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.protocol.precision == "bfloat16"):
            logits = self.forward(inputs)
        loss = F.cross_entropy(logits.float(), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        correct = (logits.detach().argmax(1) == labels).sum()
        count = torch.tensor(len(rows), device=self.device)
        return torch.stack([loss.detach().double() * len(rows), correct.double(), count.double()])

    def _close_epoch(self, state: TrainingState, sums: list[float], seconds: float) -> None:
        loss_sum, correct, samples = sums
        row: dict[str, Any] = {
            "epoch": state.epoch + 1,
            "steps": (state.epoch + 1) * self.steps_per_epoch,
            "samples": int(samples),
            "lr": self.optimizer.param_groups[0]["lr"],
            "train_loss": loss_sum / samples,
            "train_accuracy": correct / samples,
        }
        if len(self.validation.labels):
            row["val_loss"], row["val_accuracy"] = measure(self.model, self.validation, self.protocol)
        if self.observe is not None:
            row |= self.observe(self.model)
        state.history.append(row)
        state.epoch_seconds.append(seconds)
        state.epoch, state.step_in_epoch, state.sums, state.open_seconds = state.epoch + 1, 0, [0.0, 0.0, 0.0], 0.0
        self._save(state)
        if self.should_stop() and state.epoch < self.protocol.epochs:
            raise TrainingStopped(f"stopped after epoch {state.epoch} of {self.protocol.epochs}")

    def _report(self, epoch: int, step: int, sums: list[float], seconds: float) -> None:
        loss_sum, correct, samples = sums
        self.progress(
            Progress(
                epoch=epoch + 1,
                epochs=self.protocol.epochs,
                step=step,
                total_steps=self.total_steps,
                loss=loss_sum / samples,
                accuracy=correct / samples,
                samples_per_second=samples / max(seconds, 1e-9),
            )
        )
