"""Base of all subcommands: help, arguments, shell completion, and output as text or JSON."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import shtab
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from stages.params.schema import nearest

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

DATABASE = "data/results.db"
USAGE = 2
"""Exit code of a mistyped command line."""


class UsageError(ValueError):
    """The command line is wrong; the message is one line."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Result of a command: `--json` prints `document`; otherwise the lines and tables in `shown` are printed."""

    document: Any
    shown: Sequence[RenderableType] = ()
    code: int = 0


Argument = tuple[tuple[str, ...], str, dict[str, Any]]


def arg(*flags: str, names: str = "", **options: Any) -> Argument:
    """Declare an argument for `add_argument`; shells complete it with `names`, such as `experiments` or `claims`."""
    return flags, names, options


@dataclass(frozen=True, kw_only=True)
class Command:
    """A subcommand.  `does` is its summary, `takes` lists its arguments, `codes` overrides the usual exit codes.

    `document` describes the keys that `--json` prints; empty if the command has no `--json`.
    """

    does: str
    example: str
    run: Callable[[argparse.Namespace], Answer]
    takes: Callable[[], Sequence[Argument]] = tuple
    codes: dict[int, str] = field(default_factory=dict)
    document: str = ""


class Layout(argparse.HelpFormatter):
    """Wraps descriptions to the terminal's width, but not the epilog, which has several lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """Reports a mistake on one line with the closest name; ends its help with an example and the exit codes."""

    def __init__(self, *, example: str, codes: dict[int, str], description: str, prog: str) -> None:
        lines = [f"  {code}  {meaning}" for code, meaning in sorted(codes.items())]
        super().__init__(
            prog=prog,
            description=description,
            epilog="\n".join(["example:", f"  {example}", "", "exit codes:", *lines]),
            formatter_class=Layout,
        )

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message} (see {self.prog} --help)")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            self.error(f"no {action.metavar or action.dest} {value!r}{nearest(str(value), action.choices)}")

    def refuse_rest(self, rest: Sequence[str]) -> NoReturn:
        """Report the first unknown argument or option."""
        first = rest[0]
        if not first.startswith("-"):
            self.error(f"{first!r} is an unexpected argument")
        self.error(f"no option {first!r}{nearest(first, sorted(self._option_string_actions))}")


SHELLS = ("bash", "zsh")
_NAMES = {
    "bash": r"""
_claimcheck_experiments() {
  compgen -W "$(ls params 2>/dev/null | sed -n 's/\.yaml$//p')" -- "$1"
}
_claimcheck_shown() {
  compgen -W "$(ls params 2>/dev/null | sed -n 's/\.yaml$//p'; sed '1d; s/,.*//' data/claims.csv 2>/dev/null)" -- "$1"
}
_claimcheck_claims() {
  compgen -W "$(sed '1d; s/,.*//' data/claims.csv 2>/dev/null)" -- "$1"
}
_claimcheck_papers() {
  compgen -W "$(sed '1d; s/\..*//' data/claims.csv 2>/dev/null | sort -u)" -- "$1"
}
_claimcheck_profiles() {
  compgen -W "$(sed -n '/^profiles:/,/^[a-z]/s/^  \([a-z0-9-]*\):.*/\1/p' params.yaml 2>/dev/null)" -- "$1"
}
""",
    "zsh": r"""
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_claimcheck_experiments() { compadd -- params/*.yaml(N:t:r) }
_claimcheck_shown() {
  compadd -- params/*.yaml(N:t:r) ${${(f)"$(sed '1d; s/,.*//' data/claims.csv 2>/dev/null)"}}
}
_claimcheck_claims() { compadd -- ${(f)"$(sed '1d; s/,.*//' data/claims.csv 2>/dev/null)"} }
_claimcheck_papers() { compadd -- ${(f)"$(sed '1d; s/\..*//' data/claims.csv 2>/dev/null | sort -u)"} }
_claimcheck_profiles() {
  compadd -- ${(f)"$(sed -n '/^profiles:/,/^[a-z]/s/^  \([a-z0-9-]*\):.*/\1/p' params.yaml 2>/dev/null)"}
}
""",
}
"""Shell functions that complete the names in this clone."""


def script(parser: argparse.ArgumentParser, shell: str) -> Answer:
    """Return the completion script for `shell`."""
    written = shtab.complete(parser, shell=shell, preamble=_NAMES[shell])
    if shell == "zsh":
        # shtab 1.13.0 writes "(*)" for repeatable arguments, which zsh takes for one that excludes all others.
        written = re.sub(r'^( +")\(\*\)::?', r"\1*:", written, flags=re.MULTILINE)
    return Answer(document=None, shown=[written])


PIPED = 80
"""Width in columns if the terminal's is unknown."""
_GAP = 2
"""Columns between columns."""


