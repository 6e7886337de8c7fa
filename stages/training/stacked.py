"""Training loop for a stack: like `stages.training.loop`, but with M networks instead of one.

Each network has its own order of rows, history, early stopping and divergence; if it stops, the others continue.
When half of a stack has finished, the stack shrinks.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any
from typing import Protocol as Interface

import torch
from torch import Tensor, nn

from stages.run import ModelSpec, Protocol, Replicate, canonical_json, steps_per_epoch
from stages.runs.fingerprint import imported_modules, is_fast, module_digest, reachable, source_path
from stages.training.loop import Outcome, Progress, TrainingStopped
from stages.training.protocol import build_optimizer, generator_for, learning_rate, stops_early, training_rows
from stages.training.tables import Regression
from stages.training.tf32 import is_emulated, products_of

Step = Callable[[Tensor, Tensor], Tensor]
_CUDA_REPORT_STEPS = 50  # reading a loss waits for the device


class StackedNetworks(Interface):
    """M networks as one `nn.Module`; tensors have the names of the single network, with `/` in place of dots."""

    def forward(self, features: Tensor) -> Tensor:
        """Features [M, B, F] -> predictions [M, B]."""
        ...

    def losses(self, features: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error of each network, [M]."""
        ...

    def weights(self, column: int) -> dict[str, Tensor]:
        """Copy one network's state, under its own names."""
        ...

    def train(self, mode: bool = True) -> Any: ...

    def eval(self) -> Any: ...

    def named_parameters(self) -> Iterable[tuple[str, nn.Parameter]]: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> Any: ...


MakeStack = Callable[[Sequence[nn.Module]], StackedNetworks]


def stack_class(model: ModelSpec) -> MakeStack:
    """Return the factory for stacks of `model`: `Stack` in the module next to the model's (`mlp_stack` for `mlp`)."""
    found: MakeStack = import_module(_module_of_stack(model)).Stack
    return found


def _module_of_stack(model: ModelSpec) -> str:
    return f"{model.path.partition(':')[0]}_stack"


def files_of_stack(model: ModelSpec) -> list[Path]:
    """List files that train a stack of `model` but are in no run key: this loop, the stack's module, its fast paths.

    Includes files that share a module's name (C++).
    """
    fast = reachable([_module_of_stack(model)], lambda name: [one for one in imported_modules(name) if is_fast(one)])
    modules = [path for name in (__name__, *sorted(fast)) if (path := source_path(name)) is not None]
    return [path for module in modules for path in sorted(module.parent.glob(f"{module.stem}.*")) if path.is_file()]


def code_of_stack(model: ModelSpec) -> str:
    """Digest of `files_of_stack`."""
    digests = {
        path.name: module_digest(path) if path.suffix == ".py" else hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files_of_stack(model)
    }
    return hashlib.sha256(canonical_json(digests).encode()).hexdigest()[:12]


def mode_of(device: torch.device) -> str | None:
    """Return the mode of `torch.compile` for the device: with CUDA graphs on a GPU."""
    return "reduce-overhead" if device.type == "cuda" else None


@dataclass
class StackState:
    """Everything that a stack needs to resume bit by bit from the end of an epoch.

    `members` are the networks in the stack, by their position in the group; `finished` has the weights of finished
    networks, some of which remain members until the stack shrinks.
    """

    epoch: int
    members: list[int]
    histories: list[list[dict[str, Any]]]
    epoch_seconds: list[list[float]]
    divergences: list[dict[str, Any] | None]
    last_losses: list[float | None]
    seconds: list[float]
    finished: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    stack: dict[str, Tensor] | None = None
    optimizer: dict[str, Any] | None = None


