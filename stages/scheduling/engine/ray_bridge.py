"""The process that speaks with a Ray cluster: it submits and cancels tasks and passes on what they tell.

It is a process of its own because Ray ends the one that is connected when the cluster's head is gone for a minute.  The
engine, which holds the leases, then starts another one.
"""

from __future__ import annotations

import importlib
import logging
import os
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from stages.scheduling.engine.orphan import end_with
from stages.scheduling.engine.ray_task import TaskRequest, Unheard, pack_files, train_group

ADDRESS = "RAY_ADDRESS"
"""Ray's own name for the cluster's address; without it one is started on this machine."""
_POLL_SECONDS = 0.1
_TELL_SECONDS = 60.0
_NEWEST = ("saved", "progress", "beat")
SHORT_OF_MEMORY = "Ray ended its process for want of memory on the node"
"""Why a task ended that shared a node's memory with others."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """What a living node of the cluster offers; memory in bytes."""

    cpus: float
    gpus: float
    memory: int


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one task takes of its node; memory in bytes, which Ray counts and doesn't limit."""

    cpus: float
    gpus: float = 0.0
    memory: int = 0


class Inbox:
    """An actor beside the bridge, so that it lives as long: takes what tasks tell until the bridge fetches it.

    Where the bridge is slower than the tasks, their newest state, progress and beat take the place of earlier ones.
    """

    def __init__(self) -> None:
        self._told: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._count = 0

    def put(self, number: int, kind: str, *payload: Any) -> None:
        """Take what the task of that number tells."""
        self._count += 1
        key = (number, kind, payload[0]) if kind == "saved" else (number, kind)
        if kind not in _NEWEST:
            key = (*key, self._count)
        self._told.pop(key, None)  # so that it stands where it was told last
        self._told[key] = number, kind, *payload

    def take(self) -> list[tuple[Any, ...]]:
        """What was told since the last call, in order."""
        told, self._told = [*self._told.values()], {}
        return told


def task(number: int, ask: TaskRequest, inbox: Any, packed: list[Any]) -> None:
    """`train_group` as a Ray task; `packed` has a reference to the data's files, or nothing.

    It waits for futures, for while a task waits in `ray.get` Ray gives its processors to another one.
    """
    ray = importlib.import_module("ray")

    def tell(*told: Any) -> None:
        try:
            inbox.put.remote(number, *told).future().result(_TELL_SECONDS)
        except (ray.exceptions.RayError, TimeoutError) as error:
            raise Unheard(f"nobody takes in what {ask.label} tells: {error}") from None

    train_group(ask, tell, (lambda: packed[0].future().result()) if packed else None)


def bridge(commands: Connection, address: str | None, working_dir: Path, environment: Mapping[str, str]) -> None:
    """The process's main function: connects, says `("ready", nodes, dashboard)`, and serves until `commands` is closed.

    Takes `("submit", number, ask, share)`, `("cancel", number, is_forced)` and `("nodes",)`.  Says `(number, kind,
    *payload)` as tasks tell it, `(number, "ended", reason)` when one is over, reason "" if it returned, `("nodes",
    nodes)`, and `("refused",)` when the cluster wants another token, `("lost", reason)` when it can't be reached or not
    any more; then it ends.
    """
    end_with([os.getppid()])
    os.setsid()  # Ctrl-C is for the engine, which stops tasks one by one
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")  # Ray gives up after 30: too soon on a busy machine
    os.environ.setdefault("RAY_agent_register_timeout_ms", "120000")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"  # the engine tells how tasks end
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray will do, without its warning
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"  # else each worker resolves an environment (ray#50961)
    ray = importlib.import_module("ray")
    # Ray prints a dead node's log to stdout.
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), _muttering() as muttered:
        try:
            context = ray.init(
                address=address or "local",
                runtime_env={"working_dir": str(working_dir), "env_vars": dict(environment)},
                namespace="claimcheck",
                log_to_driver=False,
                logging_level=logging.ERROR,
                **({} if address else {"include_dashboard": False}),
            )
            dashboard = f"http://{context.dashboard_url}" if context.dashboard_url else ""
            _Bridge(ray, commands, dashboard, is_alone=address is None).serve()
        except (ray.exceptions.RayError, OSError, RuntimeError) as error:
            is_refused = isinstance(error, ray.exceptions.AuthenticationError) or "Unauthenticated" in muttered()
            with suppress(OSError):  # the engine is gone, too
                commands.send(("refused",) if is_refused else ("lost", _first_line(error)))


