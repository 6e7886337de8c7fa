"""A subcommand: its help, its arguments, and the answer that it gives to a person or to a program."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from rich.console import RenderableType

from stages.params.nearest import nearest

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


@dataclass(frozen=True, kw_only=True)
class Command:
    """`does` is one sentence.  `add_to` adds the arguments.  `codes`: exit codes that mean something else here.

    `has_json`: with `--json` it prints one document.  What another program reads anyway has no such other form.
    """

    does: str
    example: str
    run: Callable[[argparse.Namespace], Answer]
    add_to: Callable[[argparse.ArgumentParser], None] = lambda parser: None
    codes: dict[int, str] = field(default_factory=dict)
    has_json: bool = True


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
            self.error(f"{first!r} is one argument too many")
        self.error(f"no option {first!r}{nearest(first, sorted(self._option_string_actions))}")
