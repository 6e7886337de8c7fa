"""Shows the events of an engine as lines and progress bars; needs rich, which the service's packages lack."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from stages.scheduling.engine.groups import Event

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
