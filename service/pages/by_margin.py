"""Draws how a verdict depends on its margin, as a strip and a sentence, with the chance of the margin or the sign."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from service.pages.formats import percent
from service.pages.planning import distance
from service.pages.wording import side_of
from stages.results import JudgedClaim, Status

WIDTH = 360
"""Width of the strip, in the units of its drawing."""
CLEAR = 44
"""The least distance between two labels."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A stretch of margins with one status, in its colour, from `x` over `width`; `label`: where it begins."""

    status: str
    side: str
    x: float
    width: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Strip:
    """An axis of margins with the verdict by each; `at` and `in_use` are the margin in use, as a place and a label."""

    parts: tuple[Part, ...]
    at: float
    in_use: str
    sentence: str

    @property
    def legend(self) -> dict[str, str]:
        """`{status: colour}`, each once."""
        return {part.status: part.side for part in self.parts}


def strip_of(judged: JudgedClaim) -> Strip | None:
    """The strip of a verdict against a margin, or of a gain's size; None if no margin would change the verdict."""
    claim, verdict = judged.claim, judged.verdict
    size = verdict.size or {}
    stretches, margin = verdict.by_margin or size.get("by_margin"), verdict.margin or size.get("margin")
    if not stretches or not margin:
        return None
    starts = [stretch["start"] for stretch in stretches]
    scale = WIDTH / (1.25 * max(starts[-1], margin))
    parts, free, told = [], 0.0, []
    for stretch, (start, end) in zip(stretches, itertools.pairwise([*starts, None]), strict=True):
        x = scale * start
        label = distance(start, claim) if start and x >= free else ""
        free = x + CLEAR if label else free
        status = stretch["status"].removesuffix(" at this margin")
        side = "waiting" if stretch["status"] == Status.UNDECIDABLE else side_of(stretch["status"])
        width = (WIDTH if end is None else scale * end) - x
        parts.append(Part(status=status, side=side, x=round(x, 1), width=round(width, 1), label=label))
        upto = "on" if end is None else f"to {distance(end, claim)}"
        ends = f"from {distance(start, claim)} {upto}" if start else f"below {distance(end, claim)}"
        told.append(f"{status} {ends}")
    of = "Its size, by margin" if verdict.size and not verdict.by_margin else "By margin"
    in_use = distance(margin, claim)
    return Strip(
        parts=tuple(parts),
        at=round(scale * margin, 1),
        in_use=in_use,
        sentence=f"{of}: {', '.join(told)}. The margin in use is {in_use}.",
    )


def tell_chance_of_truth(judged: JudgedClaim) -> str:
    """The posterior chance that a claim's truth is as claimed, in a sentence; "" without one."""
    claim, verdict = judged.claim, judged.verdict
    size = (verdict.size or {}).get("posterior")
    told = []
    if verdict.posterior is not None:
        event = {
            "equivalence": "the model is worse by no more than the margin",
            "uniform": f"no two gains by {claim.factor} are further apart than the margin",
        }.get(claim.kind, "the truth lies within the margin" if verdict.margin else "the truth is on the claimed side")
        told.append(f"that {event} is {_chance(verdict.posterior)}")
    if size is not None:
        told.append(f"that the gain is as large as printed, within the margin, is {_chance(size)}")
    return f"By our replicates and a flat prior, the chance {' and '.join(told)}. This decides nothing." if told else ""


def _chance(chance: float) -> str:
    if chance > 0.999:
        return "more than 99.9 %"
    return "less than 0.1 %" if chance < 0.001 else percent(chance, 0 if 0.01 <= chance <= 0.99 else 1)
