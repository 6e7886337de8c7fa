"""Answers on a terminal: tables that fit its width, whole lines of text, or one JSON document.

Where stdout is no terminal, the width is 80 columns, or `COLUMNS`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from stages.commands.command import Answer

PIPED = 80
"""Columns where nobody says how many there are."""
_GAP = 2
"""Columns between columns."""


class Terminal(Console):
    """Writes to stdout without markup; a reader that has gone away is the caller's to handle."""

    def __init__(self) -> None:
        told = os.environ.get("COLUMNS", "")
        width = None if sys.stdout.isatty() else (int(told) if told.isdecimal() else 0) or PIPED
        super().__init__(file=sys.stdout, width=width, markup=False, highlight=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Raise the error that rich is handling when it calls this."""
        raise


def print_answer(answer: Answer, *, as_json: bool) -> None:
    """Print tables within the width; sentences wrapped on a terminal, and whole elsewhere, for `grep`."""
    if as_json:
        is_ascii = not (sys.stdout.encoding or "utf-8").lower().startswith("utf")
        print(json.dumps(answer.document, indent=1, ensure_ascii=is_ascii, allow_nan=False))
        return
    terminal = Terminal()
    for part in answer.shown:
        if isinstance(part, str):  # what has several lines, as YAML, stays as it is
            is_wrapped = terminal.is_terminal and "\n" not in part
            terminal.print(wrap(part, terminal.width) if is_wrapped else part, soft_wrap=True)
        else:
            terminal.print(part)


def wrap(line: str, width: int) -> str:
    """`line` broken between words, and continued below the text behind a label and its blanks, else two columns in."""
    label = re.match(r"\S+(?: \S+)*?  +", line)
    inner = len(label[0]) if label and len(label[0]) <= width // 3 else 2
    kept = line.replace(" %", "\N{NO-BREAK SPACE}%")
    lines = textwrap.wrap(kept, width, subsequent_indent=" " * inner, break_on_hyphens=False)
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}%", " %")


@dataclass(frozen=True)
class Column:
    """A heading, which may have several lines.  Where there is little room, the highest `rank` goes first, 0 never."""

    heading: str
    rank: int = 0
    left: bool = False

    def width(self, cells: Iterable[str]) -> int:
        return max(map(cell_len, (*self.heading.split("\n"), *cells)))


class Rows:
    """A table without lines and with whole cells; a line below it names the columns that don't fit the width."""

    def __init__(self, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
        self.columns, self.rows = tuple(columns), rows
        self.widths = [column.width(row[number] for row in rows) for number, column in enumerate(columns)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept = list(range(len(self.columns)))
        left_out: list[int] = []
        while sum(self.widths[number] + _GAP for number in kept) - _GAP > options.max_width:
            rank = max(self.columns[number].rank for number in kept)
            if rank == 0:
                break
            left_out += [number for number in kept if self.columns[number].rank == rank]
            kept = [number for number in kept if self.columns[number].rank < rank]
        yield self._table(kept)
        if left_out:
            names = ", ".join(" ".join(self.columns[number].heading.split()) for number in sorted(left_out))
            yield Text(f"not in {options.max_width} columns: {names}; --json has all", style="dim")

    def _table(self, kept: Sequence[int]) -> Table:
        table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
        for column in (self.columns[number] for number in kept):
            table.add_column(column.heading, justify="left" if column.left else "right", no_wrap=True)
        for row in self.rows:
            table.add_row(*(row[number] for number in kept))
        return table


def in_words(seconds: float) -> str:
    """A duration as a person says it."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
