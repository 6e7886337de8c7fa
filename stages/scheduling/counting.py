"""Shows how far trainings are on a terminal, and how long the stages of a repro will take."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from stages.scheduling.engine.groups import Event


class StageTimes:
    """How long a whole repro will still take, by what its stages of the same verb have taken so far.

    A stage weighs as many runs as it has; of a verb's stages, as large a part will be unchanged as was so far.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        """`weights`: of all stages to come, by name."""
        self._to_come = dict(weights)
        self._seconds: dict[str, float] = defaultdict(float)
        self._ran: dict[str, float] = defaultdict(float)
        self._seen: dict[str, float] = defaultdict(float)
        self._begun = ("", 0.0)

    def start(self, stage: str) -> None:
        self._begun = stage, self._to_come.pop(stage, 0.0)

    def end(self, seconds: float) -> None:
        """The stage that was started took so long."""
        stage, weight = self._begun
        verb, self._begun = _verb(stage), ("", 0.0)
        self._seconds[verb] += seconds
        self._ran[verb] += weight
        self._seen[verb] += weight

    def skip(self, stage: str) -> None:
        """A stage is unchanged."""
        self._seen[_verb(stage)] += self._to_come.pop(stage, 0.0)

    def left(self, elapsed: float, own: float | None) -> float | None:
        """Seconds left, the stage that has run for `elapsed` included; None as long as nothing says how long.

        `own`: what that stage itself says of its rest.
        """
        stage, weight = self._begun
        if own is None:
            own = self._expected(stage, weight, is_sure=True)
            own = None if own is None else max(0.0, own - elapsed)
        parts = [own, *(self._expected(name, weight) for name, weight in self._to_come.items())]
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None

    def _expected(self, stage: str, weight: float, *, is_sure: bool = False) -> float | None:
        """Seconds of a stage, less the chance that it is unchanged; 0 where it is the only one of its verb."""
        verb = _verb(stage)
        if self._ran[verb]:
            return weight * self._seconds[verb] / (self._ran[verb] if is_sure else self._seen[verb])
        if self._seen[verb] or "@" not in stage:
            return 0.0
        return None


def _verb(stage: str) -> str:
    return stage.partition("@")[0]


_SAID = {
    "finished": "trained",
    "failed": "failed\n{message}",
    "memory": "{message}; it is tried once more, alone on its device",
    "waiting": "waiting for {message}, which trains it; if that process ends, training resumes here",
    "elsewhere": "trained by another process {message}",
    "stopped": "{message}; the next dvc repro resumes from here",
    "lost": "lost, {message}; it resumes from its last state",
}
"""Messages by kind of event."""


class ProgressDisplay:
    """Context manager; call `report` with every event of the engine."""

    def __init__(self, output: TextIO | None = None) -> None:
        """`output`: where it is shown, stdout unless said otherwise."""
        self.console = Console(file=output or sys.stdout, highlight=False, soft_wrap=True)
        self._tasks: dict[str, TaskID] = {}
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(compact=True),
            console=self.console,
            disable=not self.console.is_terminal,
        )

    def __enter__(self) -> ProgressDisplay:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def report(self, event: Event) -> None:
        if event.kind == "started":
            self._tasks[event.label] = self._bars.add_task(event.label, total=None, state="")
        elif event.kind == "progress" and event.progress is not None:
            self._show(event.label, event.progress)
        else:
            said = _SAID[event.kind].format(message=event.message)
            self.console.print(f"{event.label}: {said}".rstrip(), markup=False)

    def _show(self, label: str, progress: dict[str, Any]) -> None:
        scores = "  ".join(
            f"{name} {value:.1%}" if name == "accuracy" else f"{name} {value:.3f}"
            for name, value in progress["scores"].items()
        )
        state = (
            f"epoch {progress['epoch']}/{progress['epochs']}  {scores}  {progress['samples_per_second']:,.0f} samples/s"
        )
        step, total = progress["step"], progress["total_steps"]
        self._bars.update(self._tasks[label], completed=step, total=total, state=state)
        last_of_epoch = step * progress["epochs"] % total == 0
        if last_of_epoch and not self.console.is_terminal:
            self.console.print(f"{label}: {state}", markup=False)
