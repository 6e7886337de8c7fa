"""From an experiment's trained runs to its result and cost lines: where a finished run meets test data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from stages.checkpoint.predictor import Predictor, load_predictor
from stages.datasets.packed import PackedInfo, read_info
from stages.equivalence import Equivalences, read_equivalences
from stages.evaluation.cost import Latency, measure_latencies
from stages.evaluation.flops import FlopCounts
from stages.evaluation.observing import Inside, Observer
from stages.evaluation.scores import Scores, score
from stages.evidence import (
    CostLine,
    DataUsed,
    Divergence,
    EpochRow,
    ResultLine,
)
from stages.experiment import LatencySpec
from stages.fingerprint import code_today, unlike_loaded
from stages.outcome import find_fault
from stages.run import RunSpec
from stages.runlist import ListedRun, RunList, read_run_list
from stages.training.kinds import RowSet, read_rows


class EvaluationError(ValueError):
    """The experiment's folder can't be evaluated; the message says what to run first."""


def evaluate_experiment(
    name: str, data: Path, latency: LatencySpec, device: str
) -> tuple[list[ResultLine], list[CostLine]]:
    """Result and cost lines of every run in `data/runs/<name>/`, in the order of its run list.

    Raises:
        EvaluationError: there is no run list, or the test data are not those that the runs were trained beside.
        EvidenceError: a line of equivalent codes can't be read, or isn't as it was written.
    """
    run_list = read_run_list(data / "runs" / name)
    if run_list is None:
        raise EvaluationError(f"data/runs/{name}/runs.json: no such file; run `dvc repro train@{name}` first")
    packed = data / "processed" / run_list.dataset
    info = read_info(packed)
    test_set = read_rows(packed, info, "test")
    outcomes = [_Outcome(run, data / "runs" / name / run.run_key, device) for run in run_list.runs]
    for outcome in outcomes:
        if outcome.spec["data_digest"] != info.digest:
            raise EvaluationError(
                f"data/processed/{run_list.dataset} has digest {info.digest[:12]}, run {outcome.run.run_key[:12]} was "
                f"trained on {outcome.spec['data_digest'][:12]}; run `dvc repro train@{name}` first"
            )
    equivalences = read_equivalences(data.parent)
    for outcome in outcomes:
        if unlike := unlike_loaded(_code_of(outcome, equivalences)):
            raise EvaluationError(
                f"run {outcome.run.run_key[:12]} was trained by other code than evaluates it ({', '.join(unlike)}); "
                f"run `dvc repro train@{name}` first"
            )
    latencies = _latencies(outcomes, info, latency, device)
    counts, observer = FlopCounts(), Observer(test_set)
    results = [outcome.result_line(run_list, test_set, info, counts, observer) for outcome in outcomes]
    counts.save()
    return results, [outcome.cost_line(name, info, latencies.get(outcome.run.arm)) for outcome in outcomes]


def _code_of(outcome: _Outcome, equivalences: Equivalences) -> Mapping[str, str]:
    """The code that has to evaluate it: what trained it, or what that became without changing a number."""
    if equivalences.today(outcome.spec, outcome.result["environment"]):
        return code_today(outcome.spec) or {}
    code: Mapping[str, str] = outcome.spec["code"]
    return code


def _latencies(outcomes: Sequence[_Outcome], info: PackedInfo, latency: LatencySpec, device: str) -> dict[str, Latency]:
    """One network an arm, timed in turn so that a drifting machine hits all arms alike."""
    first = {outcome.run.arm: outcome.predictor for outcome in reversed(outcomes) if outcome.predictor is not None}
    timed = measure_latencies(
        [predictor.network for predictor in first.values()],
        info.shape,
        vocabulary=info.vocabulary,
        device=device,
        # A window is a thousand samples already, and its logits are most of the memory.
        batch_size=1 if info.kind == "text" else latency.batch_size,
        warmup=latency.warmup,
        repeats=latency.repeats,
    )
    return dict(zip(first, timed, strict=True))


class _Outcome:
    """A published outcome and what is measured on it; `predictor` is None where the run diverged."""

    def __init__(self, run: ListedRun, folder: Path, device: str) -> None:
        self.run = run
        if fault := find_fault(folder, run.run_key):
            raise EvaluationError(f"{folder}: {fault}; `dvc repro train@{folder.parent.name}` trains it anew")
        self.spec: dict[str, Any] = json.loads((folder / "spec.json").read_text())
        self.result: dict[str, Any] = json.loads((folder / "result.json").read_text())
        # Losses are means of single-precision numbers: eight digits are all that they hold.
        lines = (folder / "history.jsonl").read_text().splitlines()
        self.history = [json.loads(line, parse_float=lambda text: float(f"{float(text):.8g}")) for line in lines]
        weights = folder / "weights.safetensors"
        self.predictor: Predictor | None = None
        if self.result["status"] == "finished":
            self.predictor = load_predictor(weights, device=device, expected_sha256=self.result["weights_sha256"])

    def result_line(
        self, run_list: RunList, test_set: RowSet, info: PackedInfo, counts: FlopCounts, observer: Observer
    ) -> ResultLine:
        scores, inside = Scores(), Inside()
        if self.predictor is not None:
            spec = RunSpec.from_dict(self.spec)
            flops = counts.count(spec.model, info.shape, info.vocabulary)
            scores = score(self.predictor, test_set, info, spec.protocol, self.history, flops)
            inside = observer.observe(self.predictor, spec.replicate)
        known = {field.name for field in fields(EpochRow)}
        return ResultLine(
            experiment=run_list.experiment,
            arm=self.run.arm,
            replicate=self.run.replicate,
            run_key=self.run.run_key,
            profile=run_list.profile,
            cut=run_list.cut,
            status=self.result["status"],
            spec=self.spec,
            data=DataUsed(
                dataset=info.dataset,
                digest=info.digest,
                provenance=info.provenance,
                train_images=info.train_images,
                test_images=info.test_images,
                excluded_test_images=info.excluded_test_images,
            ),
            environment_digest=self.result["environment_digest"],
            environment=self.result["environment"],
            metrics=(*scores.metrics, *inside.metrics),
            curves=tuple(
                EpochRow(**{key: value for key, value in row.items() if key in known}) for row in self.history
            ),
            weights_sha256=self.result["weights_sha256"],
            correct=scores.correct,
            confusion=scores.confusion,
            divergence=Divergence(**self.result["divergence"]) if self.result["divergence"] else None,
            observed=inside.layers,
        )

    def cost_line(self, experiment: str, info: PackedInfo, latency: Latency | None) -> CostLine:
        rate = self.result["samples_per_second"]
        return CostLine(
            experiment=experiment,
            arm=self.run.arm,
            replicate=self.run.replicate,
            run_key=self.run.run_key,
            environment_digest=self.result["environment_digest"],
            train_seconds=self.result["train_seconds"],
            epoch_seconds=tuple(round(seconds, 4) for seconds in self.result["epoch_seconds"]),
            samples_per_second=rate,
            train_tokens_per_second=rate * info.shape[0] if info.kind == "text" else None,
            peak_memory_bytes=self.result["peak_memory_bytes"],
            energy_joules=self.result.get("energy_joules"),
            latency_seconds_per_sample=latency.seconds_per_sample if latency else None,
            latency_batch_size=latency.batch_size if latency else None,
            latency_warmup=latency.warmup if latency else None,
            latency_repeats=latency.repeats if latency else None,
            latency_device=latency.device if latency else None,
            latency_threads=latency.threads if latency else None,
        )
