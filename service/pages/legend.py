"""The words of verdicts in plain English."""

from __future__ import annotations

import re
from collections.abc import Mapping

from stages.results import AGAINST_THE_PAPER, FOR_THE_PAPER, Paper, Status

MEANINGS: Mapping[Status, str] = {
    Status.REPRODUCED: "We trained the model again, and its number is the paper’s, within the margin.",
    Status.SUPPORTED: "We trained both models again, and the better one is the one that the paper says.",
    Status.HOLDS: "We computed or counted it: the claim is true.",
    Status.HOLDS_UNDER_READING: "The claim is true only if its words are read in one way, "
    "and false if they are read in another.",
    Status.NOT_REPRODUCED: "We trained again, and what comes out is not what the paper says, by more than the margin.",
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
    "For the paper": tuple(status for status in FOR_THE_PAPER if status is not Status.HOLDS_UNDER_READING),
    "True as read in one way": (Status.HOLDS_UNDER_READING,),
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
