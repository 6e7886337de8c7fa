"""The result of analysing a claim without training: an identity, a count, a ratio, a theorem, an inconsistency.

Papers return a list of these (`stages.papers.<paper>.findings`); `stages.claims` compares them with what the paper
prints.  A text can often be read in more than one way.  So a finding has several readings, at least the strictest and
the most charitable one, and counts against the paper only if the claim is false under all of them.  The texts are in
`findings.yaml` next to the modules that compute the findings.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

# holds: computed and as stated.  holds under a reading: under at least one, but not under every one.
# fails: false under every reading.  contradicted: fails, and the paper's own numbers exclude the claim.
FindingStatus = Literal["holds", "holds under a reading", "fails", "contradicted"]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One way to read the claim: a short `name`, and `text`, the assumed meaning and why the words allow it.

    `ours` is the number under this reading, in the claim's unit, if there is one; else `brief` may sum up the result.
    """

    name: str
    text: str
    holds: bool
    ours: float | None = None
    brief: str | None = None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """`claim` is an id of the claims file; `computed` are numbers by name, in the units of their names.

    A claim with only one reading `holds` or doesn't; all others are decided by their `readings` alone.
    `contradicted`: if no reading holds, the paper's own numbers exclude the claim.  `explanation` says in one or two
    sentences how the numbers were computed and why they give the status.  `ours` is the number to compare with the
    paper's, in the claim's unit, if there is one.  Findings with the same `error` are one mistake in several places
    of the paper and count once.

    Raises:
        ValueError: both `holds` and readings are given, or neither.
    """

    claim: str
    holds: bool | None = None
    contradicted: bool = False
    computed: dict[str, float]
    explanation: str
    ours: float | None = None
    readings: tuple[Reading, ...] = ()
    error: str | None = None

    def __post_init__(self) -> None:
        if (self.holds is None) is not bool(self.readings):
            raise ValueError(f"{self.claim} needs either readings or a single answer: holds={self.holds}")

    @property
    def status(self) -> FindingStatus:
        held = [reading.holds for reading in self.readings] if self.readings else [bool(self.holds)]
        if all(held):
            return "holds"
        if any(held):
            return "holds under a reading"
        return "contradicted" if self.contradicted else "fails"


class Statements:
    """Texts of a paper's findings: `findings.yaml` in the folder of `module`, a module's `__file__`.

    `{<claim, or a pattern of claims>: {readings: [{name, text, brief}], explanation}}`; a claim without readings can be
    read in only one way.  Texts are templates of `str.format`, filled with computed and given numbers.
    """

    def __init__(self, module: str) -> None:
        text = Path(module).with_name("findings.yaml").read_text(encoding="utf-8")
        self._words: dict[str, dict[str, Any]] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))

    def __call__(
        self,
        claim: str,
        *held: bool | tuple[bool, float],
        computed: dict[str, float],
        contradicted: bool = False,
        ours: float | None = None,
        error: str | None = None,
        **numbers: object,
    ) -> Finding:
        """Return the finding on `claim`.  `held` says whether each reading holds, with its number if it has one.

        `numbers` fill the templates in addition to `computed`; the other arguments are those of `Finding`.
        """
        words = next(words for pattern, words in self._words.items() if fnmatch.fnmatchcase(claim, pattern))
        numbers |= computed
        pairs = [one if isinstance(one, tuple) else (one, None) for one in held]
        readings = (
            [
                Reading(**{name: text.format(**numbers) for name, text in reading.items()}, holds=holds, ours=own)
                for reading, (holds, own) in zip(words["readings"], pairs, strict=True)
            ]
            if "readings" in words
            else []
        )
        return Finding(
            claim=claim,
            holds=None if readings else all(holds for holds, _ in pairs),
            contradicted=contradicted,
            computed=computed,
            explanation=words["explanation"].format(**numbers),
            ours=ours,
            readings=tuple(readings),
            error=error,
        )


def prints_as(computed: float, printed: float, unit: float, margin: float = 0.0) -> bool:
    """True if `computed` is the printed number: within half a unit of its last place, or the `margin` of the rules."""
    return abs(computed - printed) <= max(unit / 2 * (1 + 1e-12), margin)
