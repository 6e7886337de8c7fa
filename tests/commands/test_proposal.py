"""Proposals for the next trainings."""

import dataclasses
import fnmatch
import itertools
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.claims import Judgement, Trial
from stages.claims.kinds import TrainedKind, foresee, kind_of
from stages.commands.priorities import (
    UNKNOWN_CHANCE,
    Proposal,
    RunName,
    Standing,
    all_trainings,
    as_printed,
    chance_of_decision,
    choose,
    next_looks,
    propose,
    standing_today,
    weigh,
)
from stages.recording.sources import read_paper_deviations
from stages.verdicts import Status, Verdict, not_tested
from tests.claims.lines import ROOT, claims, judge, params, trials
from tests.claims.test_all_trained import trained

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
def test_chance_is_that_of_the_affordable_analysis(claim: str, at_the_end: float, at_three: float) -> None:
    one = proposal(2).prospects[f"{claim} 3"]
    end = proposal(2).prospects[f"{claim} 5"]
    assert (end.chance, one.chance) == (pytest.approx(at_the_end, abs=0.006), pytest.approx(at_three, abs=0.006))
    whole = foresee(claims()[claim], as_printed(params()), not_tested(""), claims().values())
    assert whole is not None and whole.supported == end.chance, "the final analysis is at the end of the plan"


def test_ninformers_headline_order_precedes_hopeless_tables() -> None:
    found = proposal(2)
    completed = [name for step in found.steps for name in step.completed]
    assert "ninformer.rank.c10.ninformer 3" in completed
    assert "dac.table2.imagewoof.v1.r20.order 3" not in completed
    assert sum(step.seconds for step in found.steps) <= 2 * HOUR


def test_parts_of_an_argument_have_equal_weights_shared_by_their_claims() -> None:
    papers = read_paper_deviations(params())
    weights = weigh(list(claims().values()), papers)
    assert weights["brownian.trained.motion"] == 1
    ranks = [name for name in weights if name.startswith("ninformer.rank.")]
    assert sum(weights[name] for name in ranks) == pytest.approx(1) and len(ranks) == 15
    assert weights["ninformer.rank.c10.ninformer"] > weights["ninformer.table2.c10.vit"], "a baseline's cell"
    for paper in papers:
        whole = sum(weight for name, weight in weights.items() if claims()[name].paper == paper.paper)
        assert whole == pytest.approx(round(whole)) and whole <= len(paper.argument) + 1


def test_decided_part_of_a_claim_adds_no_chance() -> None:
    """The sign of SGEMM's gain is known, so an analysis counts only the chance for its size."""
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
    assert chance_of_decision(claim, unknown, signed) == chance_of_decision(claim, None, signed) == UNKNOWN_CHANCE


SECONDS = {"a": 10.0, "b": 10.0, "c": 10.0, "d": 1.0}


def completed(wanted: dict[str, set[str]], items: set[str]) -> set[str]:
    return {name for name, needs in wanted.items() if needs and needs <= items}


class Alike(dict[str, float]):
    """Gives every claim weight 1."""

    def __missing__(self, name: str) -> float:
        return 1.0


def test_valuable_claims_come_first_and_worthless_ones_never() -> None:
    wanted = {"many": {"a"}, "too": {"a"}, "headline": {"b"}, "hopeless": {"c"}}
    steps = choose(wanted, SECONDS, {"many": 0.1, "too": 0.2, "headline": 0.5, "hopeless": 0.0})
    assert [step.completed for step in steps] == [("headline",), ("many", "too")]


def test_shared_runs_are_paid_once() -> None:
    steps = choose({"one": {"a"}, "two": {"a"}, "more": {"a", "b", "c"}, "apart": {"b"}}, SECONDS, Alike())
    assert steps[0].items == ("a",) and steps[0].completed == ("one", "two")
    assert {item for step in steps for item in step.items} == {"a", "b", "c"}
    assert sum(len(step.items) for step in steps) == 3, "no run is counted twice"


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from("vwxyz"), st.sets(st.sampled_from("abcd"), max_size=4), max_size=5),
    st.floats(0.5, 40),
)
def test_choice_is_consistent_and_close_to_optimal(wanted: dict[str, set[str]], budget: float) -> None:
    steps = choose(wanted, SECONDS, Alike(), budget)
    taken: set[str] = set()
    for step in steps:
        assert not taken & set(step.items) and step.seconds == sum(SECONDS[item] for item in step.items)
        before, taken = completed(wanted, taken), taken | set(step.items)
        assert set(step.completed) == completed(wanted, taken) - before
    assert sum(step.seconds for step in steps) <= budget
    within = [
        set(items)
        for size in range(5)
        for items in itertools.combinations(SECONDS, size)
        if sum(SECONDS[item] for item in items) <= budget
    ]
    best, found = (max((len(completed(wanted, items)) for items in within), default=0), len(completed(wanted, taken)))
    assert bool(found) == bool(best) and 2 * found >= best, "at least half of the optimum, for sets this small"


