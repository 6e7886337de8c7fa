"""A subcommand: its help, its arguments, its completion by a shell, and its answer to a person or to a program."""

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
    """A mistyped word; the message is one line."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """`document` is what `--json` prints, `shown` what a person reads: lines and tables."""

    document: Any
    shown: Sequence[RenderableType] = ()
    code: int = 0


Argument = tuple[tuple[str, ...], str, dict[str, Any]]


def arg(*flags: str, names: str = "", **options: Any) -> Argument:
    """An argument as `add_argument` takes it.

    A shell completes it with the `names` of a kind: `experiments`, `shown`, `claims`, `papers` or `profiles`.
    """
    return flags, names, options


@dataclass(frozen=True, kw_only=True)
class Command:
    """`does` is one sentence.  `takes` lists the arguments.  `codes`: exit codes that mean something else here.

    `document`: the keys of what `--json` prints; empty if there is no such form, because a program reads the other one.
    """

    does: str
    example: str
    run: Callable[[argparse.Namespace], Answer]
    takes: Callable[[], Sequence[Argument]] = tuple
    codes: dict[int, str] = field(default_factory=dict)
    document: str = ""


class Layout(argparse.HelpFormatter):
    """Fills a sentence to the width of the terminal; leaves the lines of the epilog as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """Answers a mistake with one line and the nearest name; prints an example and the exit codes below its help."""

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
        """Say what is wrong with the first word that no argument takes."""
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
"""Functions that list what this clone has: experiments, experiments and claims, claims, papers, profiles."""


def script(parser: argparse.ArgumentParser, shell: str) -> Answer:
    """The script that a shell sources."""
    written = shtab.complete(parser, shell=shell, preamble=_NAMES[shell])
    if (
        shell == "zsh"
    ):  # shtab 1.13.0 writes "(*)" for arguments that repeat: zsh reads that as one, and excludes others
        written = re.sub(r'^( +")\(\*\)::?', r"\1*:", written, flags=re.MULTILINE)
    return Answer(document=None, shown=[written])


PIPED = 80
"""Width in columns if the terminal's is unknown."""
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


class TextTable:
    """A table without lines and with whole cells; a line below it names the columns that don't fit the width."""

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
    """Open the results; in a clone that has evidence and no database yet, make it first, as `make serve` does."""
    from stages.results import ResultsUnavailable, open_results  # brings the database

    if Path("data/evidence").is_dir() and not Path(DATABASE).exists():
        print(
            f"no results here yet: making {DATABASE} from the published evidence, about half a minute", file=sys.stderr
        )
        for stage in ("record",) if Path("data/findings.jsonl").exists() else ("analyse", "record"):
            words = [sys.executable, "-m", f"stages.{stage}"]
            if subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode:
                raise ResultsUnavailable(f"{DATABASE} can't be made: `python -m stages.{stage}` failed")
    return open_results(DATABASE)


def in_words(seconds: float) -> str:
    """A duration as a person says it."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
