from __future__ import annotations

import math

import pytest

from stages.papers.brownian.findings import findings
from stages.papers.finding import Finding
from tests.project import MARGINS

COMPUTED = {
    "brownian.identity.lnnorm",
    "brownian.identity.dot",
    "brownian.identity.gauss",
    "brownian.identity.s",
    "brownian.markov.rows",
    "brownian.walk",
    "brownian.softmaxgrad",
    "brownian.ito",
    "brownian.motion",
    "brownian.fisher",
    "brownian.cgfac.converge",
    "brownian.cgfac.matrixfree",
}
"""All claims of the paper but two: one needs training, one is cited from elsewhere."""


@pytest.fixture(scope="module")
def by_claim() -> dict[str, Finding]:
    return {finding.claim: finding for finding in findings(MARGINS)}


def test_every_claim_of_the_paper_that_needs_no_training_is_answered(by_claim: dict[str, Finding]) -> None:
    assert set(by_claim) == COMPUTED


def test_all_hold_and_the_brownian_motion_in_the_limit(by_claim: dict[str, Finding]) -> None:
    assert {claim for claim, finding in by_claim.items() if finding.status != "holds"} == {"brownian.motion"}
    motion = by_claim["brownian.motion"]
    assert motion.status == "holds under a reading"
    assert [reading.holds for reading in motion.readings] == [False, False, True]


def test_every_number_is_finite_and_the_same_again(by_claim: dict[str, Finding]) -> None:
    assert all(math.isfinite(value) for finding in by_claim.values() for value in finding.computed.values())
    assert {finding.claim: finding for finding in findings(MARGINS)} == by_claim


def test_numbers_beside_the_identities_are_as_theory_has_them(by_claim: dict[str, Finding]) -> None:
    ito = by_claim["brownian.ito"].computed
    # The discretised integral of a smooth function errs by the root of the step: 8 = √64 between the ends.
    assert ito["rms_error_at_32_steps"] / ito["rms_error_at_2048_steps"] == pytest.approx(8, rel=0.15)
    assert abs(ito["mean_of_squared_end"] - 1) < 3 * ito["standard_error_of_it"]
    # ∫ (3B + t) dt has mean 1/2 and variance 9/3; its root mean square is what leaving it out costs.
    assert ito["rms_error_without_the_second_order_term"] == pytest.approx(math.sqrt(9 / 3 + 1 / 4), rel=0.05)
    fisher = by_claim["brownian.fisher"].computed
    assert fisher["loss_change_with_minus_sign"] < 0 < fisher["loss_change_with_plus_sign"]
    motion = by_claim["brownian.motion"].computed
    assert motion["mean_probability_of_staying"] > 0.98 and motion["rank_in_the_limit"] == 1
    # Forever after, start and end are independent draws of a nearly uniform distribution over ten tokens 2 d apart.
    assert motion["largest_mean_squared_displacement"] == pytest.approx(2 * 64 * 9 / 10, rel=0.05)
