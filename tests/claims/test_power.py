"""The power of each claim's plan: the source of its spread, and the statement made in advance."""

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest

from stages.claims import Judgement
from stages.claims.kinds import foresee
from stages.claims.kinds.base import CHANCE_SHARE, LOG_SPREAD
from stages.verdicts import not_tested
from tests.claims.lines import claims, judge, params, results, trials
from tests.claims.test_trained import MNIST


@pytest.fixture(scope="module")
def judged() -> dict[str, Judgement]:
    """Return all judgements before any run."""
    return {judgement.claim.id: judgement for judgement in judge(*claims().values())}


def test_every_decidable_trained_claim_has_its_power(judged: dict[str, Judgement]) -> None:
    without = {
        judgement.claim.id
        for judgement in judged.values()
        if judgement.claim.experiment and judgement.is_decidable and judgement.claim.facts.by == "training"
        if judgement.power is None
    }
    assert without == set()
    powers = [judgement.power for judgement in judged.values() if judgement.power]
    assert len(powers) > 140
    for power in powers:
        chances = [power.reproduced, power.not_reproduced, power.supported]
        assert all(chance is None or 0 <= chance <= 1 for chance in chances)
        assert power.spread is None or power.spread > 0
        assert "We plan" in power.explanation and "nan" not in power.explanation


def test_spread_is_printed_or_assumed_before_any_run(judged: dict[str, Judgement]) -> None:
    sources = Counter(judgement.power.source for judgement in judged.values() if judgement.power)
    assert sources.keys() == {"printed", "assumed", None}
    assert sources[None] == 9, "four observations of σ, one of motion, a range of memory, noise, two failure rates"
    printed = judged["dac.table1.c10.v1.r20.base"].power
    assert printed is not None and printed.source == "printed" and printed.spread == pytest.approx(0.0012 * 5**0.5)
    assert "the paper's standard error times √5" in printed.explanation
    assumed = judged["ninformer.table2.c10.vit"].power
    assert assumed is not None and assumed.source == "assumed"
    assert assumed.spread == pytest.approx(0.8 * math.sqrt(0.6574 * (1 - 0.6574) / 10_000))
    gain = judged["ninformer.rank.c10.mlpmixer"].power
    other = math.sqrt(0.7012 * (1 - 0.7012) / 10_000)
    assert gain is not None and gain.spread == pytest.approx(math.hypot(assumed.spread, 0.8 * other))
    grid = judged["dac.sgemm.gain"].power
    assert grid is not None and grid.spread == pytest.approx(LOG_SPREAD * math.sqrt(2 / 35))


def test_assumed_spread_of_accuracy_equals_that_of_dacs_errors() -> None:
    ratios = [
        claim.stderr * math.sqrt(claim.n or 1) / math.sqrt(claim.value * (1 - claim.value) / source.test)
        for claim in claims().values()
        if claim.kind == "value" and claim.unit == "fraction" and claim.stderr and claim.value and claim.experiment
        if claim.paper == "dac"
        for source in [params().datasets[params().experiments[claim.experiment].dataset]]
    ]
    assert len(ratios) == 48
    assert np.sqrt(np.mean(np.square(ratios))) == pytest.approx(CHANCE_SHARE, abs=0.03)


def test_our_replicates_replace_the_assumed_spread() -> None:
    value, lead = judge(
        claims()["ninformer.table2.mnist.vit"],
        claims()["ninformer.rank.mnist.ninformer"],
        entered=trials(results("ninformer-mnist", MNIST)),
    )
    spread = float(np.std(MNIST["vit"], ddof=1))
    assert value.power is not None and lead.power is not None
    assert (value.power.source, value.power.spread) == ("measured", pytest.approx(spread))
    assert (lead.power.source, lead.power.spread) == ("measured", pytest.approx(spread * 2**0.5))


def test_undecidable_plans_are_known_before_any_run(judged: dict[str, Judgement]) -> None:
    error_too_large = judged["dac.table2.imagenette.v1.r32.base"].power
    assert error_too_large is not None and not error_too_large.can_reproduce
    assert "No plan can reproduce it: the paper's own error, 0.0045, would have to be below" in (
        error_too_large.explanation
    )
    single_run = judged["ninformer.table2.mnist.ninformer"].power
    assert single_run is not None and not single_run.can_reproduce
    assert single_run.explanation.endswith("which takes 5 runs instead of 1.")
    tiny = judged["dac.table1.c10.v2.r44.order"].power
    assert tiny is not None and tiny.reproduced is None and "can't be reproduced" in tiny.explanation
    assert tiny.needed is not None and tiny.needed > 100


def test_plan_shorter_than_a_value_needs_is_reported() -> None:
    """Three seeds, although a ratio needs five."""
    experiment = params().experiments["nmn-gpt"]
    claim = claims()["nmn.gpt.valloss.rel"]
    short = dataclasses.replace(experiment, seeds=experiment.seeds[:3])
    known = dataclasses.replace(params(), experiments={**params().experiments, "nmn-gpt": short})
    power = foresee(claim, known, not_tested(""), claims().values())
    assert power is not None and (power.planned, power.reproduced, power.needed) == (3, 0, 5)
    assert "The plan is too short: nothing is judged before 5 replicates." in power.explanation


def test_power_of_comparable_arms_ignores_the_papers_error(judged: dict[str, Judgement]) -> None:
    """The test compares only our arms, so a plan can support the paper's statement about one run each."""
    for name in ("c10", "c100", "tin"):
        power = judged[f"hyperbf.comparable.{name}"].power
        assert power is not None and power.supported is not None and power.supported > 0.3
        assert power.reproduced is None and "paper's own error" not in power.explanation
        assert "under one reading at least with more than 99 %" in power.explanation


def test_failures_are_compared_within_the_experiment() -> None:
    """Another experiment may count failures of arms with the same names."""
    known = claims()
    elsewhere = [
        dataclasses.replace(known[f"dac.sgemm.fail.{name}"], id=name, experiment="another", value=1.0, trials=9)
        for name in ("base", "dac")
    ]
    claim = known["dac.sgemm.fail.dac"]
    alone = foresee(claim, params(), not_tested(""), known.values())
    assert alone is not None and foresee(claim, params(), not_tested(""), [*elsewhere, *known.values()]) == alone
