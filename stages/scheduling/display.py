"""Shows the events of an engine as lines and progress bars; needs rich, which the service's packages lack."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from stages.scheduling.groups import Event, Report

_MESSAGES = {
    "finished": "trained",
    "failed": "failed\n{message}",
    "memory": "{message}; it will train once more, alone on its device",
    "waiting": "waiting for {message}, which trains it; if that process ends, training resumes here",
    "elsewhere": "trained by another process {message}",
    "stopped": "{message}; the next dvc repro resumes from here",
    "lost": "lost, {message}; it resumes from its last state",
}


@contextmanager
def progress_display(output: TextIO | None = None) -> Iterator[Report]:
    """Yield a function that shows an event on `output` (default: stdout)."""
    console = Console(file=output or sys.stdout, highlight=False, soft_wrap=True)
    tasks: dict[str, TaskID] = {}
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(compact=True),
        console=console,
        disable=not console.is_terminal,
    )

    def report(event: Event) -> None:
        if event.kind == "started":
            tasks[event.label] = bars.add_task(event.label, total=None, state="")
        elif event.progress is None:
            message = _MESSAGES[event.kind].format(message=event.message)
            console.print(f"{event.label}: {message}".rstrip(), markup=False)
        else:
            progress = event.progress
            scores = "  ".join(
                f"{name} {value:.1%}" if name == "accuracy" else f"{name} {value:.3f}"
                for name, value in progress["scores"].items()
            )
            speed = f"{progress['samples_per_second']:,.0f} samples/s"
            state = f"epoch {progress['epoch']}/{progress['epochs']}  training {scores}  {speed}"
            step, total = progress["step"], progress["total_steps"]
            bars.update(tasks[event.label], completed=step, total=total, state=state)
            is_end_of_epoch = step * progress["epochs"] % total == 0
            if is_end_of_epoch and not console.is_terminal:
                console.print(f"{event.label}: {state}", markup=False)

    with bars:
        yield report
