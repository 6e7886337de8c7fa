"""Completion of commands, options and names for a shell, written by shtab."""

from __future__ import annotations

import argparse

import shtab

from stages.commands.command import Answer

SHELLS = ("bash", "zsh")
_NAMES = {
    "bash": r"""
_claimcheck_experiments() {
  compgen -W "$(ls params 2>/dev/null | sed -n 's/\.yaml$//p')" -- "$1"
}
_claimcheck_shown() {
  compgen -W "$(ls params 2>/dev/null | sed -n 's/\.yaml$//p'; sed '1d; s/,.*//' data/claims.csv 2>/dev/null)" -- "$1"
}
""",
    "zsh": r"""
_claimcheck_experiments() { compadd -- params/*.yaml(N:t:r) }
_claimcheck_shown() {
  compadd -- params/*.yaml(N:t:r) ${${(f)"$(sed '1d; s/,.*//' data/claims.csv 2>/dev/null)"}}
}
""",
}
"""Functions that list what this clone has: names of experiments, and of experiments and claims."""


def names(action: argparse.Action, kind: str) -> None:
    """Complete this argument with the names of a kind: `experiments` or `shown`."""
    action.complete = dict.fromkeys(SHELLS, f"_claimcheck_{kind}")  # type: ignore[attr-defined]  # shtab reads it


def script(parser: argparse.ArgumentParser, shell: str) -> Answer:
    """The script that a shell sources."""
    return Answer(document=None, shown=[shtab.complete(parser, shell=shell, preamble=_NAMES[shell])])
