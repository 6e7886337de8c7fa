"""The numbers of the rules for a reader: how wide each margin is and why, how sure each question is answered when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from service.pages.formats import as_confidence, percent
from stages.results import Levels, Rules, levels_of


@dataclass(frozen=True, kw_only=True)
class MarginRow:
    """A kind of claim, how far ours may be from the paper's number and still count as the same, and why."""

    kind: str
    margin: str
    why: str


@dataclass(frozen=True, kw_only=True)
class LevelRow:
    """A question, and for each plan, by its number of replicates, the confidence at each of its looks."""

    question: str
    plans: dict[int, str]


def tell_margins(rules: Rules) -> list[MarginRow]:
    margins = rules.margins
    return [
        MarginRow(
            kind="accuracy or error rate of one model",
            margin=f"{_points(margins.error_points)}, but no more than {name_share(margins.error_share)} "
            "of the paper’s error",
            why="A point is much where few errors are left, so a small error has a smaller margin. "
            "It is never less than the last digit that the paper prints.",
        ),
        MarginRow(
            kind="difference between two models, in accuracy or error or as a ratio",
            margin=f"{name_share(margins.difference_share)} of the printed difference, "
            f"but at least {_points(margins.difference_points)}",
            why=f"Confirming it then means: {_least(margins.difference_share)}. A difference no larger than its margin "
            "can’t be confirmed in size, since none at all would count as the same.",
        ),
        MarginRow(
            kind="two models that are called comparable",
            margin=_points(margins.comparable_points),
            why="No paper says how much it calls comparable. Where one prints larger losses as such, those count, too.",
        ),
        MarginRow(
            kind="change of the logarithm of an error, in nats; the same gain at every level",
            margin=f"{name_share(margins.log_mse_share)} of the printed change",
            why=f"Logarithms scatter little, so more can be asked: {_least(margins.log_mse_share)}.",
        ),
        MarginRow(
            kind="loss of one model",
            margin=f"{name_share(margins.loss_share)} of the paper’s loss",
            why="No paper prints how far its losses scatter, so this is our choice.",
        ),
        MarginRow(
            kind="operations (FLOPs); memory",
            margin=" and ".join(dict.fromkeys(map(name_share, (margins.flops_share, margins.memory_share))))
            + " of the paper’s number",
            why="Conventions of counting differ by a few percent.",
        ),
    ]


def tell_levels(rules: Rules, plans: Iterable[int]) -> list[LevelRow]:
    """`plans`: the numbers of replicates that experiments plan; those with the same looks are told once each."""
    found = {planned: levels_of(rules, planned) for planned in plans}
    questions = {
        "Which of two models is better? (supported, reversed)": "order",
        "Is a number, or the size of a difference, the paper’s? (reproduced)": "same",
        "… where the paper prints its own error": "with_error",
        "Is it another? (not reproduced)": "other",
    }
    return [
        LevelRow(question=question, plans={planned: _looks(levels, name) for planned, levels in found.items()})
        for question, name in questions.items()
    ]


def _looks(levels: Levels, name: str) -> str:
    """As "98.3 % after 3, 96.7 % after 5"."""
    looks: dict[int, float] = getattr(levels, name)
    return ", ".join(f"{as_confidence(value)} after {n}" for n, value in looks.items()) or "not judged"


def name_share(share: float) -> str:
    """Half; a quarter; a tenth; else in percent."""
    return {0.5: "half", 0.25: "a quarter", 0.1: "a tenth"}.get(share, percent(share, 0))


def _least(share: float) -> str:
    return f"ours is at least {percent(1 - share, 0)} and at most {percent(1 + share, 0)} of what is printed"


def _points(fraction: float) -> str:
    return f"{100 * fraction:.2f} pp"
