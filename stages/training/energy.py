"""The energy that a training uses, if its device reports it: NVIDIA's counter, for the whole board and every program on
it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from functools import cache

import torch


class EnergyMeter:
    """Joules by the counter `read` from now on, plus `earlier` ones of previous attempts; None if some aren't known."""

    def __init__(self, read: Callable[[], float | None]) -> None:
        self.read = read
        self.earlier: float | None = 0.0
        self.began = read()

    def used(self) -> float | None:
        now = self.read()
        if now is None or self.began is None or self.earlier is None:
            return None
        return self.earlier + now - self.began


def energy_joules(device: torch.device) -> float | None:
    """Joules since the driver was loaded (Volta and newer); None if the device reports nothing, as on every CPU."""
    library = _nvml() if device.type == "cuda" else None
    if library is None:
        return None
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
    handle, millijoules = ctypes.c_void_p(), ctypes.c_ulonglong()
    if library.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle)):
        return None
    failed = library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules))
    return None if failed else millijoules.value / 1000


def sum_known(joules: Iterable[float | None]) -> float | None:
    """The sum; None if some aren't known."""
    found = list(joules)
    return None if None in found else sum(value for value in found if value is not None)


@cache
def _nvml() -> ctypes.CDLL | None:
    """The driver's management library, which comes with every driver; no package wraps these three calls for less."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return None if library.nvmlInit_v2() else library
