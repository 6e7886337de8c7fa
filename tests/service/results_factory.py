"""Make a root with result lines as by `evaluate` and small real checkpoints, for `record`."""

import csv
import dataclasses
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from stages.checkpoint.contract import InputContract
from stages.checkpoint.predictor import dump_checkpoint
from stages.papers import build_model
from stages.params.experiment import ExperimentParams, PlannedRun, describe_cut, load_params, plan_runs
from stages.run import ModelSpec, RunSpec, environment_digest
from stages.runs.evidence import (
    CostLine,
    DataUsed,
    Divergence,
    EpochRow,
    EvidenceLine,
    Measurement,
    ResultLine,
    pack_confusion,
    pack_correct,
    unpack_confusion,
    unpack_correct,
    write_lines,
)
from stages.runs.fingerprint import training_code
from tests.claims.lines import ORIGIN, cost, evaluate, line_of
from tests.project import pack_stand_in, whole_file

REPOSITORY = Path(__file__).resolve().parents[2]
PAPER_ACCURACY = {
    "ninformer-mnist": {"vit": 0.9712, "mlp-mixer": 0.9773, "local-vit": 0.9779, "ninformer": 0.9861},
    "ninformer-cifar10": {"vit": 0.6574, "mlp-mixer": 0.7012, "local-vit": 0.7771, "ninformer": 0.8159},
    "ninformer-cifar100": {"vit": 0.3487, "mlp-mixer": 0.3916, "local-vit": 0.4161, "ninformer": 0.5378},
}
LONG_TITLE = "MLP-Mixer, a tenth of the rate, started from the last solution"  # as long as real ones
CLAIM_COLUMNS = (
    *("id", "paper", "place", "experiment", "arm", "metric", "kind", "value", "unit", "precision", "stderr", "n"),
    *("baseline_arm", "better", "note"),
)
PAPER_TIMES = {"vit": 141.62, "mlp-mixer": 132.68, "local-vit": 139.65, "ninformer": 135.00}  # Table 3, MNIST
ENVIRONMENT = {"python": "3.11.7", "torch": "2.15.0", "device": "cpu", "processor": "x86-64"}
SMALL = {"dim": 8, "depth": 1, "num_heads": 2, "mlp_dim": 8, "token_dim": 8, "channel_dim": 8, "channels": 8}


def make_root(root: Path) -> Path:
    """Write MNIST as printed on full data, CIFAR-100 at quick (published) and smoke, CIFAR-10 on placeholder data."""
    write_params(root)
    write_claims(root)
    write_findings(root)
    paper = add_results(root, "ninformer-mnist", "paper", "full", published="2026-11-02T10:00:00Z")
    assert len(paper) == 12, "four arms with three replicates each"
    add_results(root, "ninformer-cifar100", "quick", "subset", published="2026-11-01T10:00:00Z")
    add_results(root, "ninformer-cifar100", "smoke", "embedded")
    add_results(root, "ninformer-cifar10", "smoke", "embedded")
    pack_stand_in(root / "data" / "processed" / "cifar100", "cifar100")
    return root


def write_params(root: Path) -> None:
    """Write three experiments, each with the arms of the paper's table."""
    index = yaml.safe_load((REPOSITORY / "params.yaml").read_text(encoding="utf-8"))
    index["experiments"] = {name: index["experiments"][name] for name in PAPER_ACCURACY}
    used = {entry["dataset"] for entry in index["experiments"].values()}
    index["datasets"] = {name: source for name, source in index["datasets"].items() if name in used}
    (root / "params.yaml").write_text(yaml.safe_dump(index, sort_keys=False), encoding="utf-8")
    (root / "params").mkdir()
    for name, arms in PAPER_ACCURACY.items():
        experiment = whole_file(name)
        experiment["arms"] = {arm: experiment["arms"][arm] for arm in arms}
        experiment["protocol"]["seeds"] = [0, 1, 2]
        if name == "ninformer-cifar100":
            experiment["arms"]["mlp-mixer"]["title"] = LONG_TITLE
        (root / "params" / f"{name}.yaml").write_text(yaml.safe_dump(experiment, sort_keys=False), encoding="utf-8")