@contextmanager
def _muttering() -> Iterator[Callable[[], str]]:
    """Keep apart what Ray's C++ writes to this process's stderr, a line a second while a cluster is away; returns what
    that was so far.  It alone says why a cluster refuses us.
    """
    with tempfile.TemporaryFile() as kept, os.fdopen(os.dup(2), "w", buffering=1) as ours:
        os.dup2(kept.fileno(), 2)
        try:
            with redirect_stderr(ours):
                yield lambda: os.pread(kept.fileno(), 2**20, 0).decode(errors="replace")
        finally:
            os.dup2(ours.fileno(), 2)


@dataclass
class _Bridge:
    ray: Any
    commands: Connection
    dashboard: str
    is_alone: bool
    tasks: dict[Any, int] = field(default_factory=dict)
    packed: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        affinity = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        here = affinity(self.ray.get_runtime_context().get_node_id(), soft=False)
        self.inbox = self.ray.remote(num_cpus=0, scheduling_strategy=here)(Inbox).remote()
        self.ray.get(self.inbox.take.remote())

    def serve(self) -> None:
        self.commands.send(("ready", self._nodes(), self.dashboard))
        while True:
            while self.commands.poll(0 if self.tasks else _POLL_SECONDS):
                try:
                    command, *arguments = self.commands.recv()
                except (EOFError, OSError):  # the engine has closed it, or is gone
                    self.ray.shutdown()
                    return
                getattr(self, command)(*arguments)
            self._pass_on()

    def submit(self, number: int, ask: TaskRequest, share: Share) -> None:
        """Submit a task that Ray runs at most once: attempts are counted by the engine."""
        remote = self.ray.remote(num_cpus=share.cpus, num_gpus=share.gpus, memory=share.memory or None, max_retries=0)(
            task
        )
        self.tasks[remote.options(name=ask.label).remote(number, ask, self.inbox, self._put(ask))] = number

    def cancel(self, number: int, is_forced: bool) -> None:
        """Ask a task to stop, or end its process; one that waits for its place never starts."""
        for reference, known in self.tasks.items():
            if known == number:
                self.ray.cancel(reference, force=is_forced)

    def nodes(self) -> None:
        self.commands.send(("nodes", self._nodes()))

    def _nodes(self) -> list[Node]:
        alive = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return [
            Node(cpus=has.get("CPU", 0.0), gpus=has.get("GPU", 0.0), memory=int(has.get("memory", 0))) for has in alive
        ]

    def _put(self, ask: TaskRequest) -> list[Any]:
        """A reference to the data's files, which Ray brings once to each node that needs it; none on one machine."""
        digest = ask.specs[0].data_digest
        if not self.is_alone and digest not in self.packed:
            self.packed[digest] = self.ray.put(pack_files(ask.data))
        return [] if self.is_alone else [self.packed[digest]]

    def _pass_on(self) -> None:
        over, _ = (
            self.ray.wait([*self.tasks], num_returns=len(self.tasks), timeout=_POLL_SECONDS) if self.tasks else ([], [])
        )
        for told in self.ray.get(self.inbox.take.remote(), timeout=_TELL_SECONDS):  # before the ends of who told it
            self.commands.send(told)
        for reference in over:
            self.commands.send((self.tasks.pop(reference), "ended", self._reason(reference)))

    def _reason(self, reference: Any) -> str:
        errors = self.ray.exceptions
        try:
            self.ray.get(reference)
        except errors.TaskCancelledError:
            return "it was cancelled"
        except errors.NodeDiedError:
            return "its node is gone"
        except errors.OutOfMemoryError:
            return SHORT_OF_MEMORY
        except errors.WorkerCrashedError:
            return "its process was killed"
        except errors.RayTaskError as error:
            return str(error.cause)
        except errors.RayError as error:
            return _first_line(error)
        return ""


def _first_line(error: Exception) -> str:
    line = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {textwrap.shorten(line, 100, placeholder=' …')}"
