"""Result lines in the format of `evaluate`, with numbers chosen by tests."""

import dataclasses
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy.orm import Session

from stages.claims import ClaimLine, Facts, Judgement, Trial, gather, judge_claims, read_claims
from stages.datasets.manifest import Digests, all_files, judge_provenance
from stages.datasets.mirror import MirrorInfo, describe_file
from stages.datasets.prepare import READERS
from stages.datasets.sources import compose_manifest
from stages.params.experiment import Params, RunName, load_params, plan_runs
from stages.recording.builder import record
from stages.recording.sources import lab_seeds
from stages.results import open_results
from stages.run import RunSpec, environment_digest
from stages.runs.evidence import (
    CostLine,
    DataUsed,
    Divergence,
    EpochRow,
    EvidenceLine,
    Measurement,
    Origin,
    Provenance,
    ResultLine,
    pack_correct,
    write_lines,
)
from stages.runs.fingerprint import training_code
from stages.verdicts import TableSentence

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 360.0
ORIGIN = Origin(revision="0" * 40, dirty=False, published="2026-01-01", versions={"torch": "2.15.0"})
Values = Sequence[float | None]


@cache
def params() -> Params:
    return load_params(ROOT)


@cache
def claims() -> dict[str, ClaimLine]:
    return {claim.id: claim for claim in read_claims(ROOT / "data" / "claims.csv")}


def copy_project(root: Path) -> None:
    """Copy all params and claims, without results."""
    shutil.copytree(ROOT / "params", root / "params")
    shutil.copy(ROOT / "params.yaml", root)
    (root / "data").mkdir()
    for name in ("claims.csv", "claims-history.jsonl"):
        shutil.copy(ROOT / "data" / name, root / "data")


def publish(root: Path, lines: Sequence[ResultLine], lab: str | None = None) -> None:
    """Publish lines of one experiment as evidence, of another `lab` if one is named."""
    file = root / "data" / "evidence" / (f"labs/{lab}.jsonl" if lab else f"{lines[0].experiment}.jsonl")
    file.parent.mkdir(exist_ok=True, parents=True)
    origin = dataclasses.replace(ORIGIN, lab=lab)
    lines = [reseed(line, lab) for line in lines] if lab else lines
    evidence = [EvidenceLine(result=line, cost=cost(line), origin=origin) for line in map(as_evaluated, lines)]
    file.write_bytes(write_lines(evidence))


def reseed(line: ResultLine, lab: str) -> ResultLine:
    """Return the line as if trained with the lab's own seed."""
    replicate = line.spec["replicate"]
    spec = {**line.spec, "replicate": {**replicate, "seed": lab_seeds(lab, [replicate["seed"]])[0]}}
    return dataclasses.replace(line, spec=spec, run_key=RunSpec.from_dict(spec).run_key)


def as_evaluated(line: ResultLine) -> ResultLine:
    """Complete a line with curves to the last epoch, a whole number of correct images, their bitmap and the best epoch.

    A table has the errors of its selected epoch in every epoch.
    """
    protocol = line.spec["protocol"]
    curves = list(line.curves[: protocol["epochs"]])
    while line.status == "finished" and "early_stop" not in protocol and len(curves) < protocol["epochs"]:
        curves.append(EpochRow(**vars(curves[-1]) | {"epoch": len(curves) + 1, "steps": 10 * (len(curves) + 1)}))
    metrics = {row.metric: row for row in line.metrics}
    correct = None
    if "selected_log_mse" in metrics:
        error = math.exp(metrics["selected_log_mse"].value)
        curves = [dataclasses.replace(row, val_loss=error, test_loss=error) for row in curves]
        for name in ("mse", "log_mse", "selected_mse", "selected_log_mse"):
            metrics[name] = dataclasses.replace(
                metrics["selected_log_mse"], metric=name, value=math.log(error) if "log" in name else error
            )
    if "accuracy" in metrics:
        n = line.data.test_images
        right = round(metrics["accuracy"].value * n)
        correct = pack_correct(np.arange(n) < right)
        metrics["accuracy"] = dataclasses.replace(metrics["accuracy"], value=right / n, n=n)
        best = max(row.test_accuracy for row in curves if row.test_accuracy is not None)
        metrics["best_epoch_accuracy"] = dataclasses.replace(
            metrics["accuracy"], metric="best_epoch_accuracy", value=best
        )
    return dataclasses.replace(line, curves=tuple(curves), metrics=tuple(metrics.values()), correct=correct)


@cache
def loaded(dataset: str) -> Provenance:
    """Return the provenance of a data set that is complete as published: every file and row."""
    source = params().datasets[dataset]
    files = {}
    for file in source.files:
        digests = Digests(md5=file.md5 or "0" * 32, sha256=file.sha256 or "0" * 64, size_bytes=1)
        files[file.name] = describe_file(digests, file)
    manifest = compose_manifest(dataset, dataset, MirrorInfo(complete=True, files=files))
    by_split = READERS[source.reader].files if source.reader in READERS else all_files(source)
    return judge_provenance(source, manifest, source.train, source.test, files=by_split, content_is_whole=True)


