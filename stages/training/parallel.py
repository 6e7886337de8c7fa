"""Data-parallel training on several devices: each rank, a process, computes its share of every batch.

All ranks draw the same rows and hold the same weights.  Before each step their gradients are added, each weighted by
the rank's share of the batch, which gives the gradient of the mean over the whole batch (Li et al. 2020, PyTorch
Distributed); scores are added, too.  Only the order of sums differs from training on one device: the run key is the
same, weights are equal except for rounding, and the environment records the ranks.  Ranks start and stop together.
"""

import dataclasses
import hashlib
import math
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from stages.run import Protocol
from stages.training.loop import Task
from stages.training.session import Session

# No postponed annotations here: DistributedDataParallel checks the types that a hook is annotated with.


OPTIMIZERS = ("sgd", "adam", "adamw")
"""Those that take a step from the gradients alone."""


def backend_of(device: torch.device) -> str:
    """Return NCCL for GPUs, Gloo for CPUs."""
    return "nccl" if device.type == "cuda" else "gloo"


@contextmanager
def joined(rank: int, size: int, device: torch.device, port: int) -> Iterator[None]:
    """Join the other ranks of this machine at `port`; inside the block their collectives work, on the CPU, too."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)  # type: ignore[attr-defined]  # it has no stub
    backend = backend_of(device)
    both = backend if backend == "gloo" else f"cpu:gloo,cuda:{backend}"
    dist.init_process_group(both, store=store, rank=rank, world_size=size)
    yield
    dist.destroy_process_group()  # not after an error: it would wait for ranks that are gone


def describe_ranks(size: int, device: torch.device, protocol: Protocol) -> dict[str, Any]:
    """Return a result's fields about shared batches: number of processes, backend, and code (in no run key)."""
    code = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    shared = {"world_size": size, "backend": backend_of(device), "global_batch": protocol.batch_size, "code": code}
    return {"data_parallel": shared}


def share(session: Session) -> Session:
    """Share the session's batches among the joined ranks; its network stays the same object.

    Raises:
        ValueError: results would differ from those on one device by more than rounding.
    """
    refuse_unlike(session.model, session.task, session.spec.protocol)
    task = SharedTask(session.task, dist.get_rank(), dist.get_world_size())
    network = DistributedDataParallel(
        session.model, forward_sync_buffers=False, find_unused_parameters=_try(session.model, session.task).leaves_out
    )
    network.register_comm_hook(task, _add_weighted)
    return dataclasses.replace(session, model=network, task=task)


def refuse_unlike(model: nn.Module, task: Task, protocol: Protocol) -> None:
    """Reject a training in which a row's gradient depends on more than the row and the weights.

    Raises:
        ValueError: it normalises over a batch, draws random numbers in a forward pass, or its optimiser needs more
            than gradients.
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
    """Properties of a training step: it draws from PyTorch's generator; it leaves parameters without a gradient."""

    draws: bool
    leaves_out: bool


