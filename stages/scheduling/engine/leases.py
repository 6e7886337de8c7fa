"""Leases: one record a run in the store, which says who trains and may publish, changed by compare-and-swap alone.

A lease is taken over from an owner that is gone.  Each take-over raises the run's token, and only the holder of the
newest token publishes (fencing), so a process that wakes up late can't publish over its successor.

Clocks of two machines are never compared.  An owner changes its records every few seconds.  A process that wants a run
takes it over after it has seen the record unchanged for `EXPIRY_SECONDS` of its own monotonic clock, or at once if the
owner is a dead process of the same machine.  Time in which the store was away doesn't count, because it took no change.
The runs of a group are claimed in order of their keys, so that one of two processes that want the same gets them all.

Every engine ends its trainings here.
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
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from stages.faults import FAULTS, describe_fault
from stages.runs.store import Record, Store, find_fault, next_token

EXPIRY_SECONDS = 60.0
HEARTBEAT_SECONDS = 10.0
_MOST_ATTEMPTS = 100
"""Number of attempts that a record keeps, the latest."""

End = Literal["published", "stopped", "failed", "memory", "lost"]
"""How an attempt ended: `stopped` when asked to, `memory` for want of it on the device, `lost` with its owner."""


class LeaseLost(RuntimeError):
    """Another process has taken over a run; this one must discard its outcome."""


@dataclass(frozen=True)
class Lease:
    """The right to train some runs, as `(run key, token)` pairs, for as long as all tokens are the newest."""

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
    """The process that trains a run, and since when (seconds since 1970)."""

    owner: str
    since: float

    def __str__(self) -> str:
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"{owner_in_words(self.owner)} since {began}"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One try to train a run: whose, from when to when by the owner's clock (seconds since 1970), and how it ended.

    `end` is None as long as it trains, or until its owner is found to be gone.  To claim a run that has an
    outcome, as runs of an unfinished group are, is no attempt.
    """

    run_key: str
    token: int
    owner: str
    began: float
    ended: float | None = None
    end: End | None = None
    reason: str = ""


def owner_in_words(owner: str) -> str:
    """`host:boot:namespace:pid:start time` for a person."""
    return f"process {owner.rsplit(':', 2)[-2]} on {owner.split(':')[0]}"


