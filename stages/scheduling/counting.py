"""How far an experiment's trainings are, in a file for whoever shows it: `claimcheck repro`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from stages.scheduling.engine.groups import Event

COUNT_FILE = "CLAIMCHECK_COUNT"
"""The environment's name for the file; without it nothing is written."""
_EVERY_SECONDS = 0.5
_ENOUGH = 0.02
"""The share of the work from which its time says how long the rest will take."""


@dataclass(frozen=True, kw_only=True)
class Count:
    """`done` of the `runs` of a stage have an outcome; `left_seconds` for the rest, None as long as nobody can say."""

    stage: str
    done: int
    runs: int
    left_seconds: float | None = None


def read_count(path: Path, stage: str) -> Count | None:
    """The stage's count; None if it has written none, or is writing one."""
    try:
        count = Count(**json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return count if count.stage == stage else None


class RunCounter:
    """Takes the engine's events and writes the count down; `done` looks how many runs have an outcome."""

    def __init__(self, stage: str, runs: int, done: Callable[[], int]) -> None:
        path = os.environ.get(COUNT_FILE)
        self._path = Path(path) if path else None
        self._stage, self._runs, self._look = stage, runs, done
        self._next, self._started = 0.0, time.monotonic()
        self._training: dict[str, tuple[int, float]] = {}  # by label: runs, and the share of their steps
        if self._path is not None:
            self._before = self._done = done()
            self._write()

    def report(self, event: Event) -> None:
        if self._path is None or event.kind == "waiting":
            return
        if event.kind == "started":
            self._training[event.label] = event.runs, 0.0
        elif event.kind == "progress" and event.progress is not None:
            runs, _ = self._training.get(event.label, (1, 0.0))
            self._training[event.label] = runs, event.progress["step"] / event.progress["total_steps"]
            if time.monotonic() < self._next:
                return
        else:
            runs, _ = self._training.get(event.label, (1, 0.0))
            self._training[event.label] = runs, 0.0
            self._done = self._look()
        self._write()

    def _write(self) -> None:
        assert self._path is not None, "whoever calls this has looked"
        self._next = time.monotonic() + _EVERY_SECONDS
        worked = self._done - self._before + sum(runs * share for runs, share in self._training.values())
        share = worked / max(1, self._runs - self._before)
        took = time.monotonic() - self._started
        left = took * (1 - share) / share if _ENOUGH < share <= 1 else None
        count = Count(stage=self._stage, done=self._done, runs=self._runs, left_seconds=left)
        self._path.write_text(json.dumps(asdict(count)))
