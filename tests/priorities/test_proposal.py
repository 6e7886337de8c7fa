"""`propose` expects most decided claims, each by the chance of the look that the hours buy and by its weight."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest

from stages.claims.power import foresee
from stages.priorities.looks import as_printed
from stages.priorities.proposal import NOBODY_KNOWS, Proposal, chance_of_decision, propose, weigh
from stages.recording.judged import read_paper_deviations
from stages.verdicts import Status, Verdict, not_tested
from tests.claims.lines import ROOT, claims, params

HOUR = 3600.0


@cache
def proposal(hours: float) -> Proposal:
    return propose(ROOT, params(), "cuda", budget=hours * HOUR)


@pytest.mark.parametrize(
    ("claim", "at_the_end", "at_three"),
    [
        ("dac.v1_worse.imagewoof.r20.dac_v2", 0.83, 0.19),
        ("dac.table2.imagewoof.v2.r20.order", 0.58, 0.12),
        ("dac.v1_worse.imagewoof.r20.v2", 0.23, 0.05),
        ("dac.table2.imagewoof.v1.r20.order", 0.18, 0.04),
    ],
)
def test_the_chance_is_that_of_the_look_which_the_hours_buy(claim: str, at_the_end: float, at_three: float) -> None:
    one = proposal(2).prospects[f"{claim} 3"]
    end = proposal(2).prospects[f"{claim} 5"]
    assert (end.chance, one.chance) == (pytest.approx(at_the_end, abs=0.006), pytest.approx(at_three, abs=0.006))
    whole = foresee(claims()[claim], as_printed(params()), not_tested(""), claims().values())
    assert whole is not None and whole.supported == end.chance, "the last look is the end of the plan"


def test_the_headline_order_of_ninformer_is_proposed_before_hopeless_tables() -> None:
    found = proposal(2)
    completed = [name for step in found.steps for name in step.completed]
    assert "ninformer.rank.c10.ninformer 3" in completed
    assert "dac.table2.imagewoof.v1.r20.order 3" not in completed
    assert sum(step.seconds for step in found.steps) <= 2 * HOUR


def test_parts_of_an_argument_weigh_alike_and_their_claims_share_them() -> None:
    papers = read_paper_deviations(params())
    weights = weigh(list(claims().values()), papers)
    assert weights["brownian.trained.motion"] == 1
    ranks = [name for name in weights if name.startswith("ninformer.rank.")]
    assert sum(weights[name] for name in ranks) == pytest.approx(1) and len(ranks) == 9
    assert weights["ninformer.rank.c10.ninformer"] > weights["ninformer.table2.c10.vit"], "a baseline's cell"
    for paper in papers:
        whole = sum(weight for name, weight in weights.items() if claims()[name].paper == paper.paper)
        assert whole == pytest.approx(round(whole)) and whole <= len(paper.argument) + 1


def test_what_is_decided_already_is_not_decided_again() -> None:
    """The sign of SGEMM's gain is known, so a look counts by the chance of its size alone."""
    claim = claims()["dac.sgemm.gain"]
    power = foresee(claim, params(), not_tested(""), claims().values())
    assert power is not None and power.supported is not None and power.reproduced is not None
    signed = Verdict(status=Status.SUPPORTED, explanation="")
    assert chance_of_decision(claim, power, not_tested("")) == power.supported
    assert chance_of_decision(claim, power, signed) == (power.reproduced + (power.not_reproduced or 0)) / 2
    number = claims()["nmn.ext.mnist.accuracy.epoch3"]
    power_of_number = dataclasses.replace(power, supported=None, reproduced=0.8, not_reproduced=0.6)
    assert chance_of_decision(number, power_of_number, not_tested("")) == pytest.approx(0.7)
    read = dataclasses.replace(number, reading="one layer is ours")
    assert chance_of_decision(read, power_of_number, not_tested("")) == pytest.approx(0.4), "it can't be refuted"
    unknown = dataclasses.replace(power, supported=None, reproduced=None, not_reproduced=None)
    assert chance_of_decision(claim, unknown, signed) == chance_of_decision(claim, None, signed) == NOBODY_KNOWS
