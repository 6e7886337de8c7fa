"""Leases on groups of runs, in one SQLite file: who trains what, and who may publish.

A lease is taken over when its owner says so, has not been heard of for `EXPIRY_SECONDS`, or is a dead process of this
machine.  Each take-over raises the group's token; a publication is made while holding the file's write lock and only
with the newest token (fencing), so a process that wakes up late can't publish over its successor.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

EXPIRY_SECONDS = 60.0
_HEARTBEAT_SECONDS = 10.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS leases (
    group_id TEXT PRIMARY KEY,
    owner TEXT,
    token INTEGER NOT NULL,
    heartbeat REAL NOT NULL
)
"""


class LeaseLost(RuntimeError):
    """Another process has taken the group over; this one must drop its outcome."""


@dataclass(frozen=True)
class Lease:
    """The right to train `group_id`, as long as `token` is the newest."""

    group_id: str
    token: int


def process_identity(pid: int) -> str:
    """`host:pid:start time`: names one process even after its number has been used again."""
    return f"{socket.gethostname()}:{pid}:{_start_time(pid)}"


def _start_time(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def is_running(identity: str) -> bool:
    """Whether a process of this machine still lives under its identity (read from /proc)."""
    _, pid, start_time = identity.rsplit(":", 2)
    return start_time != "" and process_identity(int(pid)) == identity


def _is_dead(owner: str) -> bool:
    """Whether `owner` is a process of this machine that is gone; without /proc nobody can tell."""
    host = owner.rsplit(":", 2)[0]
    return host == socket.gethostname() and os.path.isdir("/proc/self") and not is_running(owner)


class LeaseTable:
    """Leases of one run store, on behalf of one owner (this process unless said otherwise)."""

    def __init__(self, path: Path, owner: str | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.owner = owner or process_identity(os.getpid())
        with self._transaction() as connection:
            connection.execute(_SCHEMA)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.path, timeout=30.0, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")
        finally:
            connection.close()

    def claim(self, group_id: str) -> Lease | None:
        """The lease if the group is free, its owner is dead or its heartbeat too old; None while someone trains it."""
        now = time.time()
        with self._transaction() as connection:
            row = connection.execute(
                "SELECT owner, token, heartbeat FROM leases WHERE group_id = ?", (group_id,)
            ).fetchone()
            owner, token, heartbeat = row or (None, 0, 0.0)
            if owner is not None and now - heartbeat < EXPIRY_SECONDS and not _is_dead(owner):
                return None
            connection.execute(
                "INSERT INTO leases VALUES (?, ?, ?, ?) ON CONFLICT (group_id) DO UPDATE SET"
                " owner = excluded.owner, token = excluded.token, heartbeat = excluded.heartbeat",
                (group_id, self.owner, token + 1, now),
            )
        return Lease(group_id, token + 1)

    @contextmanager
    def held(self, lease: Lease) -> Iterator[None]:
        """Nobody can take the group over inside this block.

        Raises:
            LeaseLost: somebody already has.
        """
        with self._transaction() as connection:
            row = connection.execute("SELECT token FROM leases WHERE group_id = ?", (lease.group_id,)).fetchone()
            if row is None or row[0] != lease.token:
                raise LeaseLost(f"group {lease.group_id[:12]} was taken over while it trained; its outcome is dropped")
            yield

    def _renew(self, lease: Lease) -> bool:
        with self._transaction() as connection:
            renewed = connection.execute(
                "UPDATE leases SET heartbeat = ? WHERE group_id = ? AND token = ?",
                (time.time(), lease.group_id, lease.token),
            )
            return renewed.rowcount == 1

    def release(self, lease: Lease) -> None:
        """Give the group back; the token stays, so that it only ever grows."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE leases SET owner = NULL WHERE group_id = ? AND token = ?", (lease.group_id, lease.token)
            )

    @contextmanager
    def kept_alive(self, lease: Lease) -> Iterator[threading.Event]:
        """Renews the heartbeat from a thread for as long as the block lasts, then releases the lease.

        Gives an event that is set when another process has taken the group over.
        """
        finished, lost = threading.Event(), threading.Event()

        def beat() -> None:
            while not finished.wait(_HEARTBEAT_SECONDS):
                try:
                    if not self._renew(lease):
                        lost.set()
                except sqlite3.Error as error:  # a full disk, say: the next beat may succeed before the lease expires
                    print(f"lease of {lease.group_id[:12]}: can't be renewed now ({error})", file=sys.stderr)

        thread = threading.Thread(target=beat, name="lease-heartbeat", daemon=True)
        thread.start()
        try:
            yield lost
        finally:
            finished.set()
            thread.join()
            self.release(lease)
