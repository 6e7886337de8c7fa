"""The engine's connection to a Ray cluster, which a separate process holds.

Ray ends the connected process if the cluster's head is gone for a minute.  The engine, which holds the leases, then
starts another one.
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import os
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from stages.run import RunSpec
from stages.runs.fingerprint import PACKAGE_ROOT, source_path
from stages.scheduling.groups import EngineError, Group
from stages.scheduling.orphans import exit_when_gone
from stages.scheduling.ray_task import SubmitterGone, TaskRequest, pack_files, train_group

ADDRESS = "RAY_ADDRESS"
"""Ray's environment variable with the cluster's address; without it, a cluster is started on this machine."""
_POLL_SECONDS = 0.1
_SEND_SECONDS = 60.0
_NEWEST = ("saved", "progress", "beat")
SHORT_OF_MEMORY = "Ray ended its process because the node was short of memory"
"""Reason for the end of a task that shared a node's memory with others."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Processors and GPUs of a living node of the cluster, or those that one task takes from its node."""

    cpus: float
    gpus: float = 0.0


class Inbox:
    """An actor that collects the tasks' messages until the bridge fetches them; it lives as long as the bridge.

    If the bridge is slower than the tasks, their newest state, progress and heartbeat replace earlier ones.
    """

    def __init__(self) -> None:
        self._messages: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._count = 0

    def put(self, number: int, kind: str, *payload: Any) -> None:
        """Add a message of the task with that number."""
        self._count += 1
        key = (number, kind, payload[0]) if kind == "saved" else (number, kind)
        if kind not in _NEWEST:
            key = (*key, self._count)
        self._messages.pop(key, None)  # so that it moves to the end
        self._messages[key] = number, kind, *payload

    def take(self) -> list[tuple[Any, ...]]:
        """Return the messages since the last call, in order."""
        messages, self._messages = [*self._messages.values()], {}
        return messages


def task(number: int, request: TaskRequest, inbox: Any, packed: list[Any]) -> None:
    """Run `train_group` as a Ray task; `packed` has a reference to the data's files, or nothing.

    It waits for futures, because Ray gives the processors of a task that waits in `ray.get` to another one.
    """
    ray = importlib.import_module("ray")

    def send(*message: Any) -> None:
        try:
            inbox.put.remote(number, *message).future().result(_SEND_SECONDS)
        except (ray.exceptions.RayError, TimeoutError) as error:
            raise SubmitterGone(f"no process receives the messages of {request.group.label}: {error}") from None

    train_group(request, send, (lambda: packed[0].future().result()) if packed else None)


def bridge(commands: Connection, address: str | None, working_dir: Path, environment: Mapping[str, str]) -> None:
    """Connect, send `("ready", nodes, dashboard)`, and serve until `commands` is closed; the process's main function.

    It receives `("submit", number, request, share)`, `("cancel", number, is_forced)` and `("nodes",)`.  It sends:

    - `(number, kind, *payload)`: a task's message.
    - `(number, "ended", reason)`: a task is over; the reason is "" if it returned.
    - `("nodes", nodes)`
    - `("refused",)`: the cluster wants another token; the process ends.
    - `("lost", reason)`: the cluster can't be reached, or no longer; the process ends.
    """
    exit_when_gone([os.getppid()])
    os.setsid()  # Ctrl-C is for the engine, which stops tasks one by one
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")  # Ray gives up after 30: too soon on a busy machine
    os.environ.setdefault("RAY_agent_register_timeout_ms", "120000")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"  # the engine reports how tasks end
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default, without its warning
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"  # else each worker resolves an environment (ray#50961)
    ray = importlib.import_module("ray")
    # Ray prints a dead node's log to stdout.
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), _hidden_stderr() as hidden:
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
            is_refused = isinstance(error, ray.exceptions.AuthenticationError) or "Unauthenticated" in hidden()
            with suppress(OSError):  # the engine is gone, too
                commands.send(("refused",) if is_refused else ("lost", _first_line(error)))


