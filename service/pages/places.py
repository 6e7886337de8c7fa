"""Where a paper makes its claims, in the order of its page: tables, figures, the text, then what has no number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stages.results import JudgedClaim, ground_of

IN_THE_TEXT = "In the text"
FEW = 3  # so many claims have a heading of their own

_FLOAT = re.compile(r"\b(Table|Figure)s? (\d+)")
_SECTION = re.compile(r"\bsections? (\d+(?:\.\d+)*)")


class Anchor(NamedTuple):
    """What a place is found by: `order` is 0 of tables, 1 of figures, 2 of sections, 3 of what has no number."""

    order: int
    numbers: tuple[int, ...]
    title: str


@dataclass(frozen=True)
class Parts:
    """A paper's claims, each once: `results` by their place, then what was computed, counted in the data, set."""

    results: dict[str, list[JudgedClaim]]
    computed: list[JudgedClaim]
    counted: list[JudgedClaim]
    settings: list[JudgedClaim]


def take_apart(judged: Sequence[JudgedClaim]) -> Parts:
    """Sort a paper's claims into the parts of its page; a model's printed number is a result, whatever decides it."""
    parts: dict[str, list[JudgedClaim]] = {"results": [], "computed": [], "counted": [], "settings": []}
    for row in judged:
        parts[_part_of(row)].append(row)
    return Parts(group_by_place(parts["results"]), parts["computed"], parts["counted"], parts["settings"])


def _part_of(row: JudgedClaim) -> str:
    if row.claim.kind == "setup":
        return "settings"
    if ground_of(row.claim, row.verdict) == "data":
        return "counted"
    is_of_a_model = row.claim.kind == "value" and row.claim.arm is not None
    return "computed" if row.verdict.basis == "finding" and not is_of_a_model else "results"


def anchor_of(place: str) -> Anchor:
    """The table or figure that a place names, else its section, else its first words."""
    if found := _FLOAT.search(place):
        kind, number = found.groups()
        return Anchor(("Table", "Figure").index(kind), (int(number),), f"{kind} {number}")
    if found := _SECTION.search(place):
        return Anchor(2, tuple(map(int, found[1].split("."))), f"Section {found[1]}")
    first = place.partition(",")[0]
    return Anchor(2 if first == "abstract" else 3, (), first[0].upper() + first[1:])


def group_by_place(judged: Sequence[JudgedClaim]) -> dict[str, list[JudgedClaim]]:
    """`{title: claims}` in the page's order; passages of the text with few claims are one group, the last.

    Where claims of one table stand at several places, "Table 1" and "section 5, Table 1", they are one group.
    """
    groups: dict[Anchor, list[JudgedClaim]] = {}
    for row in judged:
        groups.setdefault(anchor_of(row.claim.place), []).append(row)
    ordered = sorted(groups, key=lambda anchor: anchor[:2])  # stable: what has no number keeps the paper's order
    scattered = [anchor for anchor in ordered if anchor.order >= 2 and len(groups[anchor]) < FEW]
    if len(scattered) == 1:
        scattered = []
    found = {_title(anchor, groups[anchor]): groups[anchor] for anchor in ordered if anchor not in scattered}
    if scattered:
        found[IN_THE_TEXT] = [row for anchor in scattered for row in groups[anchor]]
    return found


def _title(anchor: Anchor, rows: Sequence[JudgedClaim]) -> str:
    """The place as the claims have it if all have the same and it begins with what it is found by; else the latter."""
    (place, *others) = {row.claim.place for row in rows}
    is_whole = not others and place[:6].lower() == anchor.title[:6].lower()
    return place[0].upper() + place[1:] if is_whole else anchor.title
