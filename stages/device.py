"""The device that computes, and its name.  Naming only the CPU needs no torch."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def device_for(wanted: str) -> str:
    """`pick_device` as a string.

    Raises:
        ValueError: as for `pick_device`.
    """
    return "cpu" if _first(wanted) == "cpu" else str(pick_device(wanted))


def _first(wanted: str) -> str:
    return wanted.split(",")[0].strip()


def pick_device(wanted: str) -> torch.device:
    """`auto` is the first CUDA device, else the CPU; of several (`cuda:0,cuda:1`) the first counts.

    Raises:
        ValueError: no such device here; the message says what would work.
    """
    import torch

    first = _first(wanted)
    if first == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(first)
    except RuntimeError:
        raise ValueError(f"device is {first!r}; known: auto, cpu, cuda, cuda:0, …") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {first!r}; known: auto, cpu, cuda, cuda:0, …")
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ValueError(f"device is {first!r}, but torch {torch.__version__} sees {count} CUDA devices here; use cpu")
    return device


def device_name(device: torch.device) -> str:
    """The name that the GPU or the processor gives itself."""
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
