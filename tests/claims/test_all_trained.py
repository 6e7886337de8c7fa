"""Verdicts when every run of every experiment has finished as printed, with made-up numbers, on one GPU."""

import dataclasses
import fnmatch
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from stages.claims.kinds.base import PER_BYTE, TIMES
from stages.params.experiment import ArmParams, ExperimentParams
from stages.recording.builder import record
from stages.recording.reporting import results_page
from stages.results import ClaimFilter, JudgedClaim, list_judged, open_results
from stages.runs.evidence import Divergence, Measurement, ResultLine
from stages.verdicts import Status
from tests.claims.lines import claims, copy_project, judge, loaded, params, publish, results, trials

OBSERVED = (
    *("kernel_width_gap", "metric_distance_from_identity", "norm_error", "gaussian_distance"),
    *("displacement_over_steps", "accuracy_after_inversion"),
)
"""Observed metrics of trained networks that claims refer to."""
METRICS = {
    "images": ("accuracy", "best_epoch_accuracy", "calibration_error", "loss", *OBSERVED),
    "table": ("mse", "log_mse", "selected_mse", "selected_log_mse"),
    "text": ("loss", "perplexity"),
}
"""Metrics that `evaluate` measures on test samples, by kind of data."""
COMPUTED = "`python -m stages.analyse` computes it, and hasn't run here."


def trained(experiment: ExperimentParams) -> list[ResultLine]:
    """Return all replicates of all arms; each arm is a point better than the previous one."""
    replicates = range(experiment.replicates)
    values = {
        arm: [0.5 + 0.01 * place % 0.4 + 0.001 * math.sin(place + 7 * replicate) for replicate in replicates]
        for place, arm in enumerate(experiment.arms)
    }
    epochs = experiment.printed.epochs
    curves = {arm: [[0.7, 0.6, *[1 - value] * 5][-epochs:] for value in row] for arm, row in values.items()}
    kind = params().datasets[experiment.dataset].kind
    return [
        dataclasses.replace(line, metrics=measured(kind, line.metrics, parameters_of(experiment.arms[line.arm])))
        for line in results(experiment.name, values, curves=curves)
    ]


def parameters_of(arm: ArmParams) -> float:
    """Estimate the parameters: those of equal layers, doubled by unshared biases; two million for other networks."""
    width, depth = arm.model.get("width"), arm.model.get("depth")
    if width is None or depth is None:
        return 2e6
    return float(width**2 * depth * (2 if "DAC" in arm.model["name"] else 1))


def measured(kind: str, metrics: Sequence[Measurement], parameters: float) -> tuple[Measurement, ...]:
    """Return the first of `metrics` under every name that this kind uses."""
    first, *rest = metrics
    named = [dataclasses.replace(first, metric=name, value=in_metric(name, first.value)) for name in METRICS[kind]]
    return (*named, *rest, Measurement(metric="parameters", split="none", value=parameters))


def in_metric(name: str, value: float) -> float:
    """Convert to a squared error, which falls as accuracy grows."""
    return math.log(1 - value) if "log" in name else 1 - value if "mse" in name else value


def is_trained(claim: str) -> bool:
    return claims()[claim].experiment is not None


