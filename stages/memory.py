"""Keeps memory that a training or a service frees, for its next step or pass, instead of returning it to the system.

A step frees and requests the same few hundred megabytes; touching new pages costs a virtual machine up to a third of
the step (docs/log.md).  Nothing is computed differently.
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # malloc.h of glibc


def keep_freed_memory() -> bool:
    """Configure glibc's allocator for the rest of this process; returns True if there is one."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


def give_back_freed_memory() -> None:
    """Return the memory that earlier work freed to the system, so that a run's peak counts only its own."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
