"""The words of verdicts in plain English, and what came out of all papers in one paragraph."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stages.results import AGAINST_THE_PAPER, FOR_THE_PAPER, Counts, Paper, Status, Tally

MEANINGS: Mapping[Status, str] = {
    Status.REPRODUCED: "We trained the model again, and its number is the paper’s, within a margin fixed beforehand.",
    Status.SUPPORTED: "We trained both models again, and the better one is the one that the paper says.",
    Status.HOLDS: "We computed or counted it: the claim is true.",
    Status.HOLDS_UNDER_READING: "We computed it: the statement is true if its words are read in one way, "
    "and false if they are read in another.",
    Status.NOT_REPRODUCED: "We trained again, and what comes out is not what the paper says, "
    "by more than a margin fixed beforehand.",
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


def sum_up(tallies: Sequence[Tally]) -> str:
    """The state in a paragraph, the outcome first: how many claims hold, what decided them, how many wait for what."""
    claims, whole, grounds = sum(tally.claims for tally in tallies), add(tallies), by_ground(tallies)
    decided = whole.in_favour + whole.against
    if not decided:
        said = ["No claim is decided yet."]
    elif decided == 1:
        said = [f"One claim is decided: it {'holds' if whole.in_favour else 'does not hold'}."]
    else:
        said = [f"{decided} claims are decided: {_outcome(whole)}."]
        by = {ground.what: ground.counts.in_favour + ground.counts.against for ground in grounds}
        said.append(f"{_listed([f'{what} decided {number}' for what, number in by.items() if number])}.")
    for ground in grounds:
        if number := ground.counts.waiting:
            said.append(f"{number} {'waits' if number == 1 else 'wait'} {ground.for_what}.")
    if whole.open:
        said.append(f"For {whole.open} the evidence is not enough yet.")
    papers = f"the {len(tallies)} papers make" if len(tallies) != 1 else "the paper makes"
    others = claims - whole.decidable
    all_of_them = f"In all {papers} {claims} claim{'s' if claims != 1 else ''}"
    rest = "is a setting, repeats" if others == 1 else "are settings, repeat"
    said.append(f"{all_of_them}; {others} {rest} an error or can’t be tested here." if others else f"{all_of_them}.")
    return " ".join(said)


def _listed(parts: Sequence[str]) -> str:
    """As "Training decided 4, computing 64 and counting 27" of "Training decided 4", "Computing decided 64", ..."""
    first, *others = parts
    shortened = [part[0].lower() + part[1:].replace(" decided ", " ") for part in others]
    return " and ".join([", ".join([first, *shortened[:-1]]), *shortened[-1:]])


@dataclass(frozen=True)
class Ground:
    """What decides claims, how many over all papers, and what the others wait for: in a clause, and as a label."""

    what: str
    counts: Counts
    for_what: str
    waits: str


def by_ground(tallies: Sequence[Tally]) -> list[Ground]:
    """Training, computing and counting, in this order."""
    return [
        Ground(
            "Training the models again",
            add([tally.trained for tally in tallies]),
            "for models trained as long as the paper’s",
            "waiting for full-length training",
        ),
        Ground(
            "Computing without training",
            add([tally.computed for tally in tallies]),
            "to be computed, which make repro does without training a model",
            "not computed here yet",
        ),
        Ground("Counting in the data", add([tally.data for tally in tallies]), "to be counted", "not counted here yet"),
    ]


def add(counts: Sequence[Counts]) -> Counts:
    names = ("decidable", "in_favour", "against", "open", "waiting")
    return Counts(**{name: sum(getattr(item, name) for item in counts) for name in names})


def _outcome(counts: Counts) -> str:
    """As "60 hold, 4 do not"."""
    favour = "holds" if counts.in_favour == 1 else "hold"
    against = ("does not" if counts.against == 1 else "do not") + ("" if counts.in_favour else " hold")
    parts = ((counts.in_favour, favour), (counts.against, against))
    return ", ".join(f"{count} {word}" for count, word in parts if count)
