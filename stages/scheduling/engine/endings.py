"""How the training of a group ends: its outcomes are published by whoever holds the lease, or its error is told.

Every engine ends its trainings here.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping

from stages.faults import FAULTS, describe_fault
from stages.runs.outcome import find_fault
from stages.runs.store import Store
from stages.scheduling.engine.leases import End, Lease, Leases

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