def judge_all(root: Path) -> list[JudgedClaim]:
    with open_results(str(root / "data" / "results.db"))() as session:
        return list_judged(session, ClaimFilter())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with these results of every experiment as evidence, and its database."""
    root = tmp_path_factory.mktemp("all-trained")
    copy_project(root)
    for experiment in params().experiments.values():
        publish(root, trained(experiment))
    record(root, "data/results.db")
    return root


@pytest.mark.slow
def test_every_decidable_claim_is_decided_or_statistically_open(root: Path) -> None:
    """No claim may count as decidable and then be `not tested` on complete data."""
    judged = judge_all(root)
    waiting = {
        row.claim.id: row.verdict.explanation
        for row in judged
        if row.verdict.is_decidable and row.verdict.status in (Status.NOT_TESTED, Status.OTHER_HARDWARE)
    }
    assert {claim for claim, why in waiting.items() if why != COMPUTED} == set()
    assert {claim for claim in waiting if is_trained(claim)} == {"ninformer.text.c10.acc_vs_localvit"}
    assert sum(row.verdict.basis == "results" for row in judged) > 170


@pytest.mark.slow
def test_undecidable_claims_have_their_own_reasons(root: Path) -> None:
    never = [row for row in judge_all(root) if row.claim.experiment and not row.verdict.is_decidable]
    untested = {row.claim.id: row.verdict for row in never if row.verdict.status == Status.NOT_TESTED}
    assert {claim for claim, verdict in untested.items() if verdict.explanation == PER_BYTE} == {
        *("nmn.gpt.valloss.aether", "nmn.gpt.valloss.gpt2")
    }
    assert all(claims()[claim].kind in ("value", "figure", "qualitative", "setup") for claim in untested), untested


def test_plans_have_the_replicates_that_claims_need() -> None:
    """A value needs `minimum` replicates and a gain the first interim analysis; with fewer, no result could decide."""
    rules = params().verdicts
    for line in claims().values():
        needs_a_number = line.kind in ("value", "ratio", "gap") and line.unit != "nats per token"
        is_a_sign = line.kind in ("order", "difference", "equivalence")
        if line.reason or line.metric in TIMES or not (is_a_sign or needs_a_number):
            continue
        least = min(rules.looks) if not needs_a_number or line.stderr else rules.minimum
        for name in fnmatch.filter(params().experiments, line.experiment or ""):
            assert params().experiments[name].replicates >= least, line.id


@pytest.mark.parametrize("dataset", sorted(params().datasets))
def test_complete_official_data_may_decide(dataset: str) -> None:
    assert loaded(dataset) == "full"


@pytest.mark.parametrize("claim", ["dac.isic.r20.base", "nmn.gpt.valloss.rel", "nmn.gpt.memory"])
def test_partial_data_decide_no_number(claim: str) -> None:
    line = claims()[claim]
    lines = [
        dataclasses.replace(one, data=dataclasses.replace(one.data, provenance="subset"))
        for one in trained(params().experiments[line.experiment or ""])
    ]
    (judged,) = judge(line, entered=trials(lines))
    assert judged.verdict.status is Status.NOT_TESTED
    assert judged.verdict.explanation.startswith("Real data, but a part of them;")


def statuses_of_results(lines_of: Callable[[ExperimentParams], list[ResultLine]]) -> set[Status]:
    """Return the verdicts on all claims given these results of every experiment."""
    lines = [line for experiment in params().experiments.values() for line in lines_of(experiment)]
    return {one.verdict.status for one in judge(*claims().values(), entered=trials(lines)) if one.basis == "results"}


@pytest.mark.slow
def test_shortened_runs_decide_nothing() -> None:
    """Under `quick`, real data and many epochs may indicate an order, however many replicates there are."""

    def cut(experiment: ExperimentParams) -> list[ResultLine]:
        return [dataclasses.replace(line, profile="quick") for line in trained(experiment)]

    assert statuses_of_results(cut) == {Status.AGREES, Status.DISAGREES, Status.NOT_TESTED, Status.SHOWN}


@pytest.mark.slow
def test_diverged_replicates_reproduce_nothing() -> None:
    """One replicate of each arm diverged; a number printed without diverged replicates isn't reproduced."""

    def lost(experiment: ExperimentParams) -> list[ResultLine]:
        gone = Divergence(step=9, last_finite_step=8, last_finite_loss=None)
        return [
            dataclasses.replace(line, status="diverged", metrics=(), weights_sha256=None, divergence=gone)
            if line.replicate == 1
            else line
            for line in trained(experiment)
        ]

    statuses = statuses_of_results(lost)
    assert len(statuses) > 3 and statuses.isdisjoint({Status.REPRODUCED, Status.SUPPORTED, Status.REVERSED})


@pytest.fixture(scope="module")
def client(root: Path) -> Iterator[TestClient]:
    app = create_app(Settings(root=root, database=str(root / "data" / "results.db")))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        yield client


@pytest.mark.slow
def test_claim_shows_each_arms_selected_epoch_and_standard_error(client: TestClient) -> None:
    arms = client.get("/api/v1/claims/dac.fig5").json()["arms"]
    page = client.get("/claims/dac.fig5").text
    single = client.get("/api/v1/claims/ninformer.table2.mnist.vit").json()["arms"]
    assert len(arms) == 8 and {(arm["epoch"], arm["epochs"], arm["n"]) for arm in arms} == {(5, 256, 5)}
    assert all(arm["low"] < arm["value"] < arm["high"] and arm["stderr"] > 0 for arm in arms)
    assert "standard error: as in Appendix B" in page and page.count("5 of 256") == 8
    assert single == []


@pytest.mark.slow
def test_all_pages_and_reports_render(root: Path, client: TestClient) -> None:
    papers = {experiment.paper for experiment in params().experiments.values()}
    claims = client.get("/api/v1/claims?limit=1000").json()
    pages = ["/", "/compare", *(f"/papers/{paper}" for paper in papers)]
    pages += [f"/?dataset={experiment.dataset}" for experiment in params().experiments.values()]
    pages += [f"/experiments/{name}" for name in params().experiments]
    judged = [f"/claims/{claim['id']}" for claim in claims if claim["verdict"]["basis"] == "results"]
    pages += judged[::6]
    answers = {page: client.get(page) for page in dict.fromkeys(pages)}
    assert {page: answer.status_code for page, answer in answers.items() if answer.status_code != 200} == {}
    assert not [page for page, answer in answers.items() if ">nan" in answer.text or ">None<" in answer.text]
    said = [text.text for page, text in answers.items() if page.startswith("/claims/")]
    assert sum("Would a rerun by the authors give the printed number?" in text for text in said) > 10
    assert sum("not from what came out. We plan 5 replicates with" in text for text in said) > 10
    assert "nan" not in results_page(str(root / "data" / "results.db"))
