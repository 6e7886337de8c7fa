"""A subcommand: its help, its arguments, its completion by a shell, and its answer to a person or to a program."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import shtab
from rich.console import RenderableType

from stages.params.schema import nearest

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


def names(action: argparse.Action, kind: str) -> None:
    """Complete this argument with the names of a kind: `experiments`, `shown`, `claims`, `papers` or `profiles`."""
    action.complete = dict.fromkeys(SHELLS, f"_claimcheck_{kind}")  # type: ignore[attr-defined]  # shtab reads it


def script(parser: argparse.ArgumentParser, shell: str) -> Answer:
    """The script that a shell sources."""
    written = shtab.complete(parser, shell=shell, preamble=_NAMES[shell])
    if (
        shell == "zsh"
    ):  # shtab 1.13.0 writes "(*)" for arguments that repeat: zsh reads that as one, and excludes others
        written = re.sub(r'^( +")\(\*\)::?', r"\1*:", written, flags=re.MULTILINE)
    return Answer(document=None, shown=[written])
