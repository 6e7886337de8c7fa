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
    "brownian.markov.printed_sum",
    "brownian.motion.independent",
    "brownian.components.independent",
    "brownian.heads.cost",
    "brownian.fisher",
    "brownian.fisher.step",
    "brownian.cgfac.converge",
    "brownian.cgfac.matrixfree",
}
"""All claims of the paper but two: one needs training, one is cited from elsewhere."""


@pytest.fixture(scope="module")
def by_claim() -> dict[str, Finding]:
    return {finding.claim: finding for finding in findings(MARGINS)}


def test_every_claim_of_the_paper_that_needs_no_training_is_answered(by_claim: dict[str, Finding]) -> None:
    assert set(by_claim) == COMPUTED


def test_all_hold_some_of_them_as_read_in_one_way(by_claim: dict[str, Finding]) -> None:
    assert {finding.status for finding in by_claim.values()} == {"holds", "holds under a reading"}
    read = {claim: [one.holds for one in finding.readings] for claim, finding in by_claim.items() if finding.readings}
    assert read == {
        "brownian.identity.lnnorm": [True, False],
        "brownian.motion": [False, False, True],
        "brownian.markov.printed_sum": [True, False],
        "brownian.motion.independent": [False, True],
        "brownian.components.independent": [True, False, True],
        "brownian.heads.cost": [False, True],
        "brownian.fisher.step": [False, True],
    }


def test_dependences_are_those_of_theory(by_claim: dict[str, Finding]) -> None:
    times = by_claim["brownian.motion.independent"].computed
    assert times["correlation_of_two_times"] == pytest.approx(0.5, abs=0.02), "√(s / t) of a quarter and 1"
    components = by_claim["brownian.components.independent"].computed
    assert components["mean_correlation_after"] == pytest.approx(-1 / 63, rel=0.01)
    heads = by_claim["brownian.heads.cost"].computed
    assert (heads["heads_over_one_full_head"], heads["heads_over_as_many_full_heads"]) == (1, 1 / 8)


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
    fisher = by_claim["brownian.fisher.step"].computed
    assert fisher["loss_change_with_minus_sign"] < 0 < fisher["loss_change_with_plus_sign"]
    motion = by_claim["brownian.motion"].computed
    assert motion["mean_probability_of_staying"] > 0.98 and motion["rank_in_the_limit"] == 1
    # Forever after, start and end are independent draws of a nearly uniform distribution over ten tokens 2 d apart.
    assert motion["largest_mean_squared_displacement"] == pytest.approx(2 * 64 * 9 / 10, rel=0.05)
