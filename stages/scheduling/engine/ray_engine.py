"""Trains groups of runs on a Ray cluster: one task a group, placed by Ray, watched and counted here.

This process holds the leases, keeps the states that nodes save unless they reach the store by URL, and publishes.  Ray
is told to run each task once.  What is lost with its process, its node or the whole cluster is submitted again and goes
on from its last state.
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import multiprocessing
import os
import shutil
import sys
import tempfile
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from stages.faults import describe_fault
from stages.run import RunSpec
from stages.runs.fingerprint import PACKAGE_ROOT, source_path
from stages.runs.store import STATE, ObjectStore, RunStore, Store, stack_id
from stages.scheduling.engine.groups import EngineError, Event, Group, Report, TrainingsKilled, network_of
from stages.scheduling.engine.leases import End, Lease, LeaseLost, Leases, describe_failure, publish
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
        """What has arrived within that time.

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
"""What Ray takes in a working directory without trouble."""


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
"""What CUDA itself takes of a device for each process."""
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
            return Share(cpus=1, gpus=1.0 if is_alone else self._part(peak)), "cuda", 1
        threads = self._threads(nodes)
        cpus = self._fewest_cpus(nodes) if is_alone else threads
        memory = min([math.ceil(_MARGIN * peak), *(node.memory for node in nodes if node.cpus >= 1)])
        return Share(cpus=cpus, memory=memory), self._ranks(nodes), threads

    def room(self, nodes: Sequence[Node]) -> int:
        """How many groups to keep submitted: all that the cluster can train at once, and some that wait."""
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
        """Why no node can take a group, "" if one can; a cluster may grow, so the group waits."""
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

    def _part(self, peak: int) -> float:
        """Part of a GPU: by measured memory where both are known, else the devices' names say how many share one."""
        if not peak or not self._device_bytes:
            return 1 / self._together
        return min(_PARTS, math.ceil(_PARTS * (_MARGIN * peak + _CONTEXT_BYTES) / self._device_bytes)) / _PARTS


_TICK_SECONDS = 0.1
_MOST_LOSSES = 5
"""In a row, without a newly saved state in between: it isn't the cluster then."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a task may tell nothing at all (`silent`), or take no step while it lives (`stuck`: a step may compile;
    at least 20 times the longest so far), how long a stop may take, and how long the cluster may be out of reach.
    """

    silent: float = 60.0
    stuck: float = 900.0
    stopping: float = 120.0
    unreachable: float = 600.0


PATIENCE = Patience()


def run_groups(
    groups: Sequence[Group], store: Store, devices: Sequence[str], report: Report, stop: threading.Event
) -> bool:
    """Train all groups on the cluster that `RAY_ADDRESS` names, else on one that is started on this machine.

    `devices` says where on a node: `cpu`, `cuda`, or `auto`; a name twice, two tasks on each.  Several that train one
    run together (`cuda:0+cuda:1`) are as many of a node, whatever their numbers.

    Returns whether every group has its outcome in the store.
    """
    if groups:
        with Cluster() as cluster:
            _Engine(cluster, store, devices, report, stop, deque(groups)).run()
    return all(group.is_published(store) for group in groups)


@dataclass
class _Flight:
    """A group that was submitted."""

    group: Group
    lease: Lease
    lost: threading.Event
    kept: ExitStack
    is_alone: bool
    submitted: float
    heard: float = 0.0
    stepped: float = 0.0
    longest: float = 0.0
    steps: int = -1
    device: str = ""
    node: str = ""
    host: str = ""
    cancelled: float | None = None
    killed: str = ""


