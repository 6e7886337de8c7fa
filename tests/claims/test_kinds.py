"""Claims that need no training (findings, counts, settings, reasons), and a verdict for every claim."""

import dataclasses
import random
import re
from collections import Counter
from dataclasses import replace

import pytest

from stages.claims import Facts, gather, judge_claims, place_claims, read_claims
from stages.claims.history import register_claim
from stages.claims.kinds import Kind, ValueKind, foresee
from stages.claims.kinds.counts import compare_setting
from stages.papers.finding import Finding
from stages.runs.evidence import Measurement, ResultLine
from stages.verdicts import Status, not_tested
from stages.verdicts.kinds import KINDS, KindFacts
from tests.claims.lines import ROOT, claims, judge, judge_all, params, results, trials

CLAIMS = ROOT / "data" / "claims.csv"


def with_finding(claim: str, status: str) -> Finding:
    holds, contradicted = status == "holds", status == "contradicted"
    computed = {"x": 1.0}
    return Finding(
        claim=claim, holds=holds, contradicted=contradicted, computed=computed, explanation="Counted.", ours=0.5
    )


@pytest.mark.parametrize("status", ["holds", "fails", "contradicted"])
@pytest.mark.parametrize(
    "claim", ["brownian.walk", "ninformer.text.c10.acc_vs_localvit", "dac.wide.params", "dac.thm.c1.2"]
)
def test_finding_decides_the_claim(claim: str, status: str) -> None:
    findings = {claim: with_finding(claim, status)}
    (judgement,), _ = judge_claims(Facts(claims=[claims()[claim]], params=params(), findings=findings))
    assert (judgement.verdict.status, judgement.basis) == (Status(status), "finding")
    assert judgement.is_decidable and judgement.verdict.explanation == "Counted."
    assert judgement.ours == 0.5


def test_consistent_numbers_still_need_training() -> None:
    """Consistent: 2.69 is 11.2 % below 3.03. Only training can confirm it, but a contradiction needs none."""
    claim = claims()["nmn.gpt.valloss.rel"]
    losses = {"gpt2": [0.903, 0.901, 0.902], "aether-gpt": [0.801, 0.803, 0.802]}
    run = trials(results("nmn-gpt", losses, metric="validation_loss"))
    expected = {
        "holds": (Status.NOT_TESTED, Status.INCONCLUSIVE),
        "fails": (Status.FAILS, Status.INCONCLUSIVE),
        "contradicted": (Status.CONTRADICTED, Status.CONTRADICTED),
    }
    for status, words in expected.items():
        findings = {claim.id: with_finding(claim.id, status)}
        for entered, word in zip(([], run), words, strict=True):
            groups = gather(params(), entered)
            (judgement,), _ = judge_claims(Facts(claims=[claim], params=params(), findings=findings, groups=groups))
            assert judgement.verdict.status is word, status


@pytest.mark.parametrize(
    ("claim", "status", "ours"),
    [
        ("hyperbf.table1.c10.train", Status.HOLDS, 50_000),
        ("hyperbf.table1.tin.size", Status.HOLDS, 64),
        ("dac.isic.images", Status.HOLDS_UNDER_READING, 25_331),
        ("dac.sgemm.setup.rows", Status.HOLDS, 241_600),
        ("dac.sgemm.setup.inputs", Status.HOLDS, 14),
        ("dac.sgemm.setup.resp_min", Status.HOLDS, 13.25),
        ("dac.sgemm.setup.resp_max", Status.HOLDS, 3397.08),
    ],
)
def test_count_of_the_data_is_exact_or_rounded_as_printed(claim: str, status: Status, ours: float) -> None:
    (judgement,) = judge(claims()[claim])
    assert (judgement.verdict.status, judgement.ours, judgement.basis) == (status, ours, "params")


@pytest.mark.parametrize(
    ("claim", "explanation"),
    [
        ("dac.image.setup.steps_cifar", "Printed 80000; ours 80128."),
        ("dac.image.setup.l2_c100", "Printed 0.0003; ours 0.0003."),
        ("hyperbf.setup.warmup", "Printed 0; ours 0."),
        ("dac.sgemm.setup.split_val", "Printed 0.15; ours 0.15."),
        ("dac.sgemm.setup.depth_max", "Printed 16; ours 16."),
        ("dac.sgemm.setup.width_min", "Printed 16; ours 16."),
        ("dac.sgemm.setup.width_max", "Printed 250; ours 250."),
        ("ninformer.setup.mixer_token_dim", "Printed 512; ours 512."),
    ],
)
def test_matching_setting_is_as_printed(claim: str, explanation: str) -> None:
    (judgement,) = judge(claims()[claim])
    assert (judgement.verdict.status, judgement.verdict.explanation) == (Status.AS_PRINTED, explanation)
    assert not judgement.is_decidable, "badges don't count settings"


