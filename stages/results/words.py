"""The four words that people read for a verdict; the statuses stay in the API, and each gives a reason."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from stages.verdicts import Status


class Word(StrEnum):
    """A verdict as a headline."""

    HOLDS = "holds"
    FAILS = "fails"
    OPEN = "open"
    NOT_TESTED = "not tested"


ICONS: Mapping[Word, str] = {Word.HOLDS: "✓", Word.FAILS: "✗", Word.OPEN: "?", Word.NOT_TESTED: "○"}
WORD_OF: Mapping[Status, Word] = {
    Status.REPRODUCED: Word.HOLDS,
    Status.SUPPORTED: Word.HOLDS,
    Status.HOLDS: Word.HOLDS,
    Status.NOT_REPRODUCED: Word.FAILS,
    Status.REVERSED: Word.FAILS,
    Status.FAILS: Word.FAILS,
    Status.CONTRADICTED: Word.FAILS,
    Status.HOLDS_UNDER_READING: Word.OPEN,
    Status.INCONCLUSIVE: Word.OPEN,
    Status.UNRESOLVED: Word.OPEN,
    Status.UNDECIDABLE: Word.OPEN,
    Status.AGREES: Word.OPEN,
    Status.DISAGREES: Word.OPEN,
    Status.SHOWN: Word.NOT_TESTED,
    Status.AS_PRINTED: Word.NOT_TESTED,
    Status.DEVIATES: Word.NOT_TESTED,
    Status.OTHER_HARDWARE: Word.NOT_TESTED,
    Status.NOT_TESTED: Word.NOT_TESTED,
}
"""The only table from a status to its word: a claim that depends on how it is read neither holds nor fails."""
