"""A random fault during `claimcheck run`, and what must hold after the command has ended."""

import random
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from stages.runs.object_store import ObjectStore
from stages.runs.store import STATE, RunStore, Store
from stages.scheduling.leases import Leases
from tests.cluster.nodes import Nodes, kill_session, name_of
from tests.cluster.runs import outcomes_in, start_command
from tests.object_server import BUCKET, ObjectServer
from tests.polling import wait_until
from tests.project import EXPERIMENT

GONE = "its process is gone"
PARENT = "the process that started its slot was killed"
UNCONNECTED = "the connection to the cluster is lost"
# (engine, fault): reasons for which attempts may be lost.
KINDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("local", "slot"): (GONE,),
    ("ray", "task"): ("its process was killed",),
    ("local", "parent"): (GONE, PARENT),
    ("ray", "node"): ("its node is gone", "its process was killed", UNCONNECTED),
    ("local", "store away"): (),
    ("ray", "engine"): (GONE,),
    ("local", "everything"): (GONE,),
    ("ray", "store away"): (),
    ("ray", "bridge"): (UNCONNECTED,),
    ("ray", "head"): (UNCONNECTED,),
}
MAY_END_THE_COMMAND = ("slot", "parent", "engine", "everything")
AT_THE_START = 0.25
"""Share of faults at any time after the start, which is mostly imports; the others come during training."""


@dataclass
class Mishap:
    """The fault of a seed."""

    seed: int
    project: Path
    nodes: Nodes
    server: ObjectServer
    store: Store = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.engine, self.what = list(KINDS)[self.seed % len(KINDS)]
        if self.what == "store away" or self.random.random() < 0.5:
            url = f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}"
            self.environment = self.server.environment | {"CLAIMCHECK_STORE": url}
            self.store = ObjectStore(url, self.project / "read")
        else:
            self.environment = {}
            self.store = RunStore(self.project / "data" / "store")

    def suffer(self) -> None:
        """Start the command, apply the fault, and restart until everything is trained."""
        process = self._start()
        if self.random.random() < AT_THE_START:
            self._sleep(process, self.random.uniform(0.0, 6.0))
        else:
            wait_until(lambda: process.poll() is not None or any(self._works()))
            self._sleep(process, self.random.uniform(0.0, 1.0))
        is_struck, again = self._strike(process), 0
        while process.wait(timeout=300):
            assert is_struck and self.what in MAY_END_THE_COMMAND, self.output()
            assert process.returncode in (-signal.SIGKILL, 1), self.output()
            again += 1
            assert again < 4, self.output()
            process = self._start()
        assert "Traceback" not in self.output(), self.output()

    def _start(self) -> subprocess.Popen[bytes]:
        devices = "cpu,cpu" if self.engine == "local" else "cpu"
        options = [EXPERIMENT, "--engine", self.engine, "--device", devices]
        return start_command(self.project, self.nodes, options, self.environment)

    def _works(self) -> list[str]:
        """Return the runs with a saved state."""
        scratch = self.store.scratch
        return [work for work in scratch.list_works() if scratch.holds(f"{work}/{STATE}")]

    def _sleep(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)

    def _strike(self, process: subprocess.Popen[bytes]) -> bool:
        """Apply the fault; return False if there was no target."""
        if process.poll() is not None:
            return False
        return bool(getattr(self, f"_{self.what.replace(' ', '_')}")(process))

    def _slot(self, process: subprocess.Popen[bytes]) -> bool:
        return self._kill_one(lambda: slots_of(process), process)

    def _task(self, process: subprocess.Popen[bytes]) -> bool:
        return self._kill_one(self.nodes.trainings, process)

    def _bridge(self, process: subprocess.Popen[bytes]) -> bool:
        return self._kill_one(lambda: children_called("spawn_main", process.pid), process)

    def _parent(self, process: subprocess.Popen[bytes]) -> bool:
        process.kill()
        self._see_all_ended(process)
        return True

    _engine = _parent

    def _everything(self, process: subprocess.Popen[bytes]) -> bool:
        kill_session(process.pid)
        self._see_all_ended(process)
        return True

    def _see_all_ended(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        wait_until(lambda: not self.left_running(), 60)

    def _node(self, process: subprocess.Popen[bytes]) -> bool:
        self.nodes.kill(self.random.choice(self.nodes.workers))
        self.nodes.add(1)
        return True

    def _head(self, process: subprocess.Popen[bytes]) -> bool:
        self.nodes.restart(workers=2)
        return True

    def _store_away(self, process: subprocess.Popen[bytes]) -> bool:
        self.server.down()
        time.sleep(self.random.uniform(1.0, 8.0))
        self.server.up()
        return True

    def _kill_one(self, find: Callable[[], list[psutil.Process]], process: subprocess.Popen[bytes]) -> bool:
        wait_until(lambda: process.poll() is not None or find())
        found = find()
        if not found:
            return False
        try:
            self.random.choice(found).kill()
        except psutil.NoSuchProcess:
            return False
        return True

    def left_running(self) -> list[str]:
        """List the command's processes: those working in the project, and tasks on nodes."""
        here = [process for process in psutil.process_iter() if cwd_of(process) == str(self.project.resolve())]
        return [name_of(process) for process in [*here, *self.nodes.trainings()]]

    def output(self) -> str:
        return (self.project / "output").read_text(encoding="utf-8")

    def check(self, undisturbed: dict[str, tuple[bytes, bytes]]) -> None:
        """Check that results exist once and equal the undisturbed ones, attempts have reasons, and nothing is left."""
        assert outcomes_in(self.store) == undisturbed, self.output()
        leases = Leases(self.store)
        for run_key in undisturbed:
            *before, last = leases.attempts(run_key)
            assert last.end == "published", self.output()
            for one in before:
                assert one.end == "lost" and one.reason.startswith(KINDS[self.engine, self.what]), (one, self.output())
        wait_until(lambda: not self.left_running(), 30)
        assert not self._works()


def slots_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """List the processes that train for a command on this machine, forked from the preloaded one."""
    return [slot for server in children_called("forkserver", process.pid) for slot in children_called("", server.pid)]


def children_called(name: str, pid: int) -> list[psutil.Process]:
    try:
        return [child for child in psutil.Process(pid).children() if name in name_of(child)]
    except psutil.NoSuchProcess:
        return []


def cwd_of(process: psutil.Process) -> str:
    try:
        return process.cwd()
    except psutil.Error:
        return ""
