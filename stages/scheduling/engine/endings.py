"""How the training of a group ends: its outcomes are published by whoever holds the lease, or its error is told.

Every engine ends its trainings here.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Protocol

from stages.faults import FAULTS, describe_fault
from stages.runs.outcome import find_fault
from stages.runs.store import Store
from stages.scheduling.engine.leases import End, Lease, Leases

_OUT_OF_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "can't allocate memory")


class Trained(Protocol):
    """What `stages.worker` returns: sealed outcomes by run key, and the scratch to drop once they are published."""

    @property
    def outcomes(self) -> Mapping[str, Mapping[str, bytes]]: ...

    @property
    def work(self) -> str: ...


class BadOutcome(ValueError):
    """What was trained isn't an outcome of the leased runs; nothing of it is published."""


def publish(trained: Trained, lease: Lease, leases: Leases, store: Store) -> None:
    """Publish all outcomes after checking each, and drop their scratch.

    Raises:
        BadOutcome: one is damaged, or of a run that the lease doesn't cover.
        LeaseLost: another process has taken over a run.
    """
    for run_key, files in trained.outcomes.items():
        if run_key not in lease.run_keys:
            raise BadOutcome(f"an outcome of run {run_key[:12]} came back from the training of {lease.name}")
        if fault := find_fault(files, run_key):
            raise BadOutcome(f"the outcome of run {run_key[:12]} isn't whole: {fault}; nothing is published")
    for run_key, files in trained.outcomes.items():
        leases.publish(lease, run_key, files)
    store.scratch.drop(trained.work)


def describe_failure(error: BaseException) -> tuple[End, str]:
    """How an attempt that raised `error` ended, and what to tell; a traceback only where the fault may be ours."""
    if is_out_of_memory(error):
        return "memory", f"out of memory: {' '.join(str(error).split())}"
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
