"""Leases on runs: the store has a record per run of which process may train and publish it.

Records change only by compare-and-swap.  If the owner of a lease is gone, another process can take over the lease.
Each takeover raises the run's token, and only the holder of the newest token can publish (fencing).  A process that
wakes up late therefore can't overwrite its successor's outcome.

Clocks of two machines are never compared.  An owner changes its records every few seconds.  A process that wants a run
takes it over after it has seen the record unchanged for `EXPIRY_SECONDS` of its own monotonic clock, or at once if the
owner is a dead process of the same machine.  Time during which the store was unreachable doesn't count, because the
owner couldn't change its record either.  The runs of a group are claimed in order of their keys, so if two processes
want the same group, one of them gets all of it.

All engines publish outcomes and classify failures with the functions at the end of this module.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from stages.faults import FAULTS, describe_fault
from stages.runs.store import Attempt, End, Record, RunStore, Store, digests_of, find_fault, next_token
from stages.scheduling.groups import Event, Group, Report

EXPIRY_SECONDS = 60.0
HEARTBEAT_SECONDS = 10.0
_MOST_ATTEMPTS = 100
"""Maximum number of attempts that a record keeps; older ones are dropped."""


class LeaseLost(RuntimeError):
    """Another process has taken over a run; this one must discard its outcome."""


@dataclass(frozen=True)
class Lease:
    """The right to train some runs, as `(run key, token)` pairs; it holds while all tokens are the newest."""

    tokens: tuple[tuple[str, int], ...]

    @property
    def run_keys(self) -> tuple[str, ...]:
        return tuple(run_key for run_key, _ in self.tokens)

    @property
    def name(self) -> str:
        more = f" and {len(self.tokens) - 1} more" if len(self.tokens) > 1 else ""
        return f"{self.tokens[0][0][:12]}{more}"


@dataclass(frozen=True)
class Holder:
    """The process that trains a run, and when it began (seconds since 1970)."""

    owner: str
    since: float

    def __str__(self) -> str:
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"{owner_in_words(self.owner)} since {began}"


def owner_in_words(owner: str) -> str:
    """Describe an owner, `host:boot:namespace:pid:start time`, for people."""
    return f"process {owner.rsplit(':', 2)[-2]} on {owner.split(':')[0]}"


class Leases:
    """Leases in one store, held by one owner (by default, this process).

    `clock` gives the time of day, which only people see; expiry is decided by `monotonic`.
    """

    def __init__(
        self,
        store: Store,
        owner: str | None = None,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store, self.owner = store, owner or process_identity(os.getpid())
        self._clock, self._monotonic = clock, monotonic
        # by run key: an e-tag, the time when it was first seen, and the number of late answers by then
        self._watched: dict[str, tuple[str | None, float, int]] = {}
        self._held: dict[str, tuple[Record, str]] = {}  # by run key: our record as we wrote it, and its e-tag
        self._lock = threading.RLock()  # the heartbeat changes records, too

    def claim(self, *run_keys: str) -> Lease | None:
        """Return a lease if each run is free or its owner is gone; None if one is in training."""
        taken: list[tuple[str, int]] = []
        for run_key in sorted(run_keys):
            token = self._take(run_key)
            if token is None:
                lease = Lease(tuple(taken))
                self.close(lease, None)
                self.release(lease)
                return None
            taken.append((run_key, token))
        order = dict(taken)
        return Lease(tuple((run_key, order[run_key]) for run_key in run_keys))

    def _take(self, run_key: str) -> int | None:
        """Take a run and return its token; None if another process holds it."""
        record, tag = self.store.read(run_key)
        if record.is_published:
            self.store.mend(run_key, record)
        attempts, now = list(record.attempts), self._clock()
        if record.owner is not None:
            reason = self._why_gone(run_key, record.owner, tag)
            if reason is None:
                return None
            attempts = [one if one.end else replace(one, end="lost", ended=now, reason=reason) for one in attempts]
        token = next_token(record)
        if not record.is_published:
            attempts.append(Attempt(run_key=run_key, token=token, owner=self.owner, began=now))
        mine = replace(
            record,
            token=token,
            owner=self.owner,
            beat=0,
            since=now,
            files=record.files if record.is_published else {},
            attempts=tuple(attempts[-_MOST_ATTEMPTS:]),
        )
        new = self.store.write(run_key, mine, tag)
        if new is None:
            return None
        self._watched.pop(run_key, None)
        with self._lock:
            self._held[run_key] = mine, new
        return token

    def _why_gone(self, run_key: str, owner: str, tag: str | None) -> str | None:
        """Explain why a run may be taken over from `owner`; None if it may not, or not yet."""
        if is_gone(owner):
            return "its process is gone"
        now, late = self._monotonic(), self.store.late_answers
        seen, since, late_before = self._watched.get(run_key, (None, now, late))
        if seen != tag or late != late_before:  # the store was unreachable, for the owner, too
            since = now
        self._watched[run_key] = tag, since, late
        return f"sent no heartbeat for {now - since:.0f} s" if now - since >= EXPIRY_SECONDS else None

    def holder(self, *run_keys: str) -> Holder | None:
        """Return the holder of the first of these runs that has one; None if all are free."""
        for run_key in run_keys:
            record, _ = self.store.read(run_key)
            if record.owner is not None:
                return Holder(record.owner, record.since or 0.0)
        return None

    def attempts(self, run_key: str) -> list[Attempt]:
        """List the attempts to train a run, earliest first."""
        record, _ = self.store.read(run_key)
        return list(record.attempts)

    def publish(self, lease: Lease, run_key: str, files: Mapping[str, bytes]) -> Path:
        """Publish an outcome as the holder of the newest token, and close the attempt.

        Raises:
            LeaseLost: another process has taken over the run.
        """
        token = dict(lease.tokens)[run_key]

        def finish(mine: Record) -> Record:
            return self._ended(replace(mine, is_published=True), "published")

        if not isinstance(self.store, RunStore):
            digests = digests_of(files)

            def announce(mine: Record) -> Record:
                return self._ended(mine, "published") if mine.is_published else replace(mine, files=digests)

            # named before they are written, so that `claimcheck gc` doesn't remove them
            record = self._change(run_key, token, announce)
            if record.is_published:
                return self.store.finish(run_key, record, files)
            self.store.upload(files)
        return self.store.finish(run_key, self._change(run_key, token, finish, files), files)

    def close(self, lease: Lease, end: End | None, reason: str = "", run_keys: Collection[str] | None = None) -> None:
        """Record how the lease's open attempts (at `run_keys`, or all) ended; with None, delete them as never made."""
        for run_key, token in lease.tokens:
            if run_keys is None or run_key in run_keys:
                try:
                    self._change(run_key, token, lambda mine: self._ended(mine, end, reason))
                except LeaseLost:
                    continue  # the new owner has recorded it

    def release(self, lease: Lease) -> None:
        """Give the runs back; the tokens stay in the records, so that they never decrease."""
        for run_key, token in lease.tokens:
            try:
                self._change(run_key, token, lambda mine: self._ended(replace(mine, owner=None), "stopped"))
            except LeaseLost:
                continue
            finally:
                with self._lock:
                    self._held.pop(run_key, None)

    def _ended(self, record: Record, end: End | None, reason: str = "") -> Record:
        kept = list[Attempt]()
        for attempt in record.attempts:
            if attempt.token != record.token or attempt.end is not None:
                kept.append(attempt)
            elif end is not None:
                kept.append(replace(attempt, end=end, ended=self._clock(), reason=reason))
        return replace(record, attempts=tuple(kept))

    def _change(
        self,
        run_key: str,
        token: int,
        change: Callable[[Record], Record],
        files: Mapping[str, bytes] | None = None,
    ) -> Record:
        """Change our record and return the new one; a store in a folder publishes `files` in the same step.

        Raises:
            LeaseLost: the record is no longer ours.
        """
        with self._lock:
            mine, tag = self._held.get(run_key, (None, ""))
            while mine is not None and mine.token == token:
                new = replace(change(mine), beat=mine.beat + 1)
                if (written := self.store.write(run_key, new, tag, files)) is not None:
                    self._held[run_key] = new, written
                    return new
                found, now = self.store.read(run_key)  # it may be our own change, whose answer was lost
                if now is None or (found.token, found.owner) != (token, mine.owner):
                    break
                mine, tag = found, now
        raise LeaseLost(f"run {run_key[:12]} was taken over while it trained; its outcome is dropped")

    @contextmanager
    def kept_alive(self, lease: Lease) -> Iterator[threading.Event]:
        """Renew the lease from a thread until the block ends, then release it.

        Yields an event that is set when another process has taken over a run.  The thread then ends, because a lease is
        only valid as a whole, and renewing its other runs would keep them from the process that took over.  A failed
        renewal is printed but not raised, because the next one may succeed before the lease expires.
        """
        finished, lost = threading.Event(), threading.Event()

        def beat() -> None:
            while not finished.wait(HEARTBEAT_SECONDS):
                try:
                    for run_key, token in lease.tokens:
                        self._change(run_key, token, lambda mine: mine)
                except LeaseLost:
                    lost.set()
                    return
                except OSError as error:
                    print(f"lease of {lease.name}: can't be renewed now ({error})", file=sys.stderr)

        thread = threading.Thread(target=beat, name="lease-heartbeat", daemon=True)
        thread.start()
        try:
            yield lost
        finally:
            finished.set()
            thread.join()
            self.release(lease)


