"""The state from which an interrupted training goes on, saved in the time that is left for it."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from stages.runs.store import STATE, Scratch
from stages.training.energy import EnergyMeter
from stages.training.loop import TrainingState
from stages.training.stacked import StackState

State = TypeVar("State", TrainingState, StackState)
_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(kw_only=True)
class ResumeState(Generic[State]):
    """The resume state of one run or stack in one environment; only there can it resume bitwise.

    Saved as the sha256 of what follows it, which `torch.load` doesn't check, and the state.
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
        began = time.monotonic()
        if state.epoch == self.epochs or (began - self.saved < 20 * self.took and not self.should_stop()):
            return
        buffer = io.BytesIO()
        fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
        saved = {"run_key": self.work, "environment": self.environment, "energy_joules": self.energy.used()}
        torch.save(saved | {"state": fields}, buffer)
        content = buffer.getvalue()
        self.scratch.save(f"{self.work}/{STATE}", hashlib.sha256(content).digest() + content)
        self.saved = time.monotonic()
        self.took = self.saved - began

    def load(self) -> State | None:
        """The state, or None if there is none; an unusable one is left out with a message, and the run starts over."""
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
    """Of what an error says."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
