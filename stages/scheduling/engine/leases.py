"""Who trains what, and who may publish: what leases of every store do, and what they keep of each attempt.

A lease is taken over from an owner that is gone.  Each take-over raises the run's token, and only the holder of the
newest token publishes (fencing), so a process that wakes up late can't publish over its successor.

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
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, Protocol

from stages.faults import FAULTS, describe_fault
from stages.runs.store import Store, find_fault

EXPIRY_SECONDS = 60.0
HEARTBEAT_SECONDS = 10.0

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
    """Who is training a run, and since when (seconds since 1970; None in files of older versions)."""

    owner: str
    since: float | None

    def __str__(self) -> str:
        began = f" since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.since))}" if self.since else ""
        return f"{owner_in_words(self.owner)}{began}"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One try to train a run: whose, from when to when by the owner's clock (seconds since 1970), and how it ended.

    `end` is None as long as it trains, or until somebody notices that its owner is gone.  To claim a run that has an
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


class Leases(Protocol):
    """Leases of one store, on behalf of one owner (this process unless said otherwise)."""

    owner: str
    poll_seconds: float
    """How long to wait before a run that is held by another owner is claimed again."""

    def claim(self, *run_keys: str) -> Lease | None:
        """The lease if all runs are free or their owners gone; None if one is in training."""

    def holder(self, *run_keys: str) -> Holder | None:
        """The holder of the first of these runs that has one; None if all are free."""

    def kept_alive(self, lease: Lease) -> AbstractContextManager[threading.Event]:
        """Renew the lease for as long as the block lasts, then release it.

        Yields an event that is set when another process has taken over a run.
        """

    def publish(self, lease: Lease, run_key: str, files: Mapping[str, bytes]) -> Path:
        """Publish an outcome as the holder of the newest token, and close the attempt.

        Raises:
            LeaseLost: somebody has taken over a run of the lease.
        """

    def close(self, lease: Lease, end: End | None, reason: str = "", run_keys: Collection[str] | None = None) -> None:
        """Note how the lease's open attempts (those of `run_keys`) ended; None: nothing was tried, forget them.

        What is open when the lease is released ends as stopped.
        """

    def attempts(self, run_key: str) -> list[Attempt]:
        """Attempts to train a run, the earliest first."""


@contextmanager
def heartbeat(
    lease: Lease,
    *,
    renew: Callable[[], bool],
    release: Callable[[], None],
    faults: tuple[type[Exception], ...],
    seconds: float,
) -> Iterator[threading.Event]:
    """Call `renew` from a thread every so many seconds for as long as the block lasts, then `release`.

    Yields an event that is set when `renew` says, by False, that another process has taken over a run.  The thread ends
    then: a lease holds as a whole, and renewing the runs that are left of it would only keep them from who took it
    over.  One of `faults` is told, for the next beat may reach the store before the lease expires.
    """
    finished, lost = threading.Event(), threading.Event()

    def beat() -> None:
        while not finished.wait(seconds):
            try:
                if not renew():
                    lost.set()
                    return
            except faults as error:
                print(f"lease of {lease.name}: can't be renewed now ({error})", file=sys.stderr)

    thread = threading.Thread(target=beat, name="lease-heartbeat", daemon=True)
    thread.start()
    try:
        yield lost
    finally:
        finished.set()
        thread.join()
        release()


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


def is_gone(owner: str) -> bool:
    """True if `owner` is a process of this boot and namespace that is gone; about others nothing is known."""
    return owner.rsplit(":", 2)[0] == _scope() and os.path.isdir("/proc/self") and not _is_running(owner)


_OUT_OF_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "can't allocate memory")


class BadOutcome(ValueError):
    """What was trained isn't an outcome of the leased runs; nothing of it is published."""


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
    """How an attempt that raised `error` ended, and what to tell; a traceback only where the fault may be ours."""
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
