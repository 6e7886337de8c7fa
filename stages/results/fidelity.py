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


def kind_of_run(cut: str) -> str:
    """What a run is that departs from the printed protocol by `cut`, in the words of `describe_cut`."""
    return "run in another precision" if re.fullmatch(r"\w+ instead of (float32|bfloat16)", cut) else "shortened run"


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
    """`describe_fidelity` of a result, or of none."""
    if result is None:
        return describe_fidelity(None, None, None)
    return describe_fidelity(
        result.provenance, result.profile, result.cut, result.test_images, result.excluded_test_images
    )
