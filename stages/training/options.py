"""Options of the training loop: gradients added over parts of a batch, averaged weights, float16, other schedules.

Nothing else imports this module, so it is in the run keys of those runs alone that use it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib import import_module
from inspect import isclass, signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from stages.run import ScheduleSpec
from stages.training.loop import Outcome, TrainingState, _Training
from stages.training.session import Session, flushing_denormals

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class OptionsTraining(_Training):
    """The loop with its protocol's options.

    `accumulate` computes a batch in so many parts, one after another, and adds their gradients.  Each part is weighted
    by its share of what the loss is a mean over: the task's `mass`, or rows if it has none.  The sum is the gradient of
    the whole batch's mean loss, unless rows of a part depend on each other (batch normalisation).

    `ema` is the decay of an average of the weights that is updated after each step (PyTorch's `AveragedModel`).  The
    average is what is validated, observed and saved, with the latest batch statistics.

    A `schedule` of another package sets the learning rate of each step.

    `float16` casts like `torch.autocast` and scales the loss by `GradScaler`, which skips steps that overflow.
    """

    def __init__(self, session: Session, **calls: Any) -> None:
        network, protocol = session.model, session.spec.protocol
        average = None
        if protocol.ema is not None:  # copied before an optimiser hooks into the network's layers
            average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(protocol.ema))
        super().__init__(network, session.task, protocol, session.spec.replicate, observe=session.observe, **calls)
        self.network, self.average = network, average
        self.mass: Callable[[Tensor], Tensor | int] = getattr(session.task, "mass", len)
        recipe = protocol.recipe
        has_task = session.spec.task_class is not None
        self.is_foreign_loss = has_task or (recipe is not None and recipe.loss is not None)
        if average is not None:
            self.model = _Averaged(network, average)
        is_imported = protocol.schedule.address is not None
        self.rates = rates_of(protocol.schedule, protocol.optimizer.lr, self.total_steps) if is_imported else None
        if protocol.precision == "float16":
            self.optimizer: Any = _ScaledOptimizer(self.optimizer, self.device)

    def run(self, state: TrainingState | None) -> Outcome:
        outcome = super().run(state)
        if self.average is not None:
            self.network.load_state_dict(self.average.module.state_dict())
        return outcome

    def _step(self, rows: Tensor, epoch: int, index: int) -> Tensor:
        if self.rates is not None:  # the plain loop takes the optimiser's rate at each step
            rate = self.rates[epoch * self.steps_per_epoch + index]
            optimizer = dataclasses.replace(self.protocol.optimizer, lr=rate)
            self.protocol = dataclasses.replace(self.protocol, optimizer=optimizer)
        sums = super()._step(rows, epoch, index)
        if self.average is not None:
            self.average.update_parameters(self.network)
        return sums

    def _gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        parts, dtype = min(self.protocol.accumulate or 1, len(targets)), _DTYPES.get(self.protocol.precision)
        sums, losses, outcomes, mass = [], [], [], self.mass(targets)
        self.optimizer.zero_grad(set_to_none=True)
        for some, wanted in zip(inputs.tensor_split(parts), targets.tensor_split(parts), strict=True):
            with self.products():
                with torch.autocast(self.device.type, dtype, enabled=dtype is not None):
                    outputs = self.forward(some)
                loss = self.task.loss(outputs, wanted)
                share = loss * (self.mass(wanted) / mass)
                (self.optimizer.scaler.scale(share) if dtype is torch.float16 else share).backward()
            losses.append(share.detach())
            # `sums` multiplies by the part's rows; the batch's loss is to be multiplied by all rows.
            mean = losses[-1] * (len(targets) / len(wanted))
            sums.append(self.task.sums(outputs.detach(), wanted, mean))
            if parts > 1 and self.is_foreign_loss:
                outcomes.append(outputs.detach())
        if outcomes:
            _check_adds_up(torch.stack(losses).sum(), self.task.loss(torch.cat(outcomes), targets))
        return torch.stack(sums).sum(0)


def _check_adds_up(summed: Tensor, whole: Tensor) -> None:
    """Check that the loss of a batch is the mean of its parts' losses, weighted by their rows.

    Raises:
        ValueError: it isn't, so the parts' gradients don't add up to the batch's.
    """
    if not torch.allclose(summed, whole, rtol=1e-3, atol=1e-5, equal_nan=True):
        raise ValueError(
            f"the loss is {whole:g} for a batch and {summed:g} for its parts; with accumulate it must be a mean "
            "over rows of equal weight; leave out accumulate"
        )


def rates_of(schedule: ScheduleSpec, base: float, steps: int) -> list[float]:
    """Return the learning rate of each step under a schedule of another package, which starts from `base`.

    Raises:
        ValueError: the schedule isn't an `LRScheduler`, or can't be built.
    """
    module, _, name = str(schedule.address).partition(":")
    make = getattr(import_module(module), name)
    if not (isclass(make) and issubclass(make, LRScheduler)):
        raise ValueError(f"{schedule.address} is no torch.optim.lr_scheduler.LRScheduler")
    # an optimiser without momentum, which some schedules would change, too
    optimizer = torch.optim.Adagrad([torch.zeros(1, requires_grad=True)], lr=base)
    length = {"total_steps": steps} if "total_steps" in signature(make).parameters else {}
    try:
        scheduler = make(optimizer, **length | dict(schedule.arguments or {}))
        rates = []
        for _ in range(steps):
            rates.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.step()
            scheduler.step()
    except (TypeError, ValueError) as error:
        raise ValueError(f"{schedule.address}: {error}") from None
    return rates


class _Averaged(nn.Module):
    """A network in training and the average of its weights, which answers."""

    def __init__(self, network: nn.Module, average: AveragedModel) -> None:
        super().__init__()
        self.network, self.average = network, average

    def forward(self, inputs: Tensor) -> Tensor:
        return self.average(inputs)


class _ScaledOptimizer:
    """An optimiser whose gradients are of a scaled loss; the scale is part of its state."""

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self.optimizer, self.scaler = optimizer, torch.amp.GradScaler(device.type)
        self.zero_grad = optimizer.zero_grad

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optimizer.param_groups

    def step(self) -> None:
        self.scaler.unscale_(self.optimizer)  # here, because the optimiser may clip gradients when it steps
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])


class OptionsSession(Session):
    """A session whose training has the options of its protocol."""

    def train(self, *, state: TrainingState | None, **calls: Any) -> Outcome:
        with flushing_denormals():
            return OptionsTraining(self, **calls).run(state)


def with_options(session: Session, devices: int) -> Session:
    """Return the session with its protocol's options.

    Raises:
        ValueError: several devices share the training, or its settings contradict its options.
    """
    if session.spec.protocol.contradiction:
        raise ValueError(session.spec.protocol.contradiction)
    if devices > 1:
        raise ValueError(
            "a training with accumulate, ema, float16 or another package's schedule can't be shared among devices; "
            "name one device, e.g. --device cuda:0"
        )
    return OptionsSession(session.spec, session.model, session.task, session.observe)
