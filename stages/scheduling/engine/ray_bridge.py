"""The engine's connection to a Ray cluster: a process that speaks with it, and is replaced when it ends.

It is a process of its own because Ray ends the one that is connected when the cluster's head is gone for a minute.  The
engine, which holds the leases, then starts another one.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
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
from stages.scheduling.engine.groups import EngineError, Group, network_of
from stages.scheduling.engine.local import end_with
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
    """Resources of a living node of the cluster; memory in bytes."""

    cpus: float
    gpus: float
    memory: int


@dataclass(frozen=True, kw_only=True)
class Share:
    """Resources that one task takes of its node; memory in bytes, which Ray counts and doesn't limit."""

    cpus: float
    gpus: float = 0.0
    memory: int = 0


class Inbox:
    """An actor that lives as long as the bridge: collects what tasks report until the bridge fetches it.

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
        self._told.pop(key, None)  # so that it moves to the end
        self._told[key] = number, kind, *payload

    def take(self) -> list[tuple[Any, ...]]:
        """Events since the last call, in order."""
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
            raise Unheard(f"no process receives the reports of {ask.label}: {error}") from None

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
            over = []
            if self.tasks:
                over, _ = self.ray.wait([*self.tasks], num_returns=len(self.tasks), timeout=_POLL_SECONDS)
            for told in self.ray.get(self.inbox.take.remote(), timeout=_TELL_SECONDS):  # before the ends of who told it
                self.commands.send(told)
            for reference in over:
                self.commands.send((self.tasks.pop(reference), "ended", self._reason(reference)))

    def submit(self, number: int, ask: TaskRequest, share: Share) -> None:
        """Submit a task that Ray runs at most once: attempts are counted by the engine."""
        remote = self.ray.remote(num_cpus=share.cpus, num_gpus=share.gpus, memory=share.memory or None, max_retries=0)(
            task
        )
        packed = []
        if not self.is_alone:  # Ray brings the data's files once to each node that needs them
            digest = ask.specs[0].data_digest
            if digest not in self.packed:
                self.packed[digest] = self.ray.put(pack_files(ask.data))
            packed = [self.packed[digest]]
        self.tasks[remote.options(name=ask.label).remote(number, ask, self.inbox, packed)] = number

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
    """The connection to the cluster, by a process that is replaced when it ends."""

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
        """Start the process; it sends `("ready", nodes, dashboard)` once it is connected.

        The code goes with it as it is now.
        """
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
        """End the process, and with it what it submitted."""
        if self._pipe is not None:
            self._pipe.close()
            self._process.join(30)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            self._pipe = None

    def send(self, *command: Any) -> None:
        """Raises ConnectionError if the process is gone."""
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


class TooMuchCode(EngineError):
    """More than Ray takes."""


def copy_code(specs: Iterable[RunSpec], folder: Path) -> None:
    """Copy what these runs need into `folder`.

    Raises:
        TooMuchCode: it is larger than Ray takes.
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
        raise TooMuchCode(
            f"the code to bring to the nodes has {size / 2**20:.0f} MiB, Ray takes {MOST_BYTES / 2**20:.0f}; the "
            f"largest file is {largest.relative_to(folder)}: keep data out of packages"
        )


_MARGIN = 1.25
_CONTEXT_BYTES = 2**30
"""Device memory that CUDA itself takes for each process."""
_PARTS = 8
"""A GPU is shared in eighths: many processes of small networks wait for each other."""


class Shares:
    """Shares of the nodes for trainings on `devices`; learns what networks take from outcomes as they come in."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._kinds = [name.partition(":")[0] for name in devices[0].split("+")]
        self._together = len(devices)
        self._peaks: dict[str, int] = {}
        self._device_bytes = 0

    def of(self, group: Group, nodes: Sequence[Node], *, is_alone: bool) -> tuple[Share, str, int]:
        """The share, the device, and the number of threads: it decides last digits, so it is the same on every node.

        Several GPUs that train one run together are whole ones of one node; which, Ray decides.
        """
        peak = self._peaks.get(network_of(group.specs[0]), 0)
        if (ranks := len(self._kinds)) > 1 and self.device(nodes) == "cuda":
            return Share(cpus=ranks, gpus=ranks), self._ranks(nodes), ranks
        if self.device(nodes) == "cuda":
            part = 1.0 if is_alone else 1 / self._together  # as many as the devices' names say share one
            if peak and self._device_bytes and not is_alone:
                part = math.ceil(_PARTS * (_MARGIN * peak + _CONTEXT_BYTES) / self._device_bytes) / _PARTS
            return Share(cpus=1, gpus=min(1.0, part)), "cuda", 1
        threads = self._threads(nodes)
        cpus = self._fewest_cpus(nodes) if is_alone else threads
        memory = min([math.ceil(_MARGIN * peak), *(node.memory for node in nodes if node.cpus >= 1)])
        return Share(cpus=cpus, memory=memory), self._ranks(nodes), threads

    def room(self, nodes: Sequence[Node]) -> int:
        """Number of groups to keep submitted: all that the cluster can train at once, and some that wait."""
        if self.device(nodes) == "cuda" and (ranks := len(self._kinds)) > 1:
            places = sum(int(node.gpus) // ranks for node in nodes)
        elif self.device(nodes) == "cuda":
            places = sum(int(node.gpus) for node in nodes) * self._together
        else:
            places = sum(int(node.cpus) // self._threads(nodes) for node in nodes)
        return places + max(2, places // 4)

    def learn(self, group: Group, outcomes: Mapping[str, Mapping[str, bytes]]) -> None:
        """Remember what a group's training took."""
        self._peaks[network_of(group.specs[0])] = max(
            json.loads(files["result.json"])["peak_memory_bytes"] for files in outcomes.values()
        )

    def learn_device(self, size: int | None) -> None:
        """Remember the memory of a GPU, bytes, the smallest of all."""
        if size:
            self._device_bytes = min(size, self._device_bytes or size)

    def lack(self, nodes: Sequence[Node]) -> str:
        """Explain why no node can take a group, "" if one can; a cluster may grow, so the group waits."""
        ranks = len(self._kinds)
        if self.device(nodes) != "cuda" or any(node.gpus >= ranks for node in nodes):
            return ""
        most = max((int(node.gpus) for node in nodes), default=0)
        asked = f"{ranks} GPUs" if ranks > 1 else "a GPU"
        return f"a run takes {asked} of one node, and no node of the cluster has more than {most}: it waits for one"

    def device(self, nodes: Sequence[Node]) -> str:
        """`cpu` or `cuda`; `auto` is `cuda` where any node has one."""
        kind = self._kinds[0]
        if kind == "auto":
            return "cuda" if any(node.gpus for node in nodes) else "cpu"
        return kind

    def _ranks(self, nodes: Sequence[Node]) -> str:
        """The devices of one run, as a node calls those that Ray gives it: `cpu`, `cpu+cpu`, `cuda:0+cuda:1`."""
        kinds = [self.device(nodes) if kind == "auto" else kind for kind in self._kinds]
        return "+".join(f"{kind}:{number}" if kind == "cuda" else kind for number, kind in enumerate(kinds))

    def _threads(self, nodes: Sequence[Node]) -> int:
        return max(1, self._fewest_cpus(nodes) // self._together)

    def _fewest_cpus(self, nodes: Sequence[Node]) -> int:
        return int(min((node.cpus for node in nodes if node.cpus >= 1), default=1))
