"""Completion of commands, options and names for a shell, written by shtab."""

from __future__ import annotations

import argparse
import re

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