@contextmanager
def _hidden_stderr() -> Iterator[Callable[[], str]]:
    """Redirect what Ray's C++ writes to this process's stderr: a line per second while a cluster is out of reach.

    Yields a function that returns what was written so far, because only that says why a cluster refuses us.
    """
    with tempfile.TemporaryFile() as hidden, os.fdopen(os.dup(2), "w", buffering=1) as ours:
        os.dup2(hidden.fileno(), 2)
        try:
            with redirect_stderr(ours):
                yield lambda: os.pread(hidden.fileno(), 2**20, 0).decode(errors="replace")
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
            over = []
            if self.tasks:
                over, _ = self.ray.wait([*self.tasks], num_returns=len(self.tasks), timeout=_POLL_SECONDS)
            for message in self.ray.get(self.inbox.take.remote(), timeout=_SEND_SECONDS):  # before its task's end
                self.commands.send(message)
            for reference in over:
                self.commands.send((self.tasks.pop(reference), "ended", self._reason(reference)))

    def submit(self, number: int, request: TaskRequest, share: Resources) -> None:
        """Submit a task that Ray runs at most once, because the engine counts attempts."""
        group, packed = request.group, []
        if not self.is_alone:  # Ray brings the data's files once to each node that needs them
            digest = group.specs[0].data_digest
            if digest not in self.packed:
                self.packed[digest] = self.ray.put(pack_files(group.data))
            packed = [self.packed[digest]]
        remote = self.ray.remote(max_retries=0, num_cpus=share.cpus, num_gpus=share.gpus)(task).options(
            name=group.label
        )
        self.tasks[remote.remote(number, request, self.inbox, packed)] = number

    def cancel(self, number: int, is_forced: bool) -> None:
        """Ask a task to stop, or end its process; a task that is still waiting never starts."""
        for reference, known in self.tasks.items():
            if known == number:
                self.ray.cancel(reference, force=is_forced)

    def nodes(self) -> None:
        self.commands.send(("nodes", self._nodes()))

    def _nodes(self) -> list[Resources]:
        alive = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return [Resources(cpus=has.get("CPU", 0.0), gpus=has.get("GPU", 0.0)) for has in alive]

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


LOST = "the connection to the cluster is lost"


