"""Worker processes that may crash: each handles one request at a time, within a time limit.

They are forked from one preloaded process, so that a replacement starts at once.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

PRELOADED = ("service.inference.predictors", "stages.images")
SERVERS_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_END_SECONDS = 1.0


class ProcessGone(RuntimeError):
    """The process ended unexpectedly, or was killed because it took too long."""

    was_killed = False
    """True if SIGKILL ended it, which its request can't have caused."""


class ProcessSlow(ProcessGone):
    """The process was killed because it took too long, after `processor_seconds` of CPU time."""

    def __init__(self, message: str, processor_seconds: float | None) -> None:
        super().__init__(message)
        self.processor_seconds = processor_seconds


class Process:
    """A process that calls `target` with a connection and `arguments`; for one thread at a time.

    Call `start` before use and `stop` after.  `target` answers each request within `seconds`, until the connection is
    closed.
    """

    def __init__(self, name: str, target: Callable[..., None], *arguments: object, seconds: float) -> None:
        self.name, self._target, self._arguments, self.seconds = name, target, arguments, seconds
        self.restarts = 0
        self._connection: Connection | None = None
        self._process: ForkServerProcess | None = None
        self._limit: float | None = None  # timeout of reads and writes, in seconds
        self._is_stopped = False
        self._changing = threading.Lock()

    def start(self) -> None:
        """Start the process, unless it was stopped before.

        Raises:
            OSError: the system has no processes, memory or descriptors left.
        """
        with self._changing:
            if self._is_stopped:
                return
            server: int | None = getattr(forkserver._forkserver, "_forkserver_pid", None)
            if server is not None and _statistics(server)[:1] == ["T"]:  # stopped by SIGSTOP, so it would never answer
                os.kill(server, signal.SIGKILL)
                os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
            load_ahead()
            context = multiprocessing.get_context("forkserver")
            connection, theirs = context.Pipe()
            process = context.Process(target=self._target, args=(theirs, *self._arguments), name=self.name, daemon=True)
            try:
                process.start()
            except EOFError:  # the preloaded process has just ended
                connection.close()
                raise OSError(f"no {self.name} process can be started") from None
            except BaseException:
                connection.close()
                raise
            finally:
                theirs.close()
            self._limit_waiting(connection, self.seconds)
            self._connection, self._process = connection, process
            atexit.register(self.stop)  # in case the server ends without its shutdown

    def stop(self) -> None:
        """Stop the process; kill it if it is still running after `_END_SECONDS`."""
        with self._changing:
            self._is_stopped = True
            self._end(_END_SECONDS)

    def restart(self) -> None:
        """Replace a lost process, and kill the old one if it still exists.

        Raises:
            OSError: as `start`.
        """
        with self._changing:
            self._end(0)
            self.restarts += 1
        self.start()

    @property
    def is_alive(self) -> bool:
        """Return True if the process is running, neither ended nor suspended by a signal.

        The preloaded process doesn't report ends while it is suspended.
        """
        is_running = self._process is not None and self._process.is_alive()
        return is_running and _statistics(self.pid)[:1] not in (["T"], ["Z"])

    @property
    def processor_seconds(self) -> float | None:
        """Return the CPU seconds used so far; None if unavailable or the process is gone."""
        fields = _statistics(self.pid)
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") if fields else None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def ask(self, question: object, seconds: float | None = None) -> Any:
        """Return the answer to `question`, within `seconds` if that is less than the process's own limit.

        Raises:
            ProcessSlow: there was no answer in time, and the process was killed.
            ProcessGone: the process has ended.
        """
        connection, process = self._connection, self._process
        if connection is None or process is None:
            raise ProcessGone(f"no {self.name} process is running")
        seconds = self.seconds if seconds is None else min(self.seconds, seconds)
        try:
            if seconds != self._limit:
                self._limit_waiting(connection, seconds)
            connection.send(question)
            return connection.recv()
        except BlockingIOError:
            pass  # the process has stopped reading or writing
        except (EOFError, OSError):
            process.join(_END_SECONDS)
            gone = ProcessGone(f"the {self.name} process ended")
            gone.was_killed = process.exitcode == -signal.SIGKILL
            raise gone from None
        slow = ProcessSlow(f"the {self.name} process hasn't answered for {seconds:g} s", self.processor_seconds)
        process.kill()
        raise slow

    def _limit_waiting(self, connection: Connection, seconds: float) -> None:
        """Set SO_RCVTIMEO and SO_SNDTIMEO, so that the kernel ends reads and writes that take too long."""
        whole, part = divmod(max(seconds, 1e-6), 1.0)  # 0 would mean no limit
        limit = struct.pack("@ll", int(whole), int(part * 1e6))
        own = socket.socket(fileno=connection.fileno())
        try:
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                own.setsockopt(socket.SOL_SOCKET, option, limit)
        finally:
            own.detach()  # the connection keeps it open
        self._limit = seconds

    def _end(self, seconds: float) -> None:
        atexit.unregister(self.stop)
        connection, process, self._connection = self._connection, self._process, None
        if connection is None or process is None:
            return
        connection.close()
        if seconds:
            process.join(seconds)
        if process.is_alive():
            process.kill()
        process.join(_END_SECONDS)


def _statistics(pid: int | None) -> list[str]:
    """Return the fields of `/proc/<pid>/stat` from the state on; empty if unavailable or the process is gone."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return line.rpartition(")")[2].split()


def load_ahead() -> None:
    """Start preloading in the process that all others are forked from; returns at once.

    That process ignores signals to the whole process group, too, so that running requests are finished.
    """
    resource_tracker.ensure_running()  # a normal start would unblock these signals again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SERVERS_SIGNALS)
    try:
        forkserver.set_forkserver_preload(list(PRELOADED))
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_signals_to_the_server() -> None:
    """Return a function that closes the connection when it has finished."""
    for number in SERVERS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
