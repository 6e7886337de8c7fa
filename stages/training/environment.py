"""The machine a run was computed on, as far as it can change the last digits: versions, device, threads."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

from stages.device import device_name, give_back_freed_memory


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Versions, device name, CPU capability, threads: everything known to change the last digits.

    A GPU's says also where the crops and flips of images were drawn, since its generator draws other ones than a CPU's.
    """
    drawn = {} if device.type == "cpu" else {"augmentation_generator": device.type}
    return drawn | {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": str(torch.__version__),
        "device": device.type,
        "device_name": device_name(device),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "cores": os.cpu_count(),
    }


def reset_peak_memory(device: torch.device) -> None:
    """Restart `peak_memory_bytes`, so that one run of many in a process is measured by itself (Linux and CUDA)."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif os.access("/proc/self/clear_refs", os.W_OK):
        give_back_freed_memory()
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")  # proc(5): resets the peak resident set size


def peak_memory_bytes(device: torch.device) -> int:
    """CUDA: peak bytes of tensors on the device.  CPU: the process's largest resident size, Python included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource  # absent on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024)