class Cluster:
    """The connection to the cluster, held by a process that is replaced when it ends."""

    def __init__(self) -> None:
        self.address = os.environ.get(ADDRESS)
        self.name = self.address or "of this machine"
        self._process: Any = None
        self._pipe: Connection | None = None
        self._code: Path | None = None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if self._code is not None:
            shutil.rmtree(self._code, ignore_errors=True)

    def open(self, groups: Sequence[Group]) -> None:
        """Start the process, with a copy of the current code; it sends `("ready", nodes, dashboard)` once connected."""
        self.close()
        if self._code is None:
            self._code = Path(tempfile.mkdtemp(prefix="claimcheck-code-"))
            copy_code([spec for group in groups for spec in group.specs], self._code)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        handed = {name: os.environ[name] for name in ("ATEN_CPU_CAPABILITY",) if name in os.environ}
        self._process = context.Process(
            target=bridge,
            args=(theirs, self.address, self._code, handed | {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONUTF8": "1"}),
        )
        self._process.start()
        theirs.close()
        self._pipe = ours

    def close(self) -> None:
        """End the process, and with it the tasks that it submitted."""
        if self._pipe is not None:
            self._pipe.close()
            self._process.join(30)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            self._pipe = None

    def send(self, *command: Any) -> None:
        """Send a command to the process.

        Raises:
            ConnectionError: the process is gone.
        """
        assert self._pipe is not None, "open comes first"
        try:
            self._pipe.send(command)
        except ConnectionError:
            raise ConnectionError(LOST) from None

    def receive(self, seconds: float) -> list[tuple[Any, ...]]:
        """Wait up to that long and return the messages that arrived.

        Raises:
            ConnectionError: the process is gone.
        """
        assert self._pipe is not None, "open comes first"
        received: list[tuple[Any, ...]] = []
        try:
            while self._pipe.poll(0 if received else seconds):
                received.append(self._pipe.recv())
        except (EOFError, ConnectionError):
            if not received:
                raise ConnectionError(LOST) from None
        return received


MOST_BYTES = 100 * 2**20
"""Largest working directory that Ray uploads without trouble, in bytes."""


def copy_code(specs: Iterable[RunSpec], folder: Path) -> None:
    """Copy the code that these runs need into `folder`.

    Raises:
        EngineError: it is larger than Ray allows.
    """
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(PACKAGE_ROOT / "stages", folder / "stages", ignore=ignored)
    for top in sorted({module.partition(".")[0] for spec in specs for module in spec.code} - {"stages"}):
        path = source_path(top)
        if path is None:  # a package without a file of its own
            continue
        if path.name == "__init__.py":
            shutil.copytree(path.parent, folder / top, ignore=ignored)
        else:
            shutil.copy(path, folder / path.name)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > MOST_BYTES:
        largest = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
        raise EngineError(
            f"the code for the nodes has {size / 2**20:.0f} MiB, but Ray uploads at most {MOST_BYTES / 2**20:.0f}; "
            f"the largest file is {largest.relative_to(folder)}: keep data out of packages"
        )


class Shares:
    """Equal shares of the nodes for trainings on `devices`."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._kinds = [name.partition(":")[0] for name in devices[0].split("+")]
        self._together = len(devices)

    def of(self, nodes: Sequence[Resources], *, is_alone: bool) -> tuple[Resources, str, int]:
        """Return the share, the device and the number of threads.

        The number of threads is the same on every node, because it decides the last digits.  Several GPUs that train
        one run together are whole ones of one node; Ray chooses them.
        """
        if (ranks := len(self._kinds)) > 1 and self.device(nodes) == "cuda":
            return Resources(cpus=ranks, gpus=ranks), self._ranks(nodes), ranks
        if self.device(nodes) == "cuda":
            # as many tasks share a GPU as there are devices in the list
            return Resources(cpus=1, gpus=1.0 if is_alone else 1 / self._together), "cuda", 1
        threads = self._threads(nodes)
        cpus = self._fewest_cpus(nodes) if is_alone else threads
        return Resources(cpus=cpus), self._ranks(nodes), threads

    def room(self, nodes: Sequence[Resources]) -> int:
        """Return how many groups to keep submitted: all that the cluster can train at once, and some that wait."""
        if self.device(nodes) == "cuda" and (ranks := len(self._kinds)) > 1:
            places = sum(int(node.gpus) // ranks for node in nodes)
        elif self.device(nodes) == "cuda":
            places = sum(int(node.gpus) for node in nodes) * self._together
        else:
            places = sum(int(node.cpus) // self._threads(nodes) for node in nodes)
        return places + max(2, places // 4)

    def lack(self, nodes: Sequence[Resources]) -> str:
        """Explain why no node can take a group ("" if one can); the group waits, because a cluster may grow."""
        ranks = len(self._kinds)
        if self.device(nodes) != "cuda" or any(node.gpus >= ranks for node in nodes):
            return ""
        most = max((int(node.gpus) for node in nodes), default=0)
        needed = f"{ranks} GPUs" if ranks > 1 else "a GPU"
        return f"a run takes {needed} of one node, and no node of the cluster has more than {most}: it waits for one"

    def device(self, nodes: Sequence[Resources]) -> str:
        """Return `cpu` or `cuda`; `auto` is `cuda` if any node has a GPU."""
        kind = self._kinds[0]
        if kind == "auto":
            return "cuda" if any(node.gpus for node in nodes) else "cpu"
        return kind

    def _ranks(self, nodes: Sequence[Resources]) -> str:
        """Return the devices of one run by the names that they have on a node: `cpu`, `cpu+cpu`, `cuda:0+cuda:1`."""
        kinds = [self.device(nodes) if kind == "auto" else kind for kind in self._kinds]
        return "+".join(f"{kind}:{number}" if kind == "cuda" else kind for number, kind in enumerate(kinds))

    def _threads(self, nodes: Sequence[Resources]) -> int:
        return max(1, self._fewest_cpus(nodes) // self._together)

    def _fewest_cpus(self, nodes: Sequence[Resources]) -> int:
        return int(min((node.cpus for node in nodes if node.cpus >= 1), default=1))
