"""A local Ray cluster in which each node is a process group, so that killing the group loses the node."""

import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from tests.polling import wait_until

RAY = Path(sys.executable).parent / "ray"
STORE_BYTES = 80_000_000
TASK = re.compile(r"ray::tiny-")
AGENTS = ("dashboard-agent-grpc-port", "dashboard-agent-listen-port", "metrics-export-port", "runtime-env-agent-port")
ALONE = ("--include-dashboard=false", "--no-monitor")
HOST = "127.0.0.2"
"""Ray would replace 127.0.0.1 by the machine's own address."""


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind((HOST, 0))
        port: int = bound.getsockname()[1]
        return port


class Nodes:
    """A head that doesn't train, and nodes with one processor each, local only, with a token.

    `hidden` folders are empty on the nodes, as on machines without a shared file system.
    """

    def __init__(self, environment: dict[str, str], hidden: Sequence[Path] = ()) -> None:
        self.hidden = hidden
        self.port = free_port()
        self.address = f"{HOST}:{self.port}"
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        self.cache = self.folder / "cache"
        self.environment = environment | {
            "RAY_ADDRESS": self.address,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_raylet_start_wait_time_s": "90",
            "RAY_agent_register_timeout_ms": "120000",
            "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
            "RAY_USAGE_STATS_ENABLED": "0",
            "XDG_CACHE_HOME": str(self.cache),
            # start workers only for tasks, and never pause one because the machine is busy
            "RAY_prestart_worker_first_driver": "0",
            "RAY_worker_niceness": "0",
        }
        self.head: subprocess.Popen[bytes] | None = None
        self.workers: list[subprocess.Popen[bytes]] = []
        self.commands: list[subprocess.Popen[bytes]] = []
        self._log_of: dict[int, Path] = {}
        self._all: list[subprocess.Popen[bytes]] = []

    def start(self, workers: int) -> None:
        """Start the head, then all nodes at once."""
        self.head = self._start(["--head", f"--port={self.port}", "--num-cpus=0", *ALONE])
        self.add(workers)

    def add(self, workers: int, *resources: str, sees_all: bool = False) -> None:
        """Start that many more nodes at once, with one processor each unless `resources` says otherwise."""
        hidden = () if sees_all else self.hidden
        options = [f"--address={self.address}", *(resources or ("--num-cpus=1",))]
        with ThreadPoolExecutor() as pool:
            self.workers += pool.map(lambda _: self._start(options, hidden), range(workers))

    def _start(self, options: list[str], hidden: Sequence[Path] = ()) -> subprocess.Popen[bytes]:
        """Start a node and wait for it; its agents have 15 s, which a busy machine may exceed."""
        for _ in range(5):
            node = self._begin(options, hidden)
            self._all.append(node)
            wait_until(lambda node=node: node.poll() is not None or b"Ray runtime started" in self._log(node))
            if node.poll() is None:
                return node
        raise AssertionError(f"no node starts here: {self._log(node).decode()[-2000:]}")

    def _begin(self, options: list[str], hidden: Sequence[Path]) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environment["PYTHONPATH"] = without_grammar(self.folder)
        shared = {name: value for name, value in self.environment.items() if name != "RAY_ADDRESS"}
        covered = "".join(f"mount -t tmpfs none {shlex.quote(str(folder))} && " for folder in hidden)
        apart = ["unshare", "--mount", "sh", "-c", f'{covered}exec "$0" "$@"'] if hidden else []
        with tempfile.NamedTemporaryFile(prefix="node-", suffix=".log", dir=self.folder, delete=False) as log:
            node = subprocess.Popen(
                [
                    *apart,
                    *(RAY, "start", "--block", f"--node-ip-address={HOST}", "--disable-usage-stats"),
                    # separate temporary folders, because nodes that start at once would use the same socket name
                    f"--temp-dir={tempfile.mkdtemp(dir=self.folder)}",
                    "--include-log-monitor=false",
                    *(f"--object-store-memory={STORE_BYTES}", *(f"--{name}={free_port()}" for name in AGENTS)),
                    *options,
                ],
                env=environment | shared | {"OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._log_of[node.pid] = Path(log.name)
        return node

    def _log(self, node: subprocess.Popen[bytes]) -> bytes:
        return self._log_of[node.pid].read_bytes()

    def kill(self, node: subprocess.Popen[bytes]) -> None:
        """Kill a node's processes with SIGKILL."""
        kill_session(node.pid)
        node.wait()
        if node in self.workers:
            self.workers.remove(node)

    def restart(self, workers: int) -> None:
        """Kill the head, after which its nodes exit, and start it again at the same address."""
        assert self.head is not None, "the head runs"
        self.kill(self.head)
        for node in self.workers:
            node.wait(60)
        self.workers.clear()
        self.start(workers)

    def end_commands(self) -> None:
        """Stop commands left by a failed test, including their tasks."""
        while self.commands:
            kill_session(self.commands.pop().pid)
        wait_until(lambda: not self.trainings(), 60)

    def close(self) -> None:
        for node in self._all:
            self.kill(node)
        shutil.rmtree(self.folder, ignore_errors=True)

    def trainings(self) -> list[psutil.Process]:
        """List the node processes that run a task, recognised by the name that Ray gives them."""
        found = of_sessions({node.pid for node in self.workers})
        return [process for process in found if TASK.match(name_of(process))]

    def training_node(self) -> subprocess.Popen[bytes]:
        """Return a node that runs a task."""
        sessions = {os.getsid(process.pid) for process in self.trainings()}
        return next(node for node in self.workers if node.pid in sessions)


def without_grammar(folder: Path) -> str:
    """Return a PYTHONPATH that hides an optional package from Ray's processes.

    jsonschema, which all of them import, would compile the package's grammar for a second, and Ray kills a node whose
    agents need 15 s to start.
    """
    (folder / "rfc3987_syntax.py").write_text("raise ImportError\n", encoding="utf-8")
    return str(folder)


def of_sessions(sessions: set[int]) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) in sessions:
                found.append(process)
        except (OSError, psutil.Error):
            continue
    return found


def name_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def kill_session(leader: int) -> None:
    for process in of_sessions({leader}):
        try:
            process.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