def write_claims(root: Path) -> None:
    """Write Table 2's accuracies and Table 3's times of MNIST."""
    (root / "data").mkdir(exist_ok=True)
    table2 = {
        "place": "Table 2",
        "metric": "accuracy",
        "unit": "fraction",
        "precision": 0.0001,
        "n": 1,
        "better": "higher",
    }
    table3 = {"place": "Table 3", "metric": "inference_time", "unit": "ns", "better": "lower"}
    printed = [("table2", name, table2, arms) for name, arms in PAPER_ACCURACY.items()]
    with (root / "data" / "claims.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, CLAIM_COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        for table, experiment, fields, arms in [*printed, ("table3", "ninformer-mnist", table3, PAPER_TIMES)]:
            for arm, value in arms.items():
                own = {
                    "id": f"ninformer.{table}.{experiment.split('-')[1]}.{arm}",
                    "experiment": experiment,
                    "arm": arm,
                }
                writer.writerow({**own, "paper": "ninformer", "kind": "value", "value": value, **fields})


def write_findings(root: Path) -> None:
    """Write one finding, about an impossible time."""
    finding = {
        "claim": "ninformer.table3.mnist.vit",
        "paper": "ninformer",
        "holds": False,
        "contradicted": True,
        "computed": {"times_peak": 113.3},
        "explanation": "The printed time needs more than the card's peak.",
    }
    (root / "data" / "findings.jsonl").write_text(json.dumps(finding) + "\n", encoding="utf-8")


def add_results(
    root: Path,
    name: str,
    profile_name: str,
    provenance: str,
    *,
    published: str | None = None,
    diverged: tuple[str, int] | None = None,
    code: dict[str, str] | None = None,
) -> list[ResultLine]:
    """Add a result with small weights for every planned run of a profile, as evidence if `published` is given.

    `code` overrides digests of the runs' fingerprints.
    """
    params = load_params(root)
    experiment, profile = params.experiments[name], params.profiles[profile_name]
    source = params.datasets[experiment.dataset]
    cut = describe_cut(experiment, profile, source)
    results, costs = [], []
    for planned in plan_runs(experiment, profile, source):
        digest = hashlib.sha256(f"{experiment.dataset} {provenance}".encode()).hexdigest()
        spec, (_, arm, replicate) = planned.spec, planned.name
        fingerprint = training_code(source.kind, spec.model.path, spec.protocol.optimizer.name)
        spec = dataclasses.replace(spec, data_digest=digest, code={**fingerprint, **(code or {})})
        is_diverged = diverged == (arm, replicate)
        weights = "" if is_diverged else _write_weights(root, experiment, arm, spec, replicate)
        data = DataUsed(
            dataset=experiment.dataset,
            digest=digest,
            provenance=provenance,  # type: ignore[arg-type]
            train_images=source.train,
            test_images=64 if provenance == "embedded" else source.test,
        )
        results.append(_result_line(planned, spec, data, profile_name, cut, weights, is_diverged=is_diverged))
        costs.append(_cost_line(results[-1]))
    if published is None:
        evaluate(root, results, costs)
        return results
    (root / "data" / "evidence").mkdir(parents=True, exist_ok=True)
    with (root / "data" / "evidence" / f"{name}.jsonl").open("ab") as file:
        file.write(write_lines(as_published(*both, published) for both in zip(results, costs, strict=True)))
    return results


def _write_weights(root: Path, experiment: ExperimentParams, arm: str, spec: RunSpec, index: int) -> str:
    arguments = {key: SMALL.get(key, value) for key, value in spec.model.arguments.items()}
    model = ModelSpec(path=spec.model.path, arguments=arguments)
    classes = int(arguments["num_classes"])
    prefix = "digits" if experiment.dataset != "mnist" else "digit"
    contract = InputContract(
        model=model,
        shape=(arguments["in_channels"], arguments["image_size"], arguments["image_size"]),
        mean=spec.protocol.mean,
        std=spec.protocol.std,
        classes=tuple(f"{prefix}-{number}" for number in range(classes)),
        run_key=spec.run_key,
        dataset=experiment.dataset,
        data_digest=spec.data_digest,
    )
    torch.manual_seed(index)
    content = dump_checkpoint(build_model(model), contract)
    path = root / "data" / "runs" / experiment.name / spec.run_key / "weights.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    path.with_name("result.json").write_text(json.dumps({"weights_sha256": digest}), encoding="utf-8")
    return digest


def classes_of(experiment: str) -> int:
    return 100 if "cifar100" in experiment else 10


def _result_line(
    planned: PlannedRun, spec: RunSpec, data: DataUsed, profile: str, cut: str, weights: str, *, is_diverged: bool
) -> ResultLine:
    reach = {"paper": 1.0, "quick": 0.62, "smoke": 0.05}[profile]
    final = reach * PAPER_ACCURACY[planned.name.experiment][planned.name.arm] + 0.003 * planned.name.replicate - 0.002
    correct = np.arange(data.test_images) < round(final * data.test_images)
    accuracy, epochs = float(correct.mean()), spec.protocol.epochs
    classes = classes_of(planned.name.experiment)
    confusion = np.diag(np.full(classes, correct.sum() // classes))
    confusion[0, 0] += correct.sum() % classes
    confusion[0, 1] = len(correct) - correct.sum()
    curves = tuple(
        EpochRow(
            epoch=epoch,
            steps=epoch * 390,
            lr=0.001,
            train_loss=2.3 * math.exp(-epoch / 5) + 0.2,
            train_accuracy=min(0.99, final * (1 - math.exp(-epoch / 2)) + 0.03),
            test_loss=2.3 * math.exp(-epoch / 6) + 0.3,
            test_accuracy=accuracy * (1 - math.exp(-epoch / 2)) / (1 - math.exp(-epochs / 2)),
        )
        for epoch in range(1, epochs + 1)
    )
    best = max(row.test_accuracy for row in curves if row.test_accuracy is not None)
    metrics = (
        Measurement(metric="accuracy", split="test", value=accuracy, n=data.test_images),
        Measurement(metric="best_epoch_accuracy", split="test", value=best, n=data.test_images),
        Measurement(metric="calibration_error", split="test", value=0.041, n=data.test_images),
        Measurement(metric="loss", split="test", value=1.23 - final, n=data.test_images),
        Measurement(metric="flops_per_image", split="none", value=2.85e8),
        Measurement(metric="parameters", split="none", value=2_143_588.0),
    )
    return line_of(
        planned.name,
        spec,
        data,
        ENVIRONMENT,
        profile=profile,
        cut=cut,
        metrics=metrics,
        curves=curves[:1] if is_diverged else curves,
        weights_sha256=weights,
        correct=None if is_diverged else pack_correct(correct),
        confusion=None if is_diverged else pack_confusion(confusion),
        divergence=Divergence(step=400, last_finite_step=390, last_finite_loss=1.83) if is_diverged else None,
    )


def without_test_images(line: ResultLine, excluded: int) -> ResultLine:
    """Return the same predictions without the last `excluded` test images."""
    assert line.correct is not None and line.confusion is not None
    n = line.data.test_images - excluded
    correct = unpack_correct(line.correct, line.data.test_images)[:n]
    confusion = unpack_confusion(line.confusion, classes_of(line.experiment))
    confusion[0, 1] -= excluded
    curves = [*line.curves[:-1], dataclasses.replace(line.curves[-1], test_accuracy=float(correct.mean()))]
    best = max(row.test_accuracy for row in curves if row.test_accuracy is not None)
    changed = {"accuracy": float(correct.mean()), "best_epoch_accuracy": best}
    metrics = [
        dataclasses.replace(row, value=changed.get(row.metric, row.value), n=n) if row.split == "test" else row
        for row in line.metrics
    ]
    return dataclasses.replace(
        line,
        data=dataclasses.replace(line.data, test_images=n, excluded_test_images=excluded),
        metrics=tuple(metrics),
        curves=curves,
        correct=pack_correct(correct),
        confusion=pack_confusion(confusion),
    )


def _cost_line(line: ResultLine) -> CostLine:
    seconds = {"vit": 1.4e-4, "mlp-mixer": 1.1e-4, "local-vit": 1.8e-4, "ninformer": 2.1e-4}[line.arm]
    timed: dict[str, Any] = {
        "latency_seconds_per_sample": seconds,
        "latency_batch_size": 128,
        "latency_warmup": 3,
        "latency_repeats": 10,
        "latency_device": "Some CPU",
        "latency_threads": 2,
    }
    return cost(
        line,
        train_seconds=842.5,
        samples_per_second=333.0,
        peak_memory_bytes=3_221_225_472,
        energy_joules=None,
        **(timed if line.replicate == 0 else {}),
    )


def as_published(line: ResultLine, cost: CostLine, published: str, *, machine: str | None = None) -> EvidenceLine:
    """Turn a local result into evidence, from the machine named `machine` if given."""
    if machine is not None:
        environment = {**line.environment, "device_name": machine}
        digest = environment_digest(environment)
        line = dataclasses.replace(line, environment=environment, environment_digest=digest)
        cost = dataclasses.replace(cost, environment_digest=digest)
    return EvidenceLine(result=line, cost=cost, origin=dataclasses.replace(ORIGIN, published=published))
