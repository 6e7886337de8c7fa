"""The day when everything is trained: every run of every experiment as printed, with made-up numbers, on one card."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from stages.evidence import Divergence, Measurement, ResultLine
from stages.experiment import Arm, Experiment
from stages.ledger.trained import PER_BYTE
from stages.recording import record
from stages.reporting import write_docs
from stages.results import ClaimFilter, JudgedClaim, list_judged, open_results
from stages.verdicts import Status
from tests.ledger.lines import copy_project, params, publish, replicates_of, results

METRICS = {
    "images": ("accuracy", "best_epoch_accuracy", "calibration_error", "loss"),
    "table": ("mse", "log_mse", "selected_mse", "selected_log_mse"),
    "text": ("loss", "perplexity"),
}
"""What `evaluate` measures on test samples, by the kind of the data."""


def trained(experiment: Experiment) -> list[ResultLine]:
    """All replicates of all arms; each arm is a point better than the one before it."""
    replicates = range(replicates_of(experiment))
    values = {
        arm: [0.5 + 0.01 * place % 0.4 + 0.001 * math.sin(place + 7 * replicate) for replicate in replicates]
        for place, arm in enumerate(experiment.arms)
    }
    curves = {arm: [[0.5, 0.4, *[1 - value] * 5] for value in row] for arm, row in values.items()}
    kind = params().datasets[experiment.dataset].kind
    return [
        dataclasses.replace(line, metrics=measured(kind, line.metrics, parameters_of(experiment.arms[line.arm])))
        for line in results(experiment.name, values, curves=curves)
    ]


def parameters_of(arm: Arm) -> float:
    """About as many as a network of equal layers has, twice that with biases of their own; two millions of others."""
    width, depth = arm.model.get("width"), arm.model.get("depth")
    if width is None or depth is None:
        return 2e6
    return float(width**2 * depth * (2 if "DAC" in arm.model["name"] else 1))


def measured(kind: str, metrics: Sequence[Measurement], parameters: float) -> tuple[Measurement, ...]:
    """The first of `metrics` under every name that this kind has."""
    first, *rest = metrics
    named = [
        dataclasses.replace(first, metric=name, value=math.log(1 - first.value) if "log" in name else first.value)
        for name in METRICS[kind]
    ]
    return (*named, *rest, Measurement(metric="parameters", split="none", value=parameters))


def recorded(root: Path, lines_of: Callable[[Experiment], list[ResultLine]] = trained) -> Path:
    """A project whose evidence are these results of every experiment, and its database."""
    copy_project(root)
    for experiment in params().experiments.values():
        publish(root, lines_of(experiment))
    record(root, "data/results.db")
    return root


def judge_all(root: Path) -> list[JudgedClaim]:
    with open_results(str(root / "data" / "results.db"))() as session:
        return list_judged(session, ClaimFilter())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("all-trained"))


def test_every_claim_of_an_experiment_is_decided(root: Path) -> None:
    judged = judge_all(root)
    open_still = {
        row.claim.id: row.verdict.explanation
        for row in judged
        if row.verdict.status == Status.NOT_TESTED and row.claim.experiment and not row.claim.reason
    }
    # Of bytes, and what `analyse` computes.
    assert {claim for claim, why in open_still.items() if why != PER_BYTE} == {"ninformer.text.c10.acc_vs_localvit"}
    assert sum(row.verdict.basis == "results" for row in judged) > 150


def test_a_cut_budget_decides_nothing(tmp_path: Path) -> None:
    """Real data and many epochs under `quick` may indicate an order, whatever the number of replicates."""

    def cut(experiment: Experiment) -> list[ResultLine]:
        return [dataclasses.replace(line, profile="quick") for line in trained(experiment)]

    judged = judge_all(recorded(tmp_path, cut))
    statuses = {Status(row.verdict.status) for row in judged if row.verdict.basis == "results"}
    assert statuses == {Status.AGREES, Status.DISAGREES, Status.NOT_TESTED, Status.SHOWN}


def test_replicates_that_diverged_reproduce_nothing(tmp_path: Path) -> None:
    """One of each arm; a number that is printed without diverged ones isn't had again."""

    def lost(experiment: Experiment) -> list[ResultLine]:
        gone = Divergence(step=9, last_finite_step=8, last_finite_loss=None)
        return [
            dataclasses.replace(line, status="diverged", metrics=(), divergence=gone) if line.replicate == 1 else line
            for line in trained(experiment)
        ]

    judged = judge_all(recorded(tmp_path, lost))
    statuses = {Status(row.verdict.status) for row in judged if row.verdict.basis == "results"}
    assert statuses.isdisjoint({Status.REPRODUCED, Status.SUPPORTED, Status.REVERSED})


def test_every_page_and_report_can_show_it(root: Path, tmp_path: Path) -> None:
    app = create_app(Settings(root=root, database=str(root / "data" / "results.db")))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        papers = {experiment.paper for experiment in params().experiments.values()}
        claims = client.get("/api/v1/claims?limit=1000").json()
        pages = ["/", "/compare", *(f"/papers/{paper}" for paper in papers)]
        pages += [f"/?dataset={experiment.dataset}" for experiment in params().experiments.values()]
        pages += [f"/experiments/{name}" for name in params().experiments]
        pages += [f"/claims/{claim['id']}" for claim in claims if claim["verdict"]["basis"] == "results"]
        answers = {page: client.get(page) for page in dict.fromkeys(pages)}
    assert {page: answer.status_code for page, answer in answers.items() if answer.status_code != 200} == {}
    assert not [page for page, answer in answers.items() if ">nan" in answer.text or ">None<" in answer.text]
    assert b"nan" not in write_docs(root, tmp_path / "results.md").read_bytes()