def claim_group(group: Group, leases: Leases, holders: dict[str, str], report: Report) -> Lease | None:
    """Claim all runs of a group; if another process holds one, report it once and return None.

    `holders` has the owners that were reported already, by the group's label.
    """
    lease = leases.claim(*group.run_keys)
    holder = None if lease else leases.holder(*group.run_keys)
    if holder is not None and holders.get(group.label) != holder.owner:
        holders[group.label] = holder.owner
        report(Event(kind="waiting", label=group.label, message=str(holder), owner=holder.owner))
    return lease


def process_identity(pid: int) -> str:
    """Return `host:boot:namespace:pid:start time`, unique even among containers and after the pid is reused.

    The start time is in ticks since boot, which clock changes don't affect (unlike psutil's); "" for a dead process.
    """
    start_time = ""
    with suppress(OSError), open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rsplit(")", 1)[1].split()
        start_time = "" if fields[0] == "Z" else fields[19]
    return f"{_scope()}:{pid}:{start_time}"


@cache
def _scope() -> str:
    """Return the host, boot and pid namespace in which a pid is valid.

    Two containers may share a host name, but their namespaces differ.
    """
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    with suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    return f"{socket.gethostname()}:{boot}:{namespace}"


def is_gone(owner: str) -> bool:
    """Return True if `owner` is a dead process of this boot and pid namespace; others can't be checked."""
    scope, pid, start_time = owner.rsplit(":", 2)
    if scope != _scope() or not os.path.isdir("/proc/self"):
        return False
    return start_time == "" or process_identity(int(pid)) != owner


