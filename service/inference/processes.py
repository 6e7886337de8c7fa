"""Processes that work for the server and may be lost: each is asked one thing at a time, within a time.

They are forked from one process that has loaded what they need, so that a new one is there at once.
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
    """The process has ended, although nobody asked it to, or takes too long and was killed."""

    was_killed = False
    """True if somebody ended it by SIGKILL: what it was asked had no part in that."""


class ProcessSlow(ProcessGone):
    """It takes too long and was killed; `processor_seconds` as the process had them then."""

    def __init__(self, message: str, processor_seconds: float | None) -> None:
        super().__init__(message)
        self.processor_seconds = processor_seconds


class Process:
    """A process that calls `target` with a connection and `arguments`; asked by one thread at a time.

    `start` it before, `stop` it after.  `target` answers each question within `seconds`, until the connection is
    closed.
    """

    def __init__(self, name: str, target: Callable[..., None], *arguments: object, seconds: float) -> None:
        self.name, self._target, self._arguments, self.seconds = name, target, arguments, seconds
        self.restarts = 0
        self._connection: Connection | None = None
        self._process: ForkServerProcess | None = None
        self._limit: float | None = None  # seconds that reading and writing wait at most
        self._is_stopped = False
        self._changing = threading.Lock()

    def start(self) -> None:
        """Start it; once it is stopped it stays so.

        Raises:
            OSError: the system gives no process, or none of its memory or descriptors.
        """
        with self._changing:
            if self._is_stopped:
                return
            load_ahead()
            context = multiprocessing.get_context("forkserver")
            connection, theirs = context.Pipe()
            process = context.Process(target=self._target, args=(theirs, *self._arguments), name=self.name, daemon=True)
            try:
                process.start()
            except EOFError:  # the process that all are forked from ended just now
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
        """Let it end; it is killed if it is still at work `_END_SECONDS` later."""
        with self._changing:
            self._is_stopped = True
            self._end(_END_SECONDS)

    def restart(self) -> None:
        """A new process in place of one that is lost; what was left of the old one is killed.

        Raises:
            OSError: as `start`.
        """
        with self._changing:
            self._end(0)
            self.restarts += 1
        self.start()

    @property
    def is_alive(self) -> bool:
        """True if it runs: it has neither ended nor been stopped by a signal."""
        return self._process is not None and self._process.is_alive() and not self.is_stopped

    def _statistics(self) -> list[str]:
        """The fields of `/proc/<pid>/stat` from its state on; none where the system doesn't tell, or it is gone."""
        try:
            line = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return []
        return line.rpartition(")")[2].split()

    @property
    def is_stopped(self) -> bool:
        """True if a signal has stopped it (SIGSTOP)."""
        return self._statistics()[:1] == ["T"]

    @property
    def processor_seconds(self) -> float | None:
        """What it has computed so far; None where the system doesn't tell, or it is gone."""
        fields = self._statistics()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") if fields else None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def ask(self, question: object, seconds: float | None = None) -> Any:
        """The answer to `question`, within `seconds` where they are fewer than its own.

        Raises:
            ProcessSlow: there is none in time; the process is killed.
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
            pass  # it has stopped reading or writing
        except (EOFError, OSError):
            process.join(_END_SECONDS)
            gone = ProcessGone(f"the {self.name} process ended")
            gone.was_killed = process.exitcode == -signal.SIGKILL
            raise gone from None
        slow = ProcessSlow(f"the {self.name} process hasn't answered for {seconds:g} s", self.processor_seconds)
        process.kill()
        raise slow

    def _limit_waiting(self, connection: Connection, seconds: float) -> None:
        """Reading and writing fail where the other side stands still for so long: the kernel watches the time."""
        whole, part = divmod(max(seconds, 1e-6), 1.0)  # 0 would be without end
        limit = struct.pack("@ll", int(whole), int(part * 1e6))
        own = socket.socket(fileno=connection.fileno())
        try:
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                own.setsockopt(socket.SOL_SOCKET, option, limit)
        finally:
            own.detach()  # it stays the connection's
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
        process.join()


def load_ahead() -> None:
    """Begin to load what the processes need, once, in the one that all are forked from; returns at once.

    Signals that end a whole group of processes are kept from that one too, so that requests under way are finished.
    """
    resource_tracker.ensure_running()  # its own start would unblock these signals again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SERVERS_SIGNALS)
    try:
        forkserver.set_forkserver_preload(list(PRELOADED))
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_signals_to_the_server() -> None:
    """It closes the connection when it has finished."""
    for number in SERVERS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
