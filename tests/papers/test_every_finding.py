"""Properties of every paper's findings."""

import math
from importlib import import_module

import pytest

from stages import analyse
from tests.project import MARGINS, computed_findings


@pytest.mark.parametrize("paper", analyse.papers())
def test_each_claim_has_one_finding_with_finite_reproducible_numbers(paper: str) -> None:
    again = import_module(f"stages.papers.{paper}.findings").findings(MARGINS)
    found = {claim: one for claim, one in computed_findings().items() if claim.startswith(f"{paper}.")}
    assert {one.claim: one for one in again} == found and len(again) == len(found)
    assert all(one.computed and one.explanation for one in again)
    assert all(math.isfinite(value) for one in again for value in one.computed.values())
