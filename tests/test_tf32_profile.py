"""The profile `paper-tf32`: `paper` but for products of what is printed in float32; it decides nothing, and says so."""

from __future__ import annotations

import dataclasses

import pytest

from stages.params.budget import describe_cut, plan_runs
from stages.params.experiment import Params, load_params
from stages.results import describe_fidelity, kind_of_run
from stages.scheduling.planning import Cost, add_up, in_other_profile, plan_costs
from stages.verdicts import Status
from tests.claims.lines import claims, judge, results, trials
from tests.project import REPOSITORY

IN_BFLOAT16 = ("nmn-gpt",)
SPREAD = (0.0, 0.0004, -0.0004, 0.0002, -0.0002)
MNIST = {arm: [mean + step for step in SPREAD] for arm, mean in (("local-vit", 0.9779), ("ninformer", 0.9861))}
VALUE, LEAD = "ninformer.table2.mnist.ninformer", "ninformer.rank.mnist.ninformer"


@pytest.fixture(scope="module")
def params() -> Params:
    return load_params(REPOSITORY)


def test_it_is_paper_but_for_the_products_of_what_is_printed_in_float32(params: Params) -> None:
    tf32, paper = params.profiles["paper-tf32"], params.profiles["paper"]
    assert tf32 == dataclasses.replace(paper, float32_as="tf32")
    for name, experiment in params.experiments.items():
        planned = (plan_runs(experiment, profile, params.datasets[experiment.dataset]) for profile in (tf32, paper))
        for rounded, printed in zip(*planned, strict=True):
            precision = "bfloat16" if name in IN_BFLOAT16 else "tf32"
            protocol = dataclasses.replace(printed.protocol, precision=precision)
            assert rounded == dataclasses.replace(printed, protocol=protocol)


def test_a_result_says_in_which_precision_it_is(params: Params) -> None:
    for name, experiment in params.experiments.items():
        cut = describe_cut(experiment, params.profiles["paper-tf32"], params.datasets[experiment.dataset])
        said = describe_fidelity("full", "paper-tf32", cut)
        if name in IN_BFLOAT16:
            assert (cut, said) == ("", "full-length training on official data (profile paper-tf32)")
        else:
            label = (
                "official data, in a run in another precision (tf32 instead of float32): a first look, not a verdict"
            )
            assert (cut, said) == ("tf32 instead of float32", label)
    assert kind_of_run("3 of 100 epochs, bfloat16 instead of float32") == "shortened run"
    assert kind_of_run("batches of 2 instead of 128") == "shortened run"


def test_it_decides_nothing_says_so_and_never_goes_before_results_as_printed() -> None:
    in_tf32 = trials(results("ninformer-mnist", MNIST, profile="paper-tf32"))
    value, lead = judge(claims()[VALUE], claims()[LEAD], entered=in_tf32)
    assert (value.verdict.status, value.ours) == (Status.NOT_TESTED, None)
    assert value.verdict.explanation.startswith("Real data in tf32 instead of float32; a number needs all of it")
    assert lead.verdict.status is Status.AGREES
    assert "At 100% of the printed epochs, in tf32 instead of float32, the gain is" in lead.verdict.explanation
    few = {"local-vit": MNIST["local-vit"][:3], "ninformer": [value - 0.02 for value in MNIST["ninformer"][:3]]}
    printed = trials(results("ninformer-mnist", few))
    (lead,) = judge(claims()[LEAD], entered=[*in_tf32, *printed])
    assert (lead.verdict.status, lead.verdict.n) == (Status.REVERSED, 3)


def test_its_products_are_counted_at_their_own_rate_and_no_start_of_a_step_is_shorter(params: Params) -> None:
    def plan(profile: str, flops: int) -> Cost:
        counted = plan_costs(params, params.profiles[profile], ["ninformer-mnist"], lambda model, shape, text: flops)
        return add_up(counted.values(), params.rates)

    (tf32, printed), gpu = (plan(name, 10**10) for name in ("paper-tf32", "paper")), params.rates["cuda"]
    assert tf32.flops == printed.flops
    assert tf32.seconds["cuda"] == pytest.approx(tf32.flops / gpu.flops_per_second["tf32"])
    assert tf32.limit_seconds["cuda"] == pytest.approx(tf32.flops / gpu.peak_flops_per_second["tf32"])
    assert tf32.seconds["cpu"] > printed.seconds["cpu"], "emulated there"
    assert plan("paper-tf32", 1).seconds["cuda"] == plan("paper", 1).seconds["cuda"]
    (said,) = in_other_profile("paper-tf32", tf32, printed, params.rates)
    assert said.startswith("Under paper-tf32 all would take ") and " hours on cuda, " in said


def test_its_networks_of_tables_are_stacked_as_those_of_paper(params: Params) -> None:
    for profile in ("paper-tf32", "paper"):
        (cost,) = plan_costs(params, params.profiles[profile], ["dac-sgemm"], lambda model, shape, text: 1).values()
        assert cost.stacked == cost.runs