class _Engine:
    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        devices: Sequence[str],
        report: Report,
        stop: threading.Event,
        waiting: deque[Group],
    ) -> None:
        self.cluster, self.store, self.report, self.stop = cluster, store, report, stop
        self.waiting, self.leases = waiting, Leases(store)
        self.shares = Shares(devices)
        self.flying: dict[int, _Flight] = {}
        self.losses: dict[str, int] = {}
        self.alone: set[str] = set()
        self.told: dict[str, str] = {}
        self.number = 0
        self.reached = time.monotonic()
        self.nodes: list[Node] | None = None
        self.dashboard, self.said, self.shut_out = "", "", ""
        self.asked, self.listened, self.claims_from = 0.0, time.monotonic(), 0.0

    def run(self) -> None:
        self.cluster.open([*self.waiting])
        pause = 1.0
        try:
            while self.flying or (self.waiting and not self.is_stopping):
                try:
                    self._turn()
                    pause = 1.0 if self.nodes is not None else pause
                except ConnectionError as error:
                    self._lose_all(f"{error} ({self.cluster.name})")
                    self._say_once(f"{error}; it is tried for up to {PATIENCE.unreachable:.0f} s")
                    if time.monotonic() - self.reached > PATIENCE.unreachable:
                        raise TrainingsKilled(
                            f"the Ray cluster {self.cluster.name} can't be reached for {PATIENCE.unreachable:.0f} s "
                            f"({error}); finished trainings are in the store, and the next run resumes from there"
                        ) from None
                    self.stop.wait(pause)
                    pause = min(30.0, 2 * pause)
                    self.cluster.open([*self.waiting])
        finally:
            for flight in self.flying.values():
                flight.kept.close()
        if self.shut_out:
            raise EngineError(self.shut_out)

    @property
    def is_stopping(self) -> bool:
        return self.stop.is_set() or bool(self.shut_out)

    def _say_once(self, message: str) -> None:
        if message != self.said:
            self.said = message
            print(message, file=sys.stderr)

    def _turn(self) -> None:
        """Take in what was told, submit what there is room for, look who has to be cancelled."""
        messages = self.cluster.receive(_TICK_SECONDS)
        self.listened = time.monotonic()
        for message in messages:
            if message[0] == "refused":
                self._lose_all("the cluster refused the token")
                raise EngineError(
                    f"the Ray cluster {self.cluster.name} wants the token that its nodes were started with, in "
                    "RAY_AUTH_TOKEN or ~/.ray/auth_token, and RAY_AUTH_MODE=token"
                )
            if message[0] == "lost":
                raise ConnectionError(f"{LOST}: {message[1]}")
            self.reached = time.monotonic()
            if message[0] == "ready":
                _, self.nodes, self.dashboard = message
            elif message[0] == "nodes":
                self.nodes = message[1]
            elif flight := self.flying.get(message[0]):
                flight.heard = time.monotonic()
                number, kind, *payload = message
                getattr(self, f"_on_{kind}")(number, flight, *payload)
        if self.nodes is not None:
            self._submit_more()
            now = time.monotonic()
            for flight in self.flying.values():  # not silent while this process didn't listen, as a store kept it busy
                flight.heard = min(now, flight.heard + now - self.listened)
                flight.stepped = min(now, flight.stepped + now - self.listened)
            self._watch()

    def _submit_more(self) -> None:
        assert self.nodes is not None, "the caller has looked"
        if time.monotonic() < self.claims_from:
            return
        if self.waiting and (lack := self.shares.lack(self.nodes)):
            self._say_once(lack)
        elsewhere = []
        while self.waiting and not self.is_stopping and len(self.flying) < self.shares.room(self.nodes):
            group = self.waiting.popleft()
            if not self._submit(group):
                elsewhere.append(group)
        if elsewhere:
            self.waiting.extend(elsewhere)
            self.claims_from = time.monotonic() + self.store.poll_seconds

    def _submit(self, group: Group) -> bool:
        """Claim a group and submit it; False if another process holds it."""
        if group.is_published(self.store):
            self.report(Event(kind="elsewhere", label=group.label))
            return True
        lease = self.leases.claim(*group.run_keys)
        if lease is None:
            holder = self.leases.holder(*group.run_keys)
            if holder is not None and self.told.get(group.label) != holder.owner:
                self.told[group.label] = holder.owner
                self.report(Event(kind="waiting", label=group.label, message=str(holder), owner=holder.owner))
            return False
        kept = ExitStack()
        lost = kept.enter_context(self.leases.kept_alive(lease))
        self.number += 1
        published = frozenset(key for key in group.run_keys if self.store.has(key))
        is_alone = group.label in self.alone
        flight = _Flight(group, lease, lost, kept, is_alone, time.monotonic())
        self.flying[self.number] = flight
        share, flight.device, threads = self.shares.of(group, self.nodes or [], is_alone=is_alone)
        works = [*group.run_keys, *([stack_id(group.specs)] if group.is_stack else [])]
        names = [f"{work}/{STATE}" for work in works] if isinstance(self.store, RunStore) else []
        states = {name: self.store.scratch.load(name) for name in names}
        ask = TaskRequest(
            label=group.label,
            specs=group.specs,
            is_stack=group.is_stack,
            published=published,
            data=group.data.absolute(),
            device=flight.device,
            threads=threads,
            store=self.store if isinstance(self.store, ObjectStore) else None,
            states={name: content for name, content in states.items() if content is not None},
        )
        self.cluster.send("submit", self.number, ask, share)
        return True

    def _on_placed(self, number: int, flight: _Flight, host: str, pid: int) -> None:
        flight.node, flight.host = host, f"process {pid} on {host}"
        flight.stepped = flight.heard

    def _on_shut_out(self, number: int, flight: _Flight, message: str) -> None:
        """Stop all trainings: every group that Ray places on this node would fail there."""
        self.leases.close(flight.lease, None)
        self.shut_out = (
            f"node {flight.node} can't use the store: {message}; a node has the environment of its `ray start`: export "
            f"the keys on {flight.node}, then `ray stop` and `ray start` there again"
        )

    def _on_started(self, number: int, flight: _Flight, runs: int, device_bytes: int | None) -> None:
        self.shares.learn_device(device_bytes)
        self.report(
            Event(
                kind="started",
                label=flight.group.label,
                runs=runs,
                device=flight.device,
                node=flight.node,
                dashboard=self.dashboard,
            )
        )

    def _on_beat(self, number: int, flight: _Flight, steps: int) -> None:
        if steps != flight.steps:
            flight.longest = max(flight.longest, flight.heard - flight.stepped)
            flight.steps, flight.stepped = steps, flight.heard

    def _on_progress(self, number: int, flight: _Flight, progress: dict[str, Any]) -> None:
        flight.stepped = flight.heard
        self.report(Event(kind="progress", label=flight.group.label, progress=progress))

    def _on_saved(self, number: int, flight: _Flight, name: str, content: bytes) -> None:
        if flight.lost.is_set():
            return
        try:
            self.store.scratch.save(name, content)
        except OSError as error:  # a full disk: it trains on, and a later state may find room
            print(f"{flight.group.label}: its state isn't kept now ({describe_fault(error)})", file=sys.stderr)
        else:
            self.losses.pop(flight.group.label, None)

    def _on_dropped(self, number: int, flight: _Flight, work: str) -> None:
        self.store.scratch.drop(work)

    def _on_trained(self, number: int, flight: _Flight, outcomes: Mapping[str, Mapping[str, bytes]], work: str) -> None:
        label = flight.group.label
        try:
            publish(outcomes, work, flight.lease, self.leases, self.store)
        except LeaseLost as taken_over:
            self.report(Event(kind="elsewhere", label=label, message=str(taken_over)))
        except Exception as error:  # noqa: BLE001  (one run's fault must not hold up the rest; the report tells it)
            self._fail(flight, [*outcomes], *describe_failure(error))
        else:
            self.shares.learn(flight.group, outcomes)
            self.report(Event(kind="finished", label=label))

    def _on_stopped(self, number: int, flight: _Flight, keys: list[str], message: str) -> None:
        if flight.lost.is_set():
            self.report(Event(kind="elsewhere", label=flight.group.label, message="(taken over)"))
        else:
            self.leases.close(flight.lease, "stopped", message, keys)
            self.report(Event(kind="stopped", label=flight.group.label, message=message))

    def _on_failed(self, number: int, flight: _Flight, keys: list[str], end: End, message: str) -> None:
        if end == "memory" and not flight.is_alone:
            self.alone.add(flight.group.label)
            self.leases.close(flight.lease, end, message, keys)
            self.report(Event(kind="memory", label=flight.group.label, message=message))
        else:
            self._fail(flight, keys, end, message)

    def _fail(self, flight: _Flight, keys: Sequence[str], end: End, message: str) -> None:
        self.leases.close(flight.lease, end, message.strip().splitlines()[-1], keys)
        self.report(Event(kind="failed", label=flight.group.label, message=message))

    def _on_ended(self, number: int, flight: _Flight, reason: str) -> None:
        """The task is over: by itself, or with its process."""
        if reason == SHORT_OF_MEMORY:
            self.alone.add(flight.group.label)
        if flight.killed or (reason and flight.cancelled is None):
            self._lose(number, flight, flight.killed or reason)
            return
        if not flight.host:
            self.leases.close(flight.lease, None)  # it never began
        self._land(number, flight)
        if flight.lost.is_set() or (flight.group.label in self.alone and not flight.is_alone):
            self.waiting.appendleft(flight.group)

    def _lose(self, number: int, flight: _Flight, reason: str) -> None:
        group, where = flight.group, f", {flight.host}" if flight.host else ""
        if group.is_published(self.store):  # it had told all
            self._land(number, flight)
            return
        self.leases.close(flight.lease, "lost" if flight.host else None, f"{reason}{where}")
        self._land(number, flight)
        self.losses[group.label] = self.losses.get(group.label, 0) + 1
        if self.losses[group.label] >= _MOST_LOSSES:
            message = f"lost {_MOST_LOSSES} times without a new state in between, the last time because {reason}{where}"
            self.report(Event(kind="failed", label=group.label, message=message))
        else:
            self.report(Event(kind="lost", label=group.label, message=f"{reason}{where}"))
            self.waiting.appendleft(group)

    def _lose_all(self, reason: str) -> None:
        for number, flight in [*self.flying.items()]:
            self.losses.pop(flight.group.label, None)  # no fault of the group
            self._lose(number, flight, reason)
        self.nodes = None

    def _land(self, number: int, flight: _Flight) -> None:
        del self.flying[number]
        flight.kept.close()

    def _watch(self) -> None:
        now = time.monotonic()
        if now - self.asked > 5.0:
            self.asked = now
            self.cluster.send("nodes")
        for number, flight in [*self.flying.items()]:
            if (self.is_stopping or flight.lost.is_set()) and flight.cancelled is None:
                flight.cancelled = now
                self.cluster.send("cancel", number, False)
            if flight.killed or not flight.host:
                continue
            if flight.cancelled is not None and now - flight.cancelled > PATIENCE.stopping:
                self._kill(number, flight, f"it didn't stop within {PATIENCE.stopping:.0f} s")
            elif now - flight.heard > PATIENCE.silent:
                self._kill(number, flight, f"no sign of life for {PATIENCE.silent:.0f} s")
            elif now - flight.stepped > (limit := max(PATIENCE.stuck, 20 * flight.longest)):
                self._kill(number, flight, f"it took no step for {limit:.0f} s")

    def _kill(self, number: int, flight: _Flight, reason: str) -> None:
        flight.killed = reason
        self.cluster.send("cancel", number, True)