TOO_FEW = ("nothing is said before", "a range needs", "the test runs once")


@cache
def everything() -> list[Trial]:
    return trials([line for experiment in params().experiments.values() for line in trained(experiment)])


@cache
def judged_with(replicates: int) -> list[Judgement]:
    """Judge all trained claims with the first replicates of every arm."""
    wanted = [
        claim for claim in claims().values() if claim.facts.by == "training" and claim.experiment and not claim.reason
    ]
    some = [trial for trial in everything() if trial.result.replicate < replicates]
    return [one for one in judge(*wanted, entered=some) if one.is_decidable]


@pytest.mark.slow
@pytest.mark.parametrize("replicates", [2, 3, 5])
def test_proposed_analyses_equal_those_of_the_judges(replicates: int) -> None:
    for one in judged_with(replicates):
        (name,) = fnmatch.filter(params().experiments, one.claim.experiment or "")
        kind = kind_of(one.claim, params().verdicts)
        assert isinstance(kind, TrainedKind)
        looks = kind.looks(params().experiments[name])
        at = max((n for n in looks if n <= replicates), default=None)
        said = one.claim.id, one.verdict.explanation
        if at is None:
            is_gap = one.claim.kind == "gap" and "Our gain" in one.verdict.explanation  # shown, and never judged early
            assert is_gap or any(words in one.verdict.explanation for words in TOO_FEW), said
            assert one.verdict.status in (Status.INCONCLUSIVE, Status.UNRESOLVED, Status.NOT_TESTED), said
        elif one.claim.kind == "failures":
            assert one.verdict.status is not Status.NOT_TESTED, said
        else:
            assert one.verdict.n == at, said


def standing(replicates: int) -> Standing:
    there = {RunName(t.result.experiment, t.result.arm, t.result.replicate) for t in everything()}
    runs = frozenset(run for run in there if run.replicate < replicates)
    judged = {one.claim: one for one in judged_with(replicates)}
    return Standing(claims=[*judged], judge=judged.__getitem__, decided_by=runs)


def test_analysis_needs_runs_missing_from_results_and_store() -> None:
    base = standing(2)
    (look,) = (one for one in next_looks(base, params(), ()) if one.claim.id == "dac.table2.imagewoof.v1.r20.order")
    arms = ("resnet20-v1", "dac-resnet20-v1")
    assert (look.at, look.planned) == (3, 5)
    assert look.runs == {RunName("dac-imagewoof", arm, replicate) for arm in arms for replicate in range(3)}
    assert look.lacking == {RunName("dac-imagewoof", arm, 2) for arm in arms}
    (look,) = (one for one in next_looks(base, params(), look.lacking) if one.claim.id == look.claim.id)
    assert (look.at, look.lacking) == (3, frozenset()), "trained but not judged yet"


def test_settled_or_completed_claims_need_no_more_runs() -> None:
    most = max(experiment.replicates for experiment in params().experiments.values())
    unjudged = dataclasses.replace(standing(most), judge={}.__getitem__)
    assert next_looks(unjudged, params(), ()) == [], "a claim whose analyses are complete isn't even judged"
    wanted = {one.claim.id for one in next_looks(standing(3), params(), ())}
    settled = {
        one.claim.id
        for one in judged_with(3)
        if one.verdict.status in (Status.REPRODUCED, Status.NOT_REPRODUCED) and one.verdict.size is None
    }
    assert settled and not wanted & settled


def test_proposal_uses_the_published_results() -> None:
    today = standing_today(ROOT, params())
    on_mnist = {"nmn-mnist", "nmn-mnist-ten-epochs", "nmn-mnist-inversion"}
    assert {run.experiment for run in today.decided_by} == {"dac-sgemm", *on_mnist}
    looks = {look.claim.id: look for look in next_looks(today, params(), ())}
    assert not [one for one in looks.values() if one.claim.experiment in on_mnist], "all ten seeds are published"
    assert "dac.sgemm.gain" not in looks or looks["dac.sgemm.gain"].lacking
    assert looks["dac.table1.c10.v1.r20.order"].lacking == looks["dac.table1.c10.v1.r20.order"].runs


def test_training_shared_by_two_experiments_is_one_training() -> None:
    trainings = all_trainings(as_printed(params()))
    shared = [run for run, first in trainings.first.items() if run != first]
    assert shared and all(trainings.with_same([run]) >= {run, trainings.first[run]} for run in shared)
    one = shared[0]
    assert trainings.planned[one].spec == trainings.planned[trainings.first[one]].spec
