"""Names that were mistyped on a command line.  Standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_MANY = 30
"""Known names that a message has room for."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a line about `name`: the closest known name or, where none is close, those that are known."""
    known = list(known)
    if close := get_close_matches(name, known, n=1):
        return f"; did you mean {close[0]}?"
    more = f" and {len(known) - _MANY} more" if len(known) > _MANY else ""
    return f"; known: {', '.join(known[:_MANY])}{more}" if known else ""