class Leases:
    """Leases of one store, on behalf of one owner (this process unless said otherwise).

    `clock` tells the time of day, for people; `monotonic` decides.
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
        # by run key: an e-tag, since when it is that, and how many answers had come late by then
        self._watched: dict[str, tuple[str | None, float, int]] = {}
        self._held: dict[str, tuple[Record, str]] = {}  # by run key: our record as we wrote it, and its e-tag
        self._lock = threading.RLock()  # the heartbeat changes records, too

    def claim(self, *run_keys: str) -> Lease | None:
        """The lease if all runs are free or their owners gone; None if one is in training."""
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
        """The token of a run that is now ours; None if another process holds it."""
        record, tag = self.store.read(run_key)
        if record.is_published:
            self.store.mend(run_key, record)
        attempts, now = list(record.attempts), self._clock()
        if record.owner is not None:
            reason = self._why_gone(run_key, record.owner, tag)
            if reason is None:
                return None
            attempts = [
                one if one["end"] else {**one, "end": "lost", "ended": now, "reason": reason} for one in attempts
            ]
        token = next_token(record)
        if not record.is_published:
            attempts.append(asdict(Attempt(run_key=run_key, token=token, owner=self.owner, began=now)))
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
        if seen != tag or late != late_before:  # the store was away, from the owner, too
            since = now
        self._watched[run_key] = tag, since, late
        return f"was not heard of for {now - since:.0f} s" if now - since >= EXPIRY_SECONDS else None

    def holder(self, *run_keys: str) -> Holder | None:
        """The holder of the first of these runs that has one; None if all are free."""
        for run_key in run_keys:
            record, _ = self.store.read(run_key)
            if record.owner is not None:
                return Holder(record.owner, record.since or 0.0)
        return None

    def attempts(self, run_key: str) -> list[Attempt]:
        """Attempts to train a run, the earliest first."""
        record, _ = self.store.read(run_key)
        return [Attempt(**one) for one in record.attempts]

    def publish(self, lease: Lease, run_key: str, files: Mapping[str, bytes]) -> Path:
        """Publish an outcome as the holder of the newest token, and close the attempt.

        Raises:
            LeaseLost: another process has taken over the run.
        """
        token = dict(lease.tokens)[run_key]

        def change(edit: Callable[[Record], Record], files: Mapping[str, bytes] | None = None) -> Record:
            def edit_and_close(mine: Record) -> Record:
                new = edit(mine)
                return self._ended(new, "published") if new.is_published else new

            return self._change(run_key, token, edit_and_close, files)

        return self.store.publish_leased(run_key, files, change)

    def close(self, lease: Lease, end: End | None, reason: str = "", run_keys: Collection[str] | None = None) -> None:
        """Note how the lease's open attempts (those of `run_keys`) ended; None: nothing was tried, forget them."""
        for run_key, token in lease.tokens:
            if run_keys is None or run_key in run_keys:
                try:
                    self._change(run_key, token, lambda mine: self._ended(mine, end, reason))
                except LeaseLost:
                    continue  # the new owner has noted it

    def release(self, lease: Lease) -> None:
        """Give the runs back; the tokens stay, so that they only grow."""
        for run_key, token in lease.tokens:
            try:
                self._change(run_key, token, lambda mine: self._ended(replace(mine, owner=None), "stopped"))
            except LeaseLost:
                continue
            finally:
                with self._lock:
                    self._held.pop(run_key, None)

    def _ended(self, record: Record, end: End | None, reason: str = "") -> Record:
        now = self._clock()
        is_open = [one["token"] == record.token and one["end"] is None for one in record.attempts]
        if end is None:
            kept = [one for one, ours in zip(record.attempts, is_open, strict=True) if not ours]
        else:
            closed = {"end": end, "ended": now, "reason": reason}
            kept = [{**one, **closed} if ours else one for one, ours in zip(record.attempts, is_open, strict=True)]
        return replace(record, attempts=tuple(kept))

    def _change(
        self,
        run_key: str,
        token: int,
        change: Callable[[Record], Record],
        files: Mapping[str, bytes] | None = None,
    ) -> Record:
        """Change our record, and return it as it is then; a folder publishes `files` with the change.

        Raises:
            LeaseLost: it is no longer ours.
        """
        with self._lock:
            mine, tag = self._held.get(run_key, (None, ""))
            while mine is not None and mine.token == token:
                new = replace(change(mine), beat=mine.beat + 1)
                if (written := self.store.write(run_key, new, tag, files)) is not None:
                    self._held[run_key] = new, written
                    return new
                found, now = self.store.read(run_key)  # a change of ours whose answer was lost is ours, too
                if now is None or (found.token, found.owner) != (token, mine.owner):
                    break
                mine, tag = found, now
        raise LeaseLost(f"run {run_key[:12]} was taken over while it trained; its outcome is dropped")

    @contextmanager
    def kept_alive(self, lease: Lease) -> Iterator[threading.Event]:
        """Renew the lease from a thread for as long as the block lasts, then release it.

        Yields an event that is set when another process has taken over a run.  The thread ends then: a lease holds as a
        whole, and renewing the runs that are left of it would only keep them from who took it over.  A fault of the
        store is printed, for the next renewal may reach it before the lease expires.
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


def process_identity(pid: int) -> str:
    """`host:boot:namespace:pid:start time`: identifies one process among containers, even after its pid is reused."""
    return f"{_scope()}:{pid}:{_start_time(pid)}"


@cache
def _scope() -> str:
    """Host, boot and namespace of process ids: where a pid can be looked up.

    Two containers may share a host name; their namespaces differ.
    """
    boot = namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")[:8]
    with suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    return f"{socket.gethostname()}:{boot}:{namespace}"


def _start_time(pid: int) -> str:
    """Start time in ticks since boot, unaffected by clock changes, unlike psutil's."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def is_gone(owner: str) -> bool:
    """True if `owner` is a process of this boot and namespace that is gone; about others nothing is known."""
    scope, pid, start_time = owner.rsplit(":", 2)
    if scope != _scope() or not os.path.isdir("/proc/self"):
        return False
    return start_time == "" or process_identity(int(pid)) != owner


_OUT_OF_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "can't allocate memory")


class BadOutcome(ValueError):
    """Training returned something other than an outcome of the leased runs; nothing of it is published."""


def publish(outcomes: Mapping[str, Mapping[str, bytes]], work: str, lease: Lease, leases: Leases, store: Store) -> None:
    """Publish the outcomes, sealed files by run key, after checking each; then drop the scratch called `work`.

    Raises:
        BadOutcome: one is damaged, or of a run that the lease doesn't cover.
        LeaseLost: another process has taken over a run.
    """
    for run_key, files in outcomes.items():
        if run_key not in lease.run_keys:
            raise BadOutcome(f"an outcome of run {run_key[:12]} came back from the training of {lease.name}")
        if fault := find_fault(files, run_key):
            raise BadOutcome(f"the outcome of run {run_key[:12]} isn't whole: {fault}; nothing is published")
    for run_key, files in outcomes.items():
        leases.publish(lease, run_key, files)
    store.scratch.drop(work)


def describe_failure(error: BaseException) -> tuple[End, str]:
    """Classify how an attempt that raised `error` ended, with a message; a traceback only if the fault may be ours."""
    if is_out_of_memory(error):
        return "memory", f"out of memory ({' '.join(str(error).split()) or 'on this machine'})"
    if isinstance(error, FAULTS):
        return "failed", describe_fault(error)
    if isinstance(error, TypeError | ValueError):
        return "failed", str(error)
    return "failed", "".join(traceback.format_exception(error))


def is_out_of_memory(error: BaseException) -> bool:
    """True for want of memory, of the machine or of a device, by whatever library."""
    words = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(phrase in words for phrase in _OUT_OF_MEMORY)
    )
