"""The next looks against what the judges themselves do at each number of replicates."""

from __future__ import annotations

import dataclasses
import fnmatch
from functools import cache

import pytest

from stages.claims import Judgement, Trial
from stages.claims.trained import JUDGES
from stages.priorities.looks import RunName, Standing, all_trainings, as_printed, looks_of, next_looks, standing_today
from stages.verdicts import Status
from tests.claims.lines import ROOT, claims, judge, params, trials
from tests.claims.test_all_trained import trained

TOO_FEW = ("nothing is said before", "a range needs", "the test looks once")


@cache
def everything() -> list[Trial]:
    return trials([line for experiment in params().experiments.values() for line in trained(experiment)])


@cache
def judged_with(replicates: int) -> list[Judgement]:
    """All claims of trained models, judged by the first replicates of every arm."""
    wanted = [claim for claim in claims().values() if claim.kind in JUDGES and claim.experiment and not claim.reason]
    some = [trial for trial in everything() if trial.result.replicate < replicates]
    return [one for one in judge(*wanted, entered=some) if one.is_decidable]


@pytest.mark.long
@pytest.mark.parametrize("replicates", [2, 3, 4, 5])
def test_looks_are_where_the_judges_have_them(replicates: int) -> None:
    for one in judged_with(replicates):
        (name,) = fnmatch.filter(params().experiments, one.claim.experiment or "")
        looks = looks_of(one.claim, params().experiments[name], params())
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
    return Standing(judgements=judged_with(replicates), decided_by=runs)


def test_a_look_lacks_what_neither_results_nor_the_store_have() -> None:
    base = standing(2)
    (look,) = (one for one in next_looks(base, params(), ()) if one.claim.id == "dac.table2.imagewoof.v1.r20.order")
    arms = ("resnet20-v1", "dac-resnet20-v1")
    assert (look.at, look.planned) == (3, 5)
    assert look.runs == {RunName("dac-imagewoof", arm, replicate) for arm in arms for replicate in range(3)}
    assert look.lacking == {RunName("dac-imagewoof", arm, 2) for arm in arms}
    (look,) = (one for one in next_looks(base, params(), look.lacking) if one.claim.id == look.claim.id)
    assert (look.at, look.lacking) == (3, frozenset()), "trained, and not judged yet"


def test_no_claim_that_is_settled_or_at_its_plans_end_wants_more() -> None:
    most = max(experiment.replicates for experiment in params().experiments.values())
    assert next_looks(standing(most), params(), ()) == []
    wanted = {one.claim.id for one in next_looks(standing(3), params(), ())}
    settled = {
        one.claim.id
        for one in judged_with(3)
        if one.verdict.status in (Status.REPRODUCED, Status.NOT_REPRODUCED) and one.verdict.size is None
    }
    assert settled and not wanted & settled


def test_what_is_said_today_rests_on_the_published_results() -> None:
    today = standing_today(ROOT, params())
    on_mnist = {"nmn-mnist", "nmn-mnist-ten-epochs", "nmn-mnist-inversion"}
    assert {run.experiment for run in today.decided_by} == {"dac-sgemm", *on_mnist}
    looks = {look.claim.id: look for look in next_looks(today, params(), ())}
    assert not [one for one in looks.values() if one.claim.experiment in on_mnist], "all ten seeds are published"
    assert "dac.sgemm.gain" not in looks or looks["dac.sgemm.gain"].lacking
    assert looks["dac.table1.c10.v1.r20.order"].lacking == looks["dac.table1.c10.v1.r20.order"].runs


def test_one_training_of_two_experiments_is_one_training() -> None:
    trainings = all_trainings(as_printed(params()))
    shared = [run for run, first in trainings.first.items() if run != first]
    assert shared and all(trainings.with_same([run]) >= {run, trainings.first[run]} for run in shared)
    one = shared[0]
    planned = trainings.planned[one], trainings.planned[trainings.first[one]]
    assert dataclasses.replace(planned[0], arm="", replicate_index=0) == dataclasses.replace(
        planned[1], arm="", replicate_index=0
    )