def _try(model: nn.Module, task: Task) -> _Tried:
    """Run one row forward and backward, without changing weights or leaving gradients."""
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
    """A task whose batches are shared: this rank computes its part, or all of a batch with fewer rows than ranks.

    Crops and flips are drawn for the whole batch, as on one device.
    """

    def __init__(self, task: Task, rank: int, size: int) -> None:
        self.task, self.rank, self.size = task, rank, size
        self.scores, self.device = task.scores, task.device
        self.weight = 1.0 / size
        """This rank's part of the open batch's mean."""
        self._counts = 1.0  # factor of this rank's rows in sums over all ranks
        self._is_training = False

    def __len__(self) -> int:
        return len(self.task)

    def training_batch(self, rows: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return this rank's inputs and targets of the batch `rows`."""
        self._is_training = True
        return self._mine(*self.task.training_batch(rows, generator))

    def plain_batches(self, rows: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's inputs and targets of each batch."""
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
        """Return `scores` summed over the whole batch, the same on all ranks.

        Only rank 0 reports a loss that is no longer finite: ranks check at different times, and one that stopped
        earlier would leave the others waiting.
        """
        sums = self.task.sums(outputs, targets, loss) * self._counts
        dist.all_reduce(sums)
        return sums.nan_to_num() if self._is_training and self.rank else sums


def _add_weighted(
    task: SharedTask,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # it has no stub
) -> torch.futures.Future[Tensor]:
    """Add the gradients of all shares' means, weighted by share: the gradient of the batch's mean."""
    handle = dist.all_reduce(bucket.buffer().mul_(task.weight), async_op=True)
    return handle.get_future().then(lambda done: done.value()[0])


def agreed(should_stop: Callable[[], bool]) -> Callable[[], bool]:
    """Make all ranks use rank 0's answer at the same step."""
    said = torch.zeros(1, dtype=torch.int32)

    def ask() -> bool:
        said.fill_(dist.get_rank() == 0 and should_stop())
        dist.broadcast(said, src=0)
        return bool(said)

    return ask


def from_first(value: Any) -> Any:
    """Return rank 0's object on all ranks."""
    box = [value]
    dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    return box[0]


def highest(value: int) -> int:
    """Return the highest `value` of all ranks, on each of them."""
    found = torch.tensor(value)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return int(found)


_WAIT_SECONDS = 0.2
_LAST_WORDS_SECONDS = 60.0
"""How long rank 0 may take to save its state, or to notice that another one has failed."""


class RankLost(ChildProcessError):
    """A rank ended early; the message says which and how."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """A rank's number, the devices of all ranks in order, the port at which they meet, and the threads of each."""

    number: int
    devices: tuple[str, ...]
    port: int
    threads: int

    @property
    def size(self) -> int:
        return len(self.devices)

    @property
    def device(self) -> str:
        return self.devices[self.number]


Tell = Callable[[Any], None]
Work = Callable[[Rank, Tell, Callable[[], bool]], Any]
"""What a rank does, given its number, how to report progress, and whether to stop; its result is rank 0's."""


def run_together(work: Work, devices: Sequence[str], *, tell: Tell, should_stop: Callable[[], bool]) -> Any:
    """Run `work` in a process for each of `devices`; return rank 0's result and pass on its progress.

    An error in one rank stops the others and is raised here.

    Raises:
        RankLost: a rank ended without a result.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "torch._dynamo"])  # loaded once for all ranks of all runs
    meeting = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    threads = max(1, torch.get_num_threads() // len(devices))
    stop, ranks = context.Event(), dict[Connection, tuple[Rank, ForkServerProcess]]()
    try:
        for number in range(len(devices)):
            rank = Rank(number=number, devices=tuple(devices), port=meeting.port, threads=threads)
            reader, writer = context.Pipe(duplex=False)
            process = context.Process(target=_be, args=(work, rank, writer, stop), name=f"rank-{number}")
            process.start()
            writer.close()
            ranks[reader] = rank, process
        return _follow(ranks, tell, should_stop, stop)
    finally:
        for _, process in ranks.values():
            process.kill()
            process.join()


def _follow(
    ranks: dict[Connection, tuple[Rank, ForkServerProcess]], tell: Tell, should_stop: Callable[[], bool], stop: Event
) -> Any:
    """Read the ranks' messages until rank 0 has finished; it may still save a state after others are done.

    Raises the first error, unless a rank died without a message: its death causes the errors of the others.
    """
    readers, errors, deadline = list(ranks), list[Exception](), math.inf
    while time.monotonic() < deadline:
        if should_stop():
            stop.set()
        for ready in wait(readers, timeout=_WAIT_SECONDS):
            assert isinstance(ready, Connection), "only pipes were waited for"
            said = _next(ready)
            if said is None:
                raise _lost(*ranks[ready])
            kind, value = said
            if kind == "told":
                tell(value)
                continue
            readers.remove(ready)
            if kind == "raised":
                errors.append(value)
                deadline = time.monotonic() + _LAST_WORDS_SECONDS
            if ranks[ready][0].number == 0:
                if kind == "returned":
                    return value
                raise _died(ranks, readers) or errors[0]
    raise errors[0]


def _next(reader: Connection) -> tuple[Literal["told", "raised", "returned"], Any] | None:
    """Return a rank's next message; None if the rank is gone."""
    try:
        return reader.recv()
    except (EOFError, OSError):
        return None


def _died(ranks: dict[Connection, tuple[Rank, ForkServerProcess]], readers: Sequence[Connection]) -> RankLost | None:
    """Return the error for a rank that died without a message, if any."""
    for reader in wait(readers, timeout=_WAIT_SECONDS):
        assert isinstance(reader, Connection), "only pipes were waited for"
        if _next(reader) is None:
            return _lost(*ranks[reader])
    return None


def _lost(rank: Rank, process: ForkServerProcess) -> RankLost:
    process.join()
    code = process.exitcode or 0
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return RankLost(
        f"rank {rank.number} of {rank.size} ({rank.device}) {how}, so the others were ended; its state stays"
    )


def _be(work: Work, rank: Rank, writer: Connection, stop: Event) -> None:
    """Work as one rank and report how it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the parent reacts to signals
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="orphan-watch", daemon=True).start()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine, whose name may not resolve
    torch.set_num_threads(rank.threads)
    try:
        writer.send(("returned", work(rank, lambda value: writer.send(("told", value)), stop.is_set)))
    except Exception as error:  # noqa: BLE001  (the parent raises it, whatever it is)
        error.add_note(traceback.format_exc())
        writer.send(("raised", error))
    writer.close()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "a rank is a child"
    parent.join()
    os._exit(os.EX_TEMPFAIL)