class Terminal(Console):
    """Writes to stdout without markup; the caller handles broken pipes."""

    def __init__(self) -> None:
        columns = os.environ.get("COLUMNS", "")
        width = None if sys.stdout.isatty() else (int(columns) if columns.isdecimal() else 0) or PIPED
        super().__init__(file=sys.stdout, width=width, markup=False, highlight=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Raise the error again, which rich would turn into an exit."""
        raise


def print_answer(answer: Answer, *, as_json: bool) -> None:
    """Print the answer; lines are wrapped only on a terminal, so that `grep` finds whole lines elsewhere."""
    if as_json:
        is_ascii = not (sys.stdout.encoding or "utf-8").lower().startswith("utf")
        print(json.dumps(answer.document, indent=1, ensure_ascii=is_ascii, allow_nan=False))
        return
    terminal = Terminal()
    for part in answer.shown:
        if isinstance(part, str):  # several lines, such as YAML, aren't wrapped
            is_wrapped = terminal.is_terminal and "\n" not in part
            terminal.print(wrap(part, terminal.width) if is_wrapped else part, soft_wrap=True)
        else:
            terminal.print(part)


def wrap(line: str, width: int) -> str:
    """Wrap `line` between words; indent the rest to the text after a short label, or else by two columns."""
    label = re.match(r"\S+(?: \S+)*?  +", line)
    inner = len(label[0]) if label and len(label[0]) <= width // 3 else 2
    kept = line.replace(" %", "\N{NO-BREAK SPACE}%")
    lines = textwrap.wrap(kept, width, subsequent_indent=" " * inner, break_on_hyphens=False)
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}%", " %")


@dataclass(frozen=True)
class Column:
    """A heading of one or more lines.  If a table is too wide, the highest `rank` is left out first, 0 never."""

    heading: str
    rank: int = 0
    left: bool = False


class TextTable:
    """A table without borders that never cuts a cell; a line below it names the columns that don't fit."""

    def __init__(self, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
        self.columns, self.rows = tuple(columns), rows
        self.widths = [
            max(map(cell_len, (*column.heading.split("\n"), *(row[number] for row in rows))))
            for number, column in enumerate(columns)
        ]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept = list(range(len(self.columns)))
        left_out: list[int] = []
        while sum(self.widths[number] + _GAP for number in kept) - _GAP > options.max_width:
            rank = max(self.columns[number].rank for number in kept)
            if rank == 0:
                break
            left_out += [number for number in kept if self.columns[number].rank == rank]
            kept = [number for number in kept if self.columns[number].rank < rank]
        table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold")
        for column in (self.columns[number] for number in kept):
            table.add_column(column.heading, justify="left" if column.left else "right", no_wrap=True)
        for row in self.rows:
            table.add_row(*(row[number] for number in kept))
        yield table
        if left_out:
            names = ", ".join(" ".join(self.columns[number].heading.split()) for number in sorted(left_out))
            yield Text(f"not in {options.max_width} columns: {names}; --json has all", style="dim")


def open_database() -> Callable[[], Session]:
    """Open the results database; if a clone has only evidence yet, build the database first, as `make serve` does."""
    from stages.results import ResultsUnavailable, open_results  # loads SQLAlchemy

    if Path("data/evidence").is_dir() and not Path(DATABASE).exists():
        print(f"no results here yet: building {DATABASE} from published evidence, about half a minute", file=sys.stderr)
        for stage in ("record",) if Path("data/findings.jsonl").exists() else ("analyse", "record"):
            words = [sys.executable, "-m", f"stages.{stage}"]
            if subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode:
                raise ResultsUnavailable(f"{DATABASE} can't be made: `claimcheck stage {stage}` failed")
    return open_results(DATABASE)


def in_words(seconds: float) -> str:
    """Format a duration: 40 s, 25 min, 3 h."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
