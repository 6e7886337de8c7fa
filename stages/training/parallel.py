"""One training on several devices, data parallel: each rank, a process, computes its share of every batch.

All ranks draw the same rows and hold the same weights.  Before each step their gradients are added, each weighted by
its part of the batch, so that the sum is the gradient of the mean over the whole batch (Li et al. 2020, PyTorch
Distributed); scores are added, too.  Sums over a batch are then taken in another order than on one device, which is all
that differs: the run key is the same, the weights are equal except for rounding, and the environment says so.
"""

# No postponed annotations here: DistributedDataParallel compares a hook's with its own types.

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from stages.run import Protocol
from stages.training.loop import Task
from stages.training.session import Session

OPTIMIZERS = ("sgd", "adam", "adamw")
"""Those that take a step from the gradients alone."""


def backend_of(device: torch.device) -> str:
    """NCCL between GPUs, Gloo between processors."""
    return "nccl" if device.type == "cuda" else "gloo"


@contextmanager
def joined(rank: int, size: int, device: torch.device, port: int) -> Iterator[None]:
    """Meet the other ranks of this machine at `port`; inside the block their collectives work, on the CPU, too."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)  # type: ignore[attr-defined]  # it has no stub
    backend = backend_of(device)
    both = backend if backend == "gloo" else f"cpu:gloo,cuda:{backend}"
    dist.init_process_group(both, store=store, rank=rank, world_size=size)
    yield
    dist.destroy_process_group()  # not after an error: it would wait for ranks that are gone


def describe_ranks(size: int, device: torch.device, protocol: Protocol) -> dict[str, Any]:
    """For the environment of a result: who shared the batches, how, and by which code, which is in no run key."""
    code = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    shared = {"world_size": size, "backend": backend_of(device), "global_batch": protocol.batch_size, "code": code}
    return {"data_parallel": shared}


def share(session: Session) -> Session:
    """The session with its batches shared among the ranks that have joined; its network is the same one.

    Raises:
        ValueError: its numbers would be others than on one device by more than rounding.
    """
    refuse_unlike(session.model, session.task, session.spec.protocol)
    task = SharedTask(session.task, dist.get_rank(), dist.get_world_size())
    network = DistributedDataParallel(
        session.model, forward_sync_buffers=False, find_unused_parameters=_try(session.model, session.task).leaves_out
    )
    network.register_comm_hook(task, _add_weighted)
    return dataclasses.replace(session, model=network, task=task)


def refuse_unlike(model: nn.Module, task: Task, protocol: Protocol) -> None:
    """Refuse a training in which a row's part of the gradient depends on more than the row and the weights.

    Raises:
        ValueError: it normalises over a batch, draws random numbers in a forward pass, or its optimiser sees more than
            gradients.
    """
    why = ""
    if protocol.optimizer.name not in OPTIMIZERS:
        why = f"its optimiser is {protocol.optimizer.name}; on several devices only {', '.join(OPTIMIZERS)} are"
    elif any(isinstance(layer, _BatchNorm) for layer in model.modules()):
        why = "it normalises over the batch, of which each device has a part"
    elif _try(model, task).draws:
        why = "its forward pass draws random numbers (dropout), which would be others on each device"
    if why:
        raise ValueError(f"this training can't be shared among devices: {why}; name one device, e.g. --device cuda:0")


@dataclass(frozen=True)
class _Tried:
    """Whether a training step takes numbers from PyTorch's generator, and whether it leaves parameters out."""

    draws: bool
    leaves_out: bool


def _try(model: nn.Module, task: Task) -> _Tried:
    """One row forwards and backwards; weights stay, and no gradient does."""
    inputs, targets = next(task.plain_batches(torch.zeros(1, dtype=torch.int64, device=task.device), 1))
    model.train()
    before = _generator_state(task.device)
    task.loss(model(inputs), targets).backward()
    found = _Tried(
        draws=not torch.equal(before, _generator_state(task.device)),
        leaves_out=any(parameter.grad is None for parameter in model.parameters() if parameter.requires_grad),
    )
    model.zero_grad(set_to_none=True)
    return found


def _generator_state(device: torch.device) -> Tensor:
    cpu = torch.get_rng_state()
    return torch.cat([cpu, torch.cuda.get_rng_state(device)]) if device.type == "cuda" else cpu


class SharedTask:
    """A task of which this rank computes its share of each batch; one of fewer rows than ranks is computed by all.

    Crops and flips are drawn for the whole batch, as on one device.
    """

    def __init__(self, task: Task, rank: int, size: int) -> None:
        self.task, self.rank, self.size = task, rank, size
        self.scores, self.device = task.scores, task.device
        self.weight = 1.0 / size
        """This rank's part of the open batch's mean."""
        self._counts = 1.0  # how often the rows of this rank count in sums over all ranks
        self._is_training = False

    def __len__(self) -> int:
        return len(self.task)

    def training_batch(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """This rank's inputs and targets of the batch `rows`."""
        self._is_training = True
        return self._mine(*self.task.training_batch(rows, generator))

    def plain_batches(self, rows: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """This rank's inputs and targets of each batch."""
        self._is_training = False
        for inputs, targets in self.task.plain_batches(rows, batch_size):
            yield self._mine(inputs, targets)

    def _mine(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        count = len(targets)
        if count < self.size:
            self.weight = self._counts = 1 / self.size
            return inputs, targets
        start, stop = self.rank * count // self.size, (self.rank + 1) * count // self.size
        self.weight, self._counts = (stop - start) / count, 1.0
        return inputs[start:stop], targets[start:stop]

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over this rank's share."""
        return self.task.loss(outputs, targets)

    def sums(self, outputs: Tensor, targets: Tensor, loss: Tensor) -> Tensor:
        """`scores` summed over the whole batch, the same on all ranks.

        When a loss is no longer finite, rank 0 is the one to say so: each rank looks by its own clock, and one that
        stopped earlier would leave the others waiting.
        """
        sums = self.task.sums(outputs, targets, loss) * self._counts
        dist.all_reduce(sums)
        return sums.nan_to_num() if self._is_training and self.rank else sums


def _add_weighted(
    task: SharedTask,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # it has no stub
) -> torch.futures.Future[Tensor]:
    """Gradients of the batch's mean: those of each share's mean, weighted by its part of the batch."""
    handle = dist.all_reduce(bucket.buffer().mul_(task.weight), async_op=True)
    return handle.get_future().then(lambda done: done.value()[0])


def agreed(should_stop: Callable[[], bool]) -> Callable[[], bool]:
    """Rank 0's answer, for all ranks at the same step."""
    said = torch.zeros(1, dtype=torch.int32)

    def ask() -> bool:
        said.fill_(dist.get_rank() == 0 and should_stop())
        dist.broadcast(said, src=0)
        return bool(said)

    return ask


def from_first(value: Any) -> Any:
    """Rank 0's object, on all ranks."""
    box = [value]
    dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    return box[0]


def highest(value: int) -> int:
    """The highest `value` of all ranks, on all of them."""
    found = torch.tensor(value)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return int(found)
