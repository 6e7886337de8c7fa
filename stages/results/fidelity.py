"""How faithful a result is to what its paper prints, in the words that stand beside its numbers everywhere."""

from __future__ import annotations

import re
from typing import Protocol


def describe_fidelity(
    provenance: str | None, profile: str | None, cut: str | None, test_images: int = 0, excluded_test_images: int = 0
) -> str:
    """One plain sentence on how faithful a result is; scored on `test_images`, without the excluded ones."""
    if provenance is None:
        return "not run yet"
    if provenance == "embedded":
        return "placeholder data: shows that the pipeline runs, says nothing about the claim"
    data = "official data" if provenance == "full" else "part of the official data"
    if excluded_test_images:
        lacking = f"{excluded_test_images:,} of {test_images + excluded_test_images:,} test images"
        data += f" without {lacking}, which our source lacks"
    if cut:
        return f"{data}, in a {kind_of_run(cut)} ({cut}): a first look, not a verdict"
    return f"full-length training on {data} (profile {profile})"


def cut_of_each(cut: str) -> str:
    """How each run departs from the printed protocol, without how many runs there were of how many once planned.

    An evidence line keeps the plan of its day.
    """
    return _SHARE.sub("", cut)


def cut_of_all(cut: str, replicates: int, planned: int) -> str:
    """`cut` of runs that there are `replicates` of, of as many as are `planned` today."""
    each = cut_of_each(cut)
    if each == cut or replicates >= planned:
        return each
    return f"{each}{', ' if each else ''}{replicates} of {planned} replicates"


_SHARE = re.compile(r"(, |^)\d+ of \d+ replicates$")


def kind_of_run(cut: str) -> str:
    """What a run is that departs from the printed protocol by `cut`, in the words of `describe_cut`."""
    return "run in another precision" if re.fullmatch(r"\w+ instead of (float32|bfloat16)", cut) else "shortened run"


def why_no_difference(provenance: str | None, cut: str) -> str | None:
    """Why a result's number is not to be subtracted from another's or a printed one; None if it may be."""
    if provenance == "embedded":
        return "placeholder data: its number says nothing about the claim"
    each = cut_of_each(cut)
    if each and kind_of_run(each) == "shortened run":
        return f"a shortened run ({each}): how far it is from a full one is not known"
    return None


class Scored(Protocol):
    """The fields of a result that its label is made of."""

    @property
    def provenance(self) -> str: ...
    @property
    def profile(self) -> str: ...
    @property
    def cut(self) -> str: ...
    @property
    def test_images(self) -> int: ...
    @property
    def excluded_test_images(self) -> int: ...


def fidelity_of(result: Scored | None) -> str:
    """`describe_fidelity` of one result, or of none: it says nothing of how many there are."""
    if result is None:
        return describe_fidelity(None, None, None)
    return describe_fidelity(
        result.provenance, result.profile, cut_of_each(result.cut), result.test_images, result.excluded_test_images
    )
