"""How far a `dvc repro` is, by the log that dvc and its stages write: a live line, or one line a stage."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.live import Live
from rich.text import Text

from stages.commands.terminal import Terminal, in_words
from stages.scheduling.counting import StageTimes, read_count

_STARTS = re.compile(rb"Running stage '(.+)':")
_SKIPPED = re.compile(rb"(?:Stage )?'(.+)' (?:didn't change, skipping|is cached - skipping run, checking out outputs)")
_LAST_LINES = 20
"""Of a stage that was interrupted."""


class LogView:
    """Reads the log as it grows; `stages` are expected, each with its weight."""

    def __init__(self, log: Path, count: Path, stages: Mapping[str, float]) -> None:
        self.log, self.count, self.total = log, count, len(stages)
        self._times = StageTimes(stages)
        self.started = time.monotonic()
        self.stage, self.seen, self.ran = "", 0, 0
        self.is_interrupted = False
        self.ended: list[str] = []
        self._read = self._stage_from = 0
        self._stage_started, self._is_open = self.started, False
        self._terminal = Terminal()

    def interrupt(self) -> None:
        self.is_interrupted = True

    @contextmanager
    def shown(self) -> Iterator[None]:
        """A live line while this is open, on a terminal."""
        if not self._terminal.is_terminal:
            yield
            return
        line = Live(
            console=self._terminal,
            get_renderable=self._line,
            transient=True,
            refresh_per_second=4,
            redirect_stderr=False,
        )
        with line:
            yield

    def look(self) -> None:
        """Read what has been written since, by whole lines."""
        with self.log.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._take(line.rstrip(), self._read)
                self._read += len(line)

    def _take(self, line: bytes, place: int) -> None:
        if match := _STARTS.fullmatch(line):
            self._start(match[1].decode(), place)
        elif match := _SKIPPED.fullmatch(line):
            self._end()
            self._times.skip(match[1].decode())
            self.seen += 1
            self._stage_from = place + len(line) + 1
        elif line.startswith(b"Updating lock file"):
            self._end()

    def _start(self, stage: str, place: int) -> None:
        """A stage begins, whose output begins at `place` of the log."""
        self._end()
        self._stage_from = place
        self.stage, self._stage_started, self._is_open = stage, time.monotonic(), True
        self._times.start(stage)
        self.seen += 1
        self.ran += 1
        if not self._terminal.is_terminal:
            print(self._position(), end="", flush=True)

    def _end(self) -> None:
        """End the line that the stage's start began: its runs and how long it took."""
        if self._is_open:
            self._times.end(time.monotonic() - self._stage_started)
            self.ended.append(self.stage)
        if self._is_open and not self._terminal.is_terminal:
            count = read_count(self.count, self.stage)
            runs = f"{count.done} of {count.runs} runs, " if count else ""
            print(f": {runs}{in_words(time.monotonic() - self._stage_started)}", flush=True)
        self._is_open = False

    def _position(self) -> str:
        return f"stage {self.seen} of {self.total}, {self.stage}"

    def _line(self) -> Text:
        if not self.stage:
            words = "looking for what has changed"
        else:
            words = self._position()
            count = read_count(self.count, self.stage) if self._is_open else None
            if count:
                words += f", {count.done} of {count.runs} runs"
            own = count.left_seconds if count else None
            left = self._times.left(time.monotonic() - self._stage_started, own)
            if left is not None:
                words += f", about {in_words(left)} left"
        return Text(f"{words} ({in_words(time.monotonic() - self.started)} so far)", no_wrap=True, overflow="ellipsis")

    def success(self) -> list[str]:
        self._end()
        if not self.ran:
            return [f"all {self.seen} stages are up to date"]
        unchanged = f", {self.seen - self.ran} unchanged" if self.seen > self.ran else ""
        took = in_words(time.monotonic() - self.started)
        return [f"{self.ran} stages run{unchanged}, in {took}; every line of theirs: {self.log}"]

    def failure(self, code: int) -> list[str]:
        """The output of the stage that failed, whole, and what dvc says of it."""
        self._end()
        with self.log.open("rb") as file:
            file.seek(self._stage_from)
            lines = file.read().decode(errors="replace").splitlines()
        if self.is_interrupted:
            lines = [line for line in lines if not line.startswith("ERROR: failed to")][-_LAST_LINES:]  # DVC's words
        what = "stopped" if self.is_interrupted else "failed"
        where = f"{self._position()}, {what}" if self.stage else f"dvc {what}"
        return [*lines, f"{where} (exit code {code}); every line: {self.log}; the next `make repro` goes on from here"]