def results(
    experiment: str,
    values: Mapping[str, Values],
    *,
    metric: str = "accuracy",
    profile: str = "paper",
    provenance: Provenance | None = None,
    epochs: int | None = None,
    curves: Mapping[str, Sequence[Sequence[float]]] | None = None,
    excluded: int = 0,
    environment: str = "the first",
) -> list[ResultLine]:
    """One line per arm and replicate; None means diverged. `curves` are test and validation errors by replicate.

    Tables have squared errors instead. Data are complete unless `provenance` says otherwise.
    """
    known = params()
    plan = known.experiments[experiment]
    provenance = provenance or loaded(plan.dataset)
    source = known.datasets[plan.dataset]
    facts = {"device": "cuda:0", "device_name": "NVIDIA H100", "machine": environment}
    every_seed = dataclasses.replace(known.profiles[profile], replicates=None)
    data = DataUsed(
        dataset=plan.dataset,
        digest=provenance,
        provenance=provenance,
        train_images=source.train,
        test_images=source.test - excluded,
        excluded_test_images=excluded,
    )
    lines = []
    for run in plan_runs(plan, every_seed, source, every_role=True):
        if run.name.replicate >= len(values.get(run.name.arm, ())):
            continue
        value = values[run.name.arm][run.name.replicate]
        protocol = run.spec.protocol if epochs is None else dataclasses.replace(run.spec.protocol, epochs=epochs)
        code = training_code(source.kind, run.spec.model.path, protocol.optimizer.name)
        spec = dataclasses.replace(run.spec, protocol=protocol, data_digest=provenance, code=code)
        last = 0.5 if value is None or not 0 <= value <= 1 else 1 - value
        errors = curves[run.name.arm][run.name.replicate] if curves else [last]
        lines.append(
            line_of(
                run.name,
                spec,
                data,
                facts,
                profile=profile,
                divergence=Divergence(step=9, last_finite_step=8, last_finite_loss=None) if value is None else None,
                curves=tuple(_row(number, error, source.kind) for number, error in enumerate(errors, start=1)),
                metrics=() if value is None else _metrics(metric, value, data.test_images),
                weights_sha256="0" * 64,
            )
        )
    return lines


def line_of(
    name: RunName,
    spec: RunSpec,
    data: DataUsed,
    environment: Mapping[str, str],
    *,
    divergence: Divergence | None,
    metrics: tuple[Measurement, ...],
    weights_sha256: str,
    **more: Any,
) -> ResultLine:
    """Return a run's line; a diverged run has neither metrics nor weights."""
    return ResultLine(
        **name._asdict(),
        run_key=spec.run_key,
        status="diverged" if divergence else "finished",
        spec=spec.to_dict(),
        data=data,
        environment_digest=environment_digest(environment),
        environment=environment,
        metrics=() if divergence else metrics,
        weights_sha256=None if divergence else weights_sha256,
        divergence=divergence,
        **{"cut": ""} | more,
    )


def _metrics(metric: str, value: float, n: int) -> tuple[Measurement, ...]:
    return (
        Measurement(metric=metric, split="test", value=value, n=n),
        Measurement(metric="flops_per_image", split="none", value=1e6),
    )


def _row(epoch: int, error: float, kind: str) -> EpochRow:
    loss = error if kind == "table" else 1.0
    return EpochRow(
        epoch=epoch,
        steps=10 * epoch,
        lr=0.1,
        train_loss=1.0,
        train_accuracy=0.5,
        val_loss=loss,
        val_accuracy=1 - error,
        test_loss=loss,
        test_accuracy=1 - error,
    )


def cost(line: ResultLine, *, train_seconds: float = SECONDS, **more: Any) -> CostLine:
    measured = {"samples_per_second": 1.0, "peak_memory_bytes": 2**30, "energy_joules": 700_000.0}
    same = ("experiment", "arm", "replicate", "run_key", "environment_digest")
    return CostLine(
        **{name: getattr(line, name) for name in same},
        train_seconds=train_seconds,
        epoch_seconds=tuple(train_seconds / len(line.curves) for _ in line.curves),
        **measured | more,
    )


def evaluate(root: Path, lines: Sequence[ResultLine], costs: Sequence[CostLine] = ()) -> None:
    """Write local results of one experiment, with default costs unless `costs` are given."""
    folder = root / "data" / "results"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{lines[0].experiment}.jsonl").write_bytes(write_lines(lines))
    (folder / f"{lines[0].experiment}.cost.jsonl").write_bytes(write_lines(costs or list(map(cost, lines))))


@contextmanager
def recorded(root: Path) -> Iterator[Session]:
    """Record a project, and open a session on its database."""
    record(root, "data/results.db")
    with open_results(str(root / "data" / "results.db"))() as session:
        yield session


def trials(lines: Sequence[ResultLine], *, is_evidence: bool = False, follows_plan: bool = True) -> list[Trial]:
    return [
        Trial(
            row=number,
            result=line,
            cost=cost(line),
            origin=ORIGIN if is_evidence else None,
            release=None,
            file=Path(),
            line=number,
            follows_plan=follows_plan,
            varied=params().experiments[line.experiment].varied,
        )
        for number, line in enumerate(lines, start=1)
    ]


def judge(*wanted: ClaimLine, entered: Sequence[Trial] = ()) -> list[Judgement]:
    """Judge a few claims without findings."""
    return judge_all(wanted, entered)[0]


def judge_all(
    wanted: Sequence[ClaimLine], entered: Sequence[Trial]
) -> tuple[list[Judgement], dict[str, TableSentence]]:
    groups, devices = gather(params(), entered), {"ninformer": "RTX 2080 Ti"}
    return judge_claims(Facts(claims=wanted, params=params(), groups=groups, devices=devices))