def fit_stack(
    networks: Sequence[nn.Module],
    make_stack: MakeStack,
    task: Regression,
    protocol: Protocol,
    replicates: Sequence[Replicate],
    *,
    is_compiled: bool,
    test: Regression | None = None,
    state: StackState | None = None,
    save: Callable[[StackState], None] = lambda state: None,
    progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[tuple[Outcome, float]]:
    """Train `networks` in place under one protocol; return each one's curves and its share of the seconds.

    The networks are on the task's device.  `test` is measured after each epoch, only for the curves.

    Raises:
        ValueError: an epoch's last batch is a single row, for which BatchNorm has no variance.
        TrainingStopped: `should_stop` returned True; the same call resumes from the last saved state.
    """
    training = _StackTraining(
        networks, make_stack, task, protocol, replicates, is_compiled, test, save, progress, should_stop
    )
    return training.run(state)


class _StackTraining:
    def __init__(
        self,
        networks: Sequence[nn.Module],
        make_stack: MakeStack,
        task: Regression,
        protocol: Protocol,
        replicates: Sequence[Replicate],
        is_compiled: bool,
        test: Regression | None,
        save: Callable[[StackState], None],
        progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> None:
        self.networks, self.make_stack, self.replicates = networks, make_stack, replicates
        self.task, self.protocol, self.test = task, protocol, test
        self.device = task.device
        self.is_compiled = is_compiled and not is_emulated(protocol, self.device)
        self.products = products_of(protocol, self.device)
        self.save, self.progress, self.should_stop = save, progress, should_stop
        train_rows, validation_rows = training_rows(len(task), protocol, replicates[0])  # the same for every seed
        self.rows, self.validation = train_rows.to(self.device), validation_rows.to(self.device)
        self.steps_per_epoch = steps_per_epoch(len(self.rows), protocol)
        if self._samples() - (self.steps_per_epoch - 1) * protocol.batch_size == 1:
            detail = f"{len(self.rows)} rows in batches of {protocol.batch_size} leave one for the last"
            raise ValueError(f"{detail}; BatchNorm takes two or more")
        self.total_steps = self.steps_per_epoch * protocol.epochs
        self.report_every = _CUDA_REPORT_STEPS if self.device.type == "cuda" else 1

    def run(self, state: StackState | None) -> list[tuple[Outcome, float]]:
        if state is None:
            count = len(self.networks)
            state = StackState(
                epoch=0,
                members=[*range(count)],
                histories=[[] for _ in range(count)],
                epoch_seconds=[[] for _ in range(count)],
                divergences=[None] * count,
                last_losses=[None] * count,
                seconds=[0.0] * count,
            )
        self._build(state.members)
        if state.stack is not None:
            self.stack.load_state_dict(state.stack)
            self.optimizer.load_state_dict(state.optimizer or {})
        while self._open(state):
            self._epoch(state)
        for member, network in enumerate(self.networks):
            network.load_state_dict(state.finished[member])
        return [(self._outcome(state, member), state.seconds[member]) for member in range(len(self.networks))]

    @staticmethod
    def _outcome(state: StackState, member: int) -> Outcome:
        history = state.histories[member]
        return Outcome(
            history=history,
            epoch_seconds=state.epoch_seconds[member],
            samples=sum(row["samples"] for row in history),
            divergence=state.divergences[member],
        )

    def _samples(self) -> int:
        """Rows per epoch."""
        return min(len(self.rows), self.steps_per_epoch * self.protocol.batch_size)

    def _build(self, members: Sequence[int]) -> None:
        self.stack = self.make_stack([self.networks[member] for member in members])
        reference = self.networks[members[0]]
        names = {id(parameter): name for name, parameter in reference.named_parameters()}
        own = dict(self.stack.named_parameters())
        alone: Any = build_optimizer(reference, self.protocol.optimizer, fused=True)
        groups = [
            group | {"params": [own[names[id(item)].replace(".", "/")] for item in group["params"]]}
            for group in alone.param_groups
        ]
        self.optimizer = type(alone)(groups)
        torch.compiler.reset()  # torch stops compiling after eight modules of a class
        self.losses: Step = self._compile(self.stack.losses)
        self.predict: Callable[[Tensor], Tensor] = self._compile(self.stack.forward)

    def _compile(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return torch.compile(function, dynamic=False, mode=mode_of(self.device)) if self.is_compiled else function

    @staticmethod
    def _open(state: StackState) -> list[int]:
        """Return the members that are still training."""
        return [member for member in state.members if member not in state.finished]

    def _epoch(self, state: StackState) -> None:
        """Train all members for one epoch; record it for those that are still open."""
        self.stack.train()
        started, samples = time.monotonic(), 0
        still_open = torch.tensor([state.members.index(member) for member in self._open(state)], device=self.device)
        losses = torch.zeros(self.steps_per_epoch, len(state.members), dtype=torch.float64, device=self.device)
        sums = torch.zeros_like(losses[0])
        for index, rows in enumerate(self._batches(state)):
            if self.should_stop():
                raise TrainingStopped(f"stopped in epoch {state.epoch + 1} of {self.protocol.epochs}")
            step = state.epoch * self.steps_per_epoch + index
            losses[index] = self._step(rows, step)
            samples += rows.shape[1]
            sums += losses[index] * rows.shape[1]
            if (index + 1) % self.report_every == 0 or index + 1 == self.steps_per_epoch:
                rate = samples * len(still_open) / max(time.monotonic() - started, 1e-9)
                self.progress(
                    Progress(
                        epoch=state.epoch + 1,
                        epochs=self.protocol.epochs,
                        step=step + 1,
                        total_steps=self.total_steps,
                        scores={"loss": float(sums[still_open].mean()) / samples},
                        samples_per_second=rate,
                    )
                )
        losses = losses.cpu()  # waits for the device
        seconds = (time.monotonic() - started) / len(still_open)
        self._close(state, losses, seconds)
        self._shrink(state)
        if self._open(state):
            self.save(dataclasses.replace(state, stack=self.stack.state_dict(), optimizer=self.optimizer.state_dict()))
            if self.should_stop():
                raise TrainingStopped(f"stopped after epoch {state.epoch} of {self.protocol.epochs}")

    def _batches(self, state: StackState) -> Iterator[Tensor]:
        """Yield rows [M, B] of each step: every network's training rows in its own order of this epoch."""
        orders = [
            torch.randperm(len(self.rows), generator=generator_for(self.replicates[member], "order", state.epoch))
            for member in state.members
        ]
        yield from self.rows[torch.stack(orders).to(self.device)].split(self.protocol.batch_size, dim=1)[
            : self.steps_per_epoch
        ]

    def _step(self, rows: Tensor, step: int) -> Tensor:
        """Take one optimiser step of all networks; return their losses [M]."""
        rate = learning_rate(self.protocol.schedule, self.protocol.optimizer.lr, step, self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        # same as `training_batch`, in a quarter of its time for so many small rows
        data, chosen = self.task.data, rows.flatten()
        features, targets = data.features.index_select(0, chosen), data.targets.index_select(0, chosen)
        # an epoch's smaller last batch isn't worth compiling for
        losses_of = self.losses if rows.shape[1] == self.protocol.batch_size else self.stack.losses
        with self.products():
            losses = losses_of(features.view(*rows.shape, -1), targets.view(rows.shape))
            self.optimizer.zero_grad(set_to_none=True)
            losses.sum().backward()
        self.optimizer.step()
        return losses.detach()

    def _close(self, state: StackState, losses: Tensor, seconds: float) -> None:
        sizes = torch.full((len(losses), 1), self.protocol.batch_size, dtype=torch.float64)
        samples = self._samples()
        sizes[-1] = samples - (len(losses) - 1) * self.protocol.batch_size
        means = ((losses * sizes).sum(0) / samples).tolist()
        measured: dict[str, list[float]] = {}
        if len(self.validation):
            measured["val_loss"] = self._measure(self.task, self.validation)
        if self.test is not None:
            measured["test_loss"] = self._measure(self.test, torch.arange(len(self.test), device=self.device))
        for column, member in enumerate(state.members):
            if member in state.finished:
                continue
            state.seconds[member] += seconds
            if not math.isfinite(means[column]):
                state.divergences[member] = self._divergence(state, member, losses[:, column].tolist())
                state.finished[member] = self.stack.weights(column)
                continue
            row: dict[str, Any] = {
                "epoch": state.epoch + 1,
                "steps": (state.epoch + 1) * self.steps_per_epoch,
                "samples": samples,
                "lr": self.optimizer.param_groups[0]["lr"],
                "train_loss": means[column],
            }
            row |= {name: values[column] for name, values in measured.items()}
            state.histories[member].append(row)
            state.epoch_seconds[member].append(seconds)
            state.last_losses[member] = float(losses[-1, column])
            is_over = state.epoch + 1 >= self.protocol.epochs
            if is_over or stops_early(state.histories[member], self.protocol.early_stop):
                state.finished[member] = self.stack.weights(column)
        state.epoch += 1

    def _divergence(self, state: StackState, member: int, losses: Sequence[float]) -> dict[str, Any]:
        """Return the step at which a network's loss stopped being finite, counted as if it trained alone."""
        index = next(index for index, loss in enumerate(losses) if not math.isfinite(loss))
        step = state.epoch * self.steps_per_epoch + index + 1
        last = losses[index - 1] if index else state.last_losses[member]
        return {"step": step, "last_finite_step": step - 1, "last_finite_loss": last}

    def _measure(self, task: Regression, rows: Tensor) -> list[float]:
        """Return each network's mean squared error over these rows of the task."""
        self.stack.eval()
        count = len(next(iter(self.stack.named_parameters()))[1])
        sums, whole = torch.zeros(count, dtype=torch.float64, device=self.device), 0
        with torch.no_grad():
            for features, targets in task.plain_batches(rows, self.protocol.batch_size):
                whole = whole or len(targets)
                predict = self.predict if len(targets) == whole else self.stack.forward
                predicted = predict(features.expand(count, *features.shape))
                sums += (predicted - targets).square().sum(1, dtype=torch.float64)
        return (sums / len(rows)).tolist()

    def _shrink(self, state: StackState) -> None:
        """Remove the finished networks once they make up half of the stack."""
        left = self._open(state)
        if not left or 2 * len(left) > len(state.members):
            return
        kept = torch.tensor([state.members.index(member) for member in left])
        tensors, optimizer = self.stack.state_dict(), self.optimizer.state_dict()
        for values in optimizer["state"].values():
            values |= {name: value[kept] for name, value in values.items() if value.ndim}
        state.members = left
        self._build(left)
        self.stack.load_state_dict({name: tensor[kept] for name, tensor in tensors.items()})
        self.optimizer.load_state_dict(optimizer)
