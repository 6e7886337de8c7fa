"""Leases on runs, in one SQLite file: who trains what, and who may publish.  The runs of a group are leased together.

A lease is taken over when its owner gives it up, has not been heard of for `EXPIRY_SECONDS`, or is a dead process that
this process would see if it were alive: one of the same boot and namespace of process ids.  For owners in other
containers, whatever their host name, only time decides.  Each take-over raises the run's token; publishing requires the
file's write lock and the newest tokens (fencing), so a process that wakes up late can't publish over its successor.
Tokens are times, so that they grow even after a damaged file was replaced.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from stages.faults import named

EXPIRY_SECONDS = 60.0
_HEARTBEAT_SECONDS = 10.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS run_leases (
    run_key TEXT PRIMARY KEY,
    owner TEXT,
    token INTEGER NOT NULL,
    heartbeat REAL NOT NULL,
    since REAL
)
"""


class LeaseLost(RuntimeError):
    """Another process has taken over a run; this one must discard its outcome."""


@dataclass(frozen=True)
class Lease:
    """The right to train some runs, as `(run key, token)` pairs, for as long as all tokens are the newest."""

    tokens: tuple[tuple[str, int], ...]

    @property
    def name(self) -> str:
        more = f" and {len(self.tokens) - 1} more" if len(self.tokens) > 1 else ""
        return f"{self.tokens[0][0][:12]}{more}"


@dataclass(frozen=True)
class Holder:
    """Who is training a run, and since when (seconds since 1970; None in files of older versions)."""

    owner: str
    since: float | None

    def __str__(self) -> str:
        host, pid = self.owner.split(":")[0], self.owner.rsplit(":", 2)[-2]
        began = f" since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.since))}" if self.since else ""
        return f"process {pid} on {host}{began}"


def process_identity(pid: int) -> str:
    """`host:boot:namespace:pid:start time`: identifies one process among containers, even after its pid is reused."""
    return f"{_scope()}:{pid}:{_start_time(pid)}"


@cache
def _scope() -> str:
    """Host, boot and namespace of process ids: where a pid can be looked up.

    Two containers may share a host name; their namespaces differ.
    """
    return f"{socket.gethostname()}:{_read('/proc/sys/kernel/random/boot_id')[:8]}:{_namespace()}"


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return ""


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """In ticks since boot, which no clock that is set changes; psutil tells it by the clock."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def _is_running(identity: str) -> bool:
    _, pid, start_time = identity.rsplit(":", 2)
    return start_time != "" and process_identity(int(pid)) == identity


def _is_dead(owner: str) -> bool:
    """True if `owner` is a process of this boot and namespace that is gone; about others nothing is known."""
    return owner.rsplit(":", 2)[0] == _scope() and os.path.isdir("/proc/self") and not _is_running(owner)


class LeaseTable:
    """Leases of one run store, on behalf of one owner (this process unless said otherwise)."""

    def __init__(self, path: Path, owner: str | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.owner = owner or process_identity(os.getpid())
        try:
            self._create()
        except sqlite3.OperationalError:
            raise  # locked, read-only or a full disk: the file is whole
        except sqlite3.DatabaseError as error:
            self._set_aside(str(error))
            self._create()

    def _create(self) -> None:
        with self._transaction() as connection:
            connection.execute(_SCHEMA)
            if "since" not in {row[1] for row in connection.execute("PRAGMA table_info(run_leases)")}:
                connection.execute("ALTER TABLE run_leases ADD COLUMN since REAL")
            (state,) = connection.execute("PRAGMA quick_check").fetchone()
            if state != "ok":
                raise sqlite3.DatabaseError(state)

    def _set_aside(self, reason: str) -> None:
        """Set a damaged file aside; whoever is training under it finds its lease gone and continues under a new one."""
        with self.path.with_name(f"{self.path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                self._create()  # another process was here first
            except sqlite3.DatabaseError:
                aside = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
                os.replace(self.path, aside)
                print(f"{self.path} is damaged ({reason}); it is now {aside.name}, leases start anew", file=sys.stderr)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with named(self.path), closing(sqlite3.connect(self.path, timeout=30.0, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

    def claim(self, *run_keys: str) -> Lease | None:
        """The lease if all runs are free, their owners dead or their heartbeats too old; None if one is in training."""
        now = time.time()
        with self._transaction() as connection:
            tokens = []
            for run_key in run_keys:
                row = connection.execute(
                    "SELECT owner, token, heartbeat FROM run_leases WHERE run_key = ?", (run_key,)
                ).fetchone()
                owner, token, heartbeat = row or (None, 0, 0.0)
                # a heartbeat from the future is a clock set back, or another's that is ahead: no sign of life
                if owner is not None and abs(now - heartbeat) < EXPIRY_SECONDS and not _is_dead(owner):
                    return None
                tokens.append((run_key, max(token + 1, time.time_ns())))
            connection.executemany(
                "INSERT INTO run_leases (run_key, owner, token, heartbeat, since) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (run_key) DO UPDATE SET owner = excluded.owner, token = excluded.token,"
                " heartbeat = excluded.heartbeat, since = excluded.since",
                [(run_key, self.owner, token, now, now) for run_key, token in tokens],
            )
        return Lease(tuple(tokens))

    def holder(self, *run_keys: str) -> Holder | None:
        """The holder of the first of these runs that has one; None if all are free."""
        with self._transaction() as connection:
            for run_key in run_keys:
                row = connection.execute(
                    "SELECT owner, since FROM run_leases WHERE run_key = ? AND owner IS NOT NULL", (run_key,)
                ).fetchone()
                if row is not None:
                    return Holder(*row)
        return None

    @contextmanager
    def held(self, lease: Lease) -> Iterator[None]:
        """Keep anybody from taking over a run inside this block.

        Raises:
            LeaseLost: somebody already has taken one over.
        """
        with self._transaction() as connection:
            for run_key, token in lease.tokens:
                row = connection.execute("SELECT token FROM run_leases WHERE run_key = ?", (run_key,)).fetchone()
                if row is None or row[0] != token:
                    raise LeaseLost(f"run {run_key[:12]} was taken over while it trained; its outcome is dropped")
            yield

    def _renew(self, lease: Lease) -> bool:
        with self._transaction() as connection:
            now = time.time()
            renewed = connection.executemany(
                "UPDATE run_leases SET heartbeat = ? WHERE run_key = ? AND token = ?",
                [(now, run_key, token) for run_key, token in lease.tokens],
            )
            return renewed.rowcount == len(lease.tokens)

    def release(self, lease: Lease) -> None:
        """Give the runs back; the tokens stay, so that they only grow."""
        with self._transaction() as connection:
            connection.executemany("UPDATE run_leases SET owner = NULL WHERE run_key = ? AND token = ?", lease.tokens)

    @contextmanager
    def kept_alive(self, lease: Lease) -> Iterator[threading.Event]:
        """Renew the heartbeat from a thread for as long as the block lasts, then release the lease.

        Yields an event that is set when another process has taken over a run.
        """
        finished, lost = threading.Event(), threading.Event()

        def beat() -> None:
            while not finished.wait(_HEARTBEAT_SECONDS):
                try:
                    if not self._renew(lease):
                        lost.set()
                except sqlite3.Error as error:  # a full disk, say: the next beat may succeed before the lease expires
                    print(f"lease of {lease.name}: can't be renewed now ({error})", file=sys.stderr)

        thread = threading.Thread(target=beat, name="lease-heartbeat", daemon=True)
        thread.start()
        try:
            yield lost
        finally:
            finished.set()
            thread.join()
            self.release(lease)
