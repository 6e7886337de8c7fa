"""The words of verdicts in plain English, and what came out of all papers in one paragraph."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stages.results import AGAINST_THE_PAPER, FOR_THE_PAPER, Counts, Paper, Status, Tally

MEANINGS: Mapping[Status, str] = {
    Status.REPRODUCED: "We trained the model again, and its number is the paper’s, within a margin.",
    Status.SUPPORTED: "We trained both models again, and the better one is the one that the paper says.",
    Status.HOLDS: "We computed or counted it: the claim is true.",
    Status.HOLDS_UNDER_READING: "We computed it: the statement is true if its words are read in one way, "
    "and false if they are read in another.",
    Status.NOT_REPRODUCED: "We trained again, and what comes out is not what the paper says, by more than a margin.",
    Status.REVERSED: "We trained both models again, and the better one is the other one.",
    Status.FAILS: "We computed or counted it: the claim is false however its words are read.",
    Status.CONTRADICTED: "The claim can’t be true together with other numbers of the same paper, or with physics.",
    Status.INCONCLUSIVE: "Trained again, but the runs so far leave either answer possible.",
    Status.UNRESOLVED: "Trained again as often as planned, and neither model is clearly the better one.",
    Status.UNDECIDABLE: "Trained again, but results scatter more than the margin: no number of runs would decide it.",
    Status.AGREES: "A shortened run points the paper’s way. It decides nothing.",
    Status.DISAGREES: "A shortened run points the other way. It decides nothing.",
    Status.AS_PRINTED: "A setting, not a result: we train with what the paper prints.",
    Status.DEVIATES: "A setting, not a result: we train with something else, and say why.",
    Status.SHOWN: "There is no number to test. Our results are drawn, and you judge.",
    Status.NOT_TESTED: "Neither a training nor a computation decides it yet.",
    Status.OTHER_HARDWARE: "A time or a speed on a device that we don’t have. "
    "Ours, and its ratio between two models, may stand beside it; neither decides.",
}
SIDES: Mapping[str, tuple[Status, ...]] = {
    "For the paper": FOR_THE_PAPER,
    "Against it": AGAINST_THE_PAPER,
    "Open": (Status.INCONCLUSIVE, Status.UNRESOLVED, Status.UNDECIDABLE, Status.AGREES, Status.DISAGREES),
    "No test": (Status.AS_PRINTED, Status.DEVIATES, Status.SHOWN),
    "Waiting": (Status.NOT_TESTED, Status.OTHER_HARDWARE),
}
"""Every word once, in the order of the legend."""

TRAINING = "Training the models again"
_ARXIV = re.compile(r"arXiv[: ]\s*(\d{4}\.\d{4,5}(?:v\d+)?)")


def meaning_of(status: str) -> str:
    return MEANINGS[Status(status)]


def address_of(paper: Paper) -> str | None:
    """The address where the paper can be read, if its title says so."""
    found = _ARXIV.search(paper.title)
    return f"https://arxiv.org/abs/{found[1]}" if found else None


def date_of(paper: Paper) -> str:
    """As ", 2024-03, arXiv 2403.02411", since such a number begins with year and month; "" without one."""
    found = _ARXIV.search(paper.title)
    return f", 20{found[1][:2]}-{found[1][2:4]}, arXiv {found[1]}" if found else ""


def sum_up(tallies: Sequence[Tally], trained_on: Sequence[str] = ()) -> str:
    """The state, a sentence for each ground, the hardest first: what it decided, and how many claims wait for what.

    `trained_on`: the data sets on which trainings have decided a claim.
    """
    said: list[str] = []
    for ground in by_ground(tallies):
        counts = ground.counts
        decided = counts.in_favour + counts.against
        where = f", all on {' and '.join(trained_on)}" if trained_on and ground.what == TRAINING else ""
        number = f"{decided} claim{'s' if decided != 1 else ''}" if not said else f"{decided}"
        outcome = f"has decided {number}{where}: {_outcome(counts)}" if decided else "has decided no claim yet"
        waits = "waits" if counts.waiting == 1 else "wait"
        waiting = f"; {counts.waiting} {waits} {ground.for_what}" if counts.waiting else ""
        if counts.decidable:
            said.append(f"{ground.what} {outcome}{waiting}.")
    return " ".join(said)


def add_up(tallies: Sequence[Tally]) -> str:
    """What the bars of all grounds leave out."""
    claims, whole = sum(tally.claims for tally in tallies), add(tallies)
    said = []
    if whole.open:
        said.append(f"For {whole.open} claim{'s' if whole.open != 1 else ''} the evidence is not enough yet.")
    if number := sum(tally.unconfirmable for tally in tallies):
        said.append(f"Of those that wait, the planned runs can’t confirm {number}, even where the paper is right.")
    papers = f"the {len(tallies)} papers make" if len(tallies) != 1 else "the paper makes"
    others = claims - whole.decidable
    all_of_them = f"In all {papers} {claims} claim{'s' if claims != 1 else ''}"
    rest = "is a setting, repeats" if others == 1 else "are settings, repeat"
    said.append(f"{all_of_them}; {others} {rest} an error or can’t be tested here." if others else f"{all_of_them}.")
    return " ".join(said)


@dataclass(frozen=True)
class Ground:
    """What decides claims, how many, and what the others wait for: in a clause, and as what can be said of a number.

    `read`: those of the claims in favour that hold only if their words are read in one way.
    """

    what: str
    counts: Counts
    read: int
    for_what: str
    waits: str


def by_ground(tallies: Sequence[Tally]) -> list[Ground]:
    """Training, computing and counting, in this order."""

    def read(basis: str) -> int:
        return sum(tally.by_basis.get(basis, {}).get(Status.HOLDS_UNDER_READING, 0) for tally in tallies)

    return [
        Ground(
            TRAINING,
            add([tally.trained for tally in tallies]),
            read("results"),
            "for models trained as long as the paper’s",
            "waiting for full-length training",
        ),
        Ground(
            "Computing without training",
            add([tally.computed for tally in tallies]),
            read("finding"),
            "to be computed, which make repro does without training a model",
            "not computed here yet",
        ),
        Ground(
            "Counting in the data",
            add([tally.data for tally in tallies]),
            read("params"),
            "to be counted",
            "not counted here yet",
        ),
    ]


def add(counts: Sequence[Counts]) -> Counts:
    names = ("decidable", "in_favour", "against", "open", "waiting")
    return Counts(**{name: sum(getattr(item, name) for item in counts) for name in names})


def _outcome(counts: Counts) -> str:
    """As "60 hold, 4 do not", or "all hold"."""
    if not counts.against and counts.in_favour > 1:
        return "all hold"
    favour = "holds" if counts.in_favour == 1 else "hold"
    against = ("does not" if counts.against == 1 else "do not") + ("" if counts.in_favour else " hold")
    parts = ((counts.in_favour, favour), (counts.against, against))
    return ", ".join(f"{count} {word}" for count, word in parts if count)