def test_setting_allows_for_printed_rounding() -> None:
    claim = claims()["dac.sgemm.setup.params_min"]
    for used, status in ((1747, Status.AS_PRINTED), (1751, Status.DEVIATES)):
        verdict = compare_setting(claim, [used])
        assert (verdict.status, verdict.explanation) == (status, f"Printed 1700; ours {used}.")
        assert verdict.estimate == used - 1700
    assert compare_setting(claim, [None]).status is Status.DEVIATES
    assert (
        compare_setting(dataclasses.replace(claim, value=0.3, precision=None), [0.1 + 0.2]).status is Status.AS_PRINTED
    )


def test_one_deviating_experiment_makes_a_setting_deviate() -> None:
    claim = dataclasses.replace(claims()["ninformer.setup.dim"], experiment="*", paper="dac", metric="protocol.epochs")
    (judgement,) = judge(dataclasses.replace(claim, value=100.0))
    verdict = judgement.verdict
    assert verdict.status is Status.DEVIATES
    assert re.match(r"Printed 100; ours (\d+, )*100, ", verdict.explanation)


def test_unknown_setting_is_explained() -> None:
    (judgement,) = judge(dataclasses.replace(claims()["ninformer.setup.dim"], metric="model.colour"))
    assert judgement.verdict.explanation == "The params files don't hold model.colour."


def test_claim_with_a_reason_is_not_decidable() -> None:
    (judgement,) = judge(claims()["nmn.ext.vits.c10.base"])
    assert (judgement.verdict.status, judgement.is_decidable) == (Status.NOT_TESTED, False)
    assert judgement.verdict.explanation == "Outside the guide, and neither architecture nor protocol is given."


def test_every_claim_has_a_verdict_or_a_reason() -> None:
    placed = place_claims(read_claims(CLAIMS), params())
    judged, tables = judge_claims(Facts(claims=placed, params=params()))
    assert [judgement.claim.id for judgement in judged] == list(claims())
    assert all(judgement.verdict.explanation.endswith(".") for judgement in judged)
    statuses = Counter(judgement.verdict.status for judgement in judged)
    assert set(statuses) <= {
        *(
            Status.NOT_TESTED,
            Status.OTHER_HARDWARE,
            Status.HOLDS,
            Status.HOLDS_UNDER_READING,
            Status.AS_PRINTED,
            Status.DEVIATES,
        )
    }
    assert list(tables) == list(params().verdicts.families)
    for judgement in judged:
        if judgement.verdict.status in (Status.HOLDS, Status.FAILS):
            assert judgement.basis == "params", "without findings only counts of the data are decided"


@pytest.mark.parametrize("seed", range(2))
def test_placeholder_runs_change_no_verdict(seed: int) -> None:
    """Placeholder results must not decide, for any experiments, arms and devices."""
    chance = random.Random(seed)
    networks = [f"{kind}-{width}x5" for width in (50, 71) for kind in ("mlp", "dac-mlp")]
    errors = {arm: [chance.gauss(-5, 0.05) for _ in range(5)] for arm in networks}
    real = trials(results("dac-sgemm", errors, metric="selected_log_mse"))
    real += trials(results("ninformer-mnist", {"vit": [0.97, 0.971, 0.972], "ninformer": [0.98, 0.981, 0.982]}))
    placed = place_claims(read_claims(CLAIMS), params())
    placeholders: list[ResultLine] = []
    for name, experiment in params().experiments.items():
        arms = [arm for arm in experiment.arms if seed == 0 or chance.random() < 0.5]
        metric = "selected_log_mse" if name == "dac-sgemm" else "accuracy"
        lines = results(
            name, {arm: [0.5] for arm in arms}, metric=metric, profile="smoke", provenance="embedded", epochs=1
        )
        counted = Measurement(metric="parameters", split="none", value=chance.randrange(10**6), n=1)
        device = {"device": "cuda:0", "device_name": "RTX 2080 Ti", "machine": "a laptop"}
        placeholders += [replace(line, metrics=(*line.metrics, counted), environment=device) for line in lines]
    without, with_them = (
        [
            (judged.claim.id, judged.verdict.status, judged.ours, judged.verdict.estimate)
            for judged in judge_all(placed, entered)[0]
        ]
        for entered in (real, [*real, *trials(placeholders)])
    )
    assert without == with_them


def test_new_kind_needs_only_a_class_and_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "rounded", KindFacts(number="model"))
    monkeypatch.setattr(Kind, "classes", {**Kind.classes})

    class RoundedKind(ValueKind, kinds="rounded"):
        """A value of one model with a margin of a tenth."""

        test = "as a value, within a tenth"
        margin = 0.1

    claim = replace(claims()["ninformer.table2.c10.vit"], kind="rounded")
    run = trials(results("ninformer-cifar10", {"vit": [0.70, 0.71, 0.72, 0.71, 0.70]}))
    (judgement,) = judge(claim, entered=run)
    assert (judgement.verdict.status, judgement.verdict.margin) == (Status.REPRODUCED, 0.1)
    assert judge(replace(claim, kind="value"), entered=run)[0].verdict.status is Status.NOT_REPRODUCED
    power = foresee(claim, params(), not_tested(""), claims().values())
    assert power is not None and power.margin == 0.1
    registered = register_claim(claim, params().verdicts)
    assert (registered.margin, registered.test) == (0.1, RoundedKind.test)
