"""Leases of the store in a folder, in one SQLite file.  The runs of a group are leased together.

A lease is taken over when its owner gives it up, has not been heard of for `EXPIRY_SECONDS`, or is a dead process that
this process would see if it were alive: one of the same boot and namespace of process ids.  For owners in other
containers, whatever their host name, only time decides.  Publishing requires the file's write lock and the newest
tokens.  Tokens are times, so that they grow even after a damaged file was replaced.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from pathlib import Path

from stages.faults import named
from stages.runs.store import RunStore
from stages.scheduling.engine.leases import (
    EXPIRY_SECONDS,
    HEARTBEAT_SECONDS,
    Attempt,
    End,
    Holder,
    Lease,
    LeaseLost,
    heartbeat,
    is_gone,
    process_identity,
)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS run_leases (
    run_key TEXT PRIMARY KEY,
    owner TEXT,
    token INTEGER NOT NULL,
    heartbeat REAL NOT NULL,
    since REAL
)
"""
_ATTEMPTS = """
CREATE TABLE IF NOT EXISTS attempts (
    run_key TEXT,
    token INTEGER,
    owner TEXT NOT NULL,
    began REAL NOT NULL,
    ended REAL,
    outcome TEXT,
    reason TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (run_key, token)
)
"""


def _why_gone(owner: str, silent_seconds: float) -> str | None:
    """Why a run may be taken over from `owner`; None if it may not."""
    if is_gone(owner):
        return "its process is gone"
    # a heartbeat from the future is a clock set back, or another's that is ahead: no sign of life
    silent = abs(silent_seconds)
    return f"was not heard of for {silent:.0f} s" if silent >= EXPIRY_SECONDS else None


class LeaseTable:
    """Leases of the store in the folder of `path`, on behalf of one owner (this process unless said otherwise)."""

    poll_seconds = 0.25

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
            connection.execute(_ATTEMPTS)
            if "since" not in {row[1] for row in connection.execute("PRAGMA table_info(run_leases)")}:
                connection.execute("ALTER TABLE run_leases ADD COLUMN since REAL")
            (state,) = connection.execute("PRAGMA quick_check").fetchone()
            if state != "ok":
                raise sqlite3.DatabaseError(state)

    def _set_aside(self, reason: str) -> None:
        """Set a damaged file aside; whoever is training under it finds its lease gone and continues under a new one."""
        with self.path.with_name(f"{self.path.name}.lock").open("w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                self._create()  # another process was here first
            except sqlite3.DatabaseError:
                aside = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
                os.replace(self.path, aside)
                print(f"{self.path} is damaged ({reason}); it is now {aside.name}, leases start again", file=sys.stderr)

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
            tokens, ended = [], []
            for run_key in run_keys:
                row = connection.execute(
                    "SELECT owner, token, heartbeat FROM run_leases WHERE run_key = ?", (run_key,)
                ).fetchone()
                owner, token, heartbeat = row or (None, 0, 0.0)
                if owner is not None:
                    reason = _why_gone(owner, now - heartbeat)
                    if reason is None:
                        return None
                    # its owner may have been killed after the publication, before the end of it
                    end, reason = ("published", "") if self._has(run_key) else ("lost", reason)
                    ended.append((now, end, reason, run_key))
                tokens.append((run_key, max(token + 1, time.time_ns())))
            connection.executemany(
                "INSERT INTO run_leases (run_key, owner, token, heartbeat, since) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (run_key) DO UPDATE SET owner = excluded.owner, token = excluded.token,"
                " heartbeat = excluded.heartbeat, since = excluded.since",
                [(run_key, self.owner, token, now, now) for run_key, token in tokens],
            )
            connection.executemany(
                "UPDATE attempts SET ended = ?, outcome = ?, reason = ? WHERE run_key = ? AND outcome IS NULL",
                ended,
            )
            connection.executemany(
                "INSERT INTO attempts (run_key, token, owner, began) VALUES (?, ?, ?, ?)",
                [(run_key, token, self.owner, now) for run_key, token in tokens if not self._has(run_key)],
            )
        return Lease(tuple(tokens))

    def _has(self, run_key: str) -> bool:
        return RunStore(self.path.parent).has(run_key)

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
    def held(self, lease: Lease) -> Iterator[sqlite3.Connection]:
        """Keep anybody from taking over a run inside this block.

        Raises:
            LeaseLost: somebody already has taken one over.
        """
        with self._transaction() as connection:
            for run_key, token in lease.tokens:
                row = connection.execute("SELECT token FROM run_leases WHERE run_key = ?", (run_key,)).fetchone()
                if row is None or row[0] != token:
                    raise LeaseLost(f"run {run_key[:12]} was taken over while it trained; its outcome is dropped")
            yield connection

    def publish(self, lease: Lease, run_key: str, files: Mapping[str, bytes]) -> Path:
        """Publish an outcome while nobody can take over a run, and close the attempt.

        Raises:
            LeaseLost: somebody already has taken one over.
        """
        with self.held(lease) as connection:
            folder = RunStore(self.path.parent).publish(run_key, files)
            self._close(connection, lease, "published", "", [run_key])
        return folder

    def close(self, lease: Lease, end: End | None, reason: str = "", run_keys: Collection[str] | None = None) -> None:
        """Note how the lease's open attempts (those of `run_keys`) ended; None: nothing was tried, forget them."""
        with self._transaction() as connection:
            self._close(connection, lease, end, reason, run_keys)

    def _close(
        self,
        connection: sqlite3.Connection,
        lease: Lease,
        end: End | None,
        reason: str,
        run_keys: Collection[str] | None = None,
    ) -> None:
        tokens = [one for one in lease.tokens if run_keys is None or one[0] in run_keys]
        open_ = "run_key = ? AND token = ? AND outcome IS NULL"
        if end is None:
            connection.executemany(f"DELETE FROM attempts WHERE {open_}", tokens)
            return
        connection.executemany(
            f"UPDATE attempts SET ended = ?, outcome = ?, reason = ? WHERE {open_}",
            [(time.time(), end, reason, *token) for token in tokens],
        )

    def attempts(self, run_key: str) -> list[Attempt]:
        """Attempts to train a run, the earliest first."""
        with self._transaction() as connection:
            rows = connection.execute(
                "SELECT token, owner, began, ended, outcome, reason FROM attempts WHERE run_key = ? ORDER BY token",
                (run_key,),
            ).fetchall()
        names = ("token", "owner", "began", "ended", "end", "reason")
        found = [Attempt(run_key=run_key, **dict(zip(names, row, strict=True))) for row in rows]
        if found and found[-1].end is None and self._has(run_key):
            found[-1] = replace(found[-1], end="published")  # it was killed before it could note it
        return found

    def _renew(self, lease: Lease) -> bool:
        """False if a run of the lease was taken over."""
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
            self._close(connection, lease, "stopped", "")

    def kept_alive(self, lease: Lease) -> AbstractContextManager[threading.Event]:
        """Renew the lease for as long as the block lasts, then release it: as `Leases` says."""
        return heartbeat(
            lease,
            renew=lambda: self._renew(lease),
            release=lambda: self.release(lease),
            faults=(sqlite3.Error,),
            seconds=HEARTBEAT_SECONDS,
        )
