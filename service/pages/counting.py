"""What was counted where a claim is on the size of a data set, and how much of a data set its results need."""

from __future__ import annotations

from collections.abc import Mapping

from service.pages.formats import listed, percent
from stages.results import INEXACT_SHARE, JudgedClaim

Lacking = Mapping[str, tuple[int, int]]


def tell_counted(judged: JudgedClaim, lacking: Lacking) -> str:
    """Where a size of a data set is from, and on how many test images results here are scored; "" of other claims."""
    claim = judged.claim
    if judged.verdict.basis != "params" or claim.kind != "count" or not claim.metric.startswith("dataset."):
        return ""
    told = "The number is that of the publisher’s files: whoever packs them here with another one is refused."
    if claim.metric != "dataset.test" or len(judged.datasets) != 1 or judged.datasets[0] not in lacking:
        return told
    images, lost = lacking[judged.datasets[0]]
    scored = f"Results here are scored on {images - lost:,} of the {images:,}"
    return f"{told} {scored}: our source lacks the exact pixels of {lost}."


def tell_whole(lacking: Lacking, titles: Mapping[str, str]) -> str:
    """How much of a data set must be there for its results to decide, and which lack some test images."""
    told = (
        "A data set counts as whole if every training image is official and at most "
        f"{percent(INEXACT_SHARE, 1)} of the test images are missing."
    )
    some = [f"{titles[name]} without {lost} of {images:,} test images" for name, (images, lost) in lacking.items()]
    if not some:
        return told
    wider = "their intervals are wider by the most that these images could change"
    return f"{told} So results on {listed(some)} can decide, though our source lacks their exact pixels; {wider}."
