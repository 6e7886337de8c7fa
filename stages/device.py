"""Chooses and names the device that computes; for the CPU alone, torch isn't loaded.

A training or a service keeps freed memory for its next step or pass instead of returning it to the system.  A step
frees and requests the same few hundred megabytes, and on a virtual machine, new pages cost up to a third of the step.
No number changes.
"""

from __future__ import annotations

import ctypes
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def device_for(wanted: str) -> str:
    """Return the name of `pick_device`'s device, without loading torch for the CPU.

    Raises:
        ValueError: as for `pick_device`.
    """
    return "cpu" if _first(wanted) == "cpu" else str(pick_device(wanted))


def _first(wanted: str) -> str:
    return re.split("[,+]", wanted)[0].strip()


def devices_of(wanted: str) -> tuple[str, ...]:
    """Return the names of the devices that train one run together (`cuda:0+cuda:1`), or of the single device.

    Raises:
        ValueError: a device is missing, a GPU is named twice, or the devices are of two kinds.
    """
    devices = [pick_device(name) for name in wanted.split("+")]
    names = tuple(f"cuda:{device.index or 0}" if device.type == "cuda" else str(device) for device in devices)
    if len({device.type for device in devices}) > 1:
        raise ValueError(f"device is {wanted!r}; devices that train one run together are all GPUs, or all cpu")
    if devices[0].type == "cuda" and len(set(names)) < len(names):
        raise ValueError(f"device is {wanted!r}; name each GPU only once")
    return names


def pick_device(wanted: str) -> torch.device:
    """Return the device called `wanted`, the first of several (`cuda:0,cuda:1`, `cuda:0+cuda:1`).

    `auto` is the first CUDA device if there is one, otherwise the CPU.

    Raises:
        ValueError: there is no such device; the message says what would work.
    """
    import torch

    first = _first(wanted)
    if first == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(first)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {first!r}; known: auto, cpu, cuda, cuda:0, …")
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ValueError(f"device is {first!r}, but torch {torch.__version__} sees {count} CUDA devices here; use cpu")
    return device


def device_name(device: torch.device) -> str:
    """Return the model name of the GPU or the processor."""
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_name(device)
    return processor_name()


def processor_name() -> str:
    """Return the model name of the processor."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # malloc.h of glibc


def keep_freed_memory() -> bool:
    """Configure glibc's allocator for the rest of this process; return True if there is one."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


def give_back_freed_memory() -> None:
    """Return the memory that earlier work freed to the system, so that a run's peak counts only its own."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
