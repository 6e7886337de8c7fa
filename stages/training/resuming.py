"""The state from which an interrupted training goes on, saved in the time that is left for it.

The state after each epoch also stays in the folder that `CLAIMCHECK_KEEP_STATES` names, for others to train it again.
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import io
import math
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

import torch

from stages.runs.store import STATE, Scratch, write_atomically
from stages.training.loop import TrainingState
from stages.training.stacked import StackState

State = TypeVar("State", TrainingState, StackState)
_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(kw_only=True)
class ResumeState(Generic[State]):
    """Resume state of one run or stack; only in the same environment does it resume bit by bit.

    The file is the sha256 of the rest, because `torch.load` checks nothing, followed by the state.
    """

    scratch: Scratch
    work: str
    kind: type[State]
    environment: str
    epochs: int
    energy: EnergyMeter
    should_stop: Callable[[], bool]
    saved: float = -math.inf
    took: float = 0.0

    def save(self, state: State) -> None:
        """Save `state`, unless the run is over and published next, or saving would take over 5 % of the time."""
        began, kept = time.monotonic(), os.environ.get("CLAIMCHECK_KEEP_STATES")
        is_kept = bool(kept) and not getattr(state, "step_in_epoch", 1)  # a stack's state has no such field
        is_late = began - self.saved < 20 * self.took and not self.should_stop()
        if state.epoch == self.epochs or (is_late and not is_kept):
            return
        buffer = io.BytesIO()
        fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
        saved = {"run_key": self.work, "environment": self.environment, "energy_joules": self.energy.used()}
        torch.save(saved | {"state": fields}, buffer)
        content = buffer.getvalue()
        content = hashlib.sha256(content).digest() + content
        self.scratch.save(f"{self.work}/{STATE}", content)
        if kept and is_kept:
            write_atomically(Path(kept, self.work, f"{state.epoch}.pt"), content)
        self.saved = time.monotonic()
        self.took = self.saved - began

    def load(self) -> State | None:
        """Return the state, or None if there is none; an unusable one is reported and the run starts over."""
        content = self.scratch.load(f"{self.work}/{STATE}")
        if content is None:
            return None
        try:
            digest, content = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
            if hashlib.sha256(content).digest() != digest:
                raise ValueError("it is damaged, or of an older version")
            saved = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
            if saved["run_key"] != self.work:
                raise ValueError("it belongs to another run")
            if saved["environment"] != self.environment:
                raise ValueError(
                    "it was made with another device, number of threads or version, other fast paths, or another canary"
                )
            self.energy.earlier = saved.get("energy_joules")
            return self.kind(**saved["state"])
        except Exception as error:  # noqa: BLE001  (torch.load raises almost anything on what it can't read)
            reason = first_line(error)
            print(f"run {self.work[:12]}: resume state can't be used ({reason}); starting over", file=sys.stderr)
            return None


def first_line(error: Exception) -> str:
    """Return the first line of the error's message, or its type if there is no message."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


class EnergyMeter:
    """Joules that `read` counts from now on, plus those of `earlier` attempts; None if some are unknown."""

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
    """Return joules since the driver was loaded (Volta and newer); None if the device reports none, like every CPU."""
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
    """Return the sum; None if some are unknown."""
    found = list(joules)
    return None if None in found else sum(value for value in found if value is not None)


@cache
def _nvml() -> ctypes.CDLL | None:
    """Load NVML, the management library that comes with every driver; a package for three calls isn't worth it."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return None if library.nvmlInit_v2() else library