_OUT_OF_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "can't allocate memory")


def check(outcomes: Mapping[str, Mapping[str, bytes]], lease: Lease) -> None:
    """Check outcomes (sealed files by run key) that another process sent.

    Raises:
        ValueError: an outcome is damaged or belongs to a run that the lease doesn't cover.
    """
    for run_key, files in outcomes.items():
        if run_key not in lease.run_keys:
            raise ValueError(f"an outcome of run {run_key[:12]} came back from the training of {lease.name}")
        if fault := find_fault(files, run_key):
            raise ValueError(f"the outcome of run {run_key[:12]} is incomplete: {fault}; nothing is published")


def publish(outcomes: Mapping[str, Mapping[str, bytes]], work: str, lease: Lease, leases: Leases, store: Store) -> None:
    """Publish outcomes of the leased runs, and delete the scratch folder `work`.

    Raises:
        LeaseLost: another process has taken over a run.
    """
    for run_key, files in outcomes.items():
        leases.publish(lease, run_key, files)
    store.scratch.drop(work)


def describe_failure(error: BaseException) -> tuple[End, str]:
    """Classify the `error` that ended an attempt and describe it, with a traceback if it may be a bug of ours."""
    if is_out_of_memory(error):
        return "memory", f"out of memory ({' '.join(str(error).split()) or 'on this machine'})"
    if isinstance(error, FAULTS):
        return "failed", describe_fault(error)
    if isinstance(error, TypeError | ValueError):
        return "failed", str(error)
    return "failed", "".join(traceback.format_exception(error))


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if the machine or a device ran out of memory, whichever library reports it."""
    is_reported = isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _OUT_OF_MEMORY)
    return isinstance(error, MemoryError) or is_reported
