"""A published outcome of the experiment's folder, and its result and cost lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from stages.checkpoint.predictor import Predictor, load_predictor
from stages.datasets.packed import PackedInfo
from stages.evaluation.cost import Latency
from stages.run import RunSpec
from stages.runs.curves import EpochRow
from stages.runs.evidence import CostLine, DataUsed, Divergence, Layers, Measurement, Moment, ResultLine
from stages.runs.outcome import find_fault, outcome_digest
from stages.runs.store import ListedRun, RunList


class EvaluationError(ValueError):
    """A run, or every run, can't be evaluated; the message says what to do."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Results of a pass over the test set, and the paper's observations inside; empty for a run that diverged."""

    metrics: tuple[Measurement, ...] = ()
    correct: str | None = None
    confusion: str | None = None
    observed: Mapping[Moment, Layers] | None = None


class TrainedRun:
    """A run whose outcome is complete, without its network.

    Raises:
        EvaluationError: the outcome is damaged, or was trained on other data than `info`'s.
    """

    def __init__(self, run: ListedRun, folder: Path, info: PackedInfo) -> None:
        self.run, self.folder, self.info = run, folder, info
        train = f"dvc repro train@{folder.parent.name}"
        if fault := find_fault(folder, run.run_key):
            raise EvaluationError(f"{folder}: {fault}; `{train}` trains it anew")
        try:
            self.digest = outcome_digest(folder)
            self.spec: dict[str, Any] = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
            self.result: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            # Losses are means of single-precision numbers: eight digits are all that they hold.
            lines = (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
            self.history = [json.loads(line, parse_float=lambda text: float(f"{float(text):.8g}")) for line in lines]
            self.planned = RunSpec.from_dict(self.spec)
        except (ValueError, TypeError, KeyError) as error:  # an outcome of an older version has no digest over all
            raise EvaluationError(f"{folder}: can't be read ({error}); `{train}` trains it anew") from None
        if self.planned.data_digest != info.digest:
            raise EvaluationError(
                f"data/processed/{info.dataset} has digest {info.digest[:12]}, this was trained on "
                f"{self.planned.data_digest[:12]}; run `{train}` first"
            )

    @property
    def label(self) -> str:
        return f"{self.run.arm}.{self.run.replicate}"

    @property
    def has_network(self) -> bool:
        """False if the run diverged."""
        return bool(self.result["status"] == "finished")

    def load(self, device: str) -> Predictor:
        """Load its network.

        Raises:
            CheckpointError: the weights can't be loaded.
        """
        weights = self.folder / "weights.safetensors"
        return load_predictor(weights, device=device, expected_sha256=self.result["weights_sha256"])

    def result_line(self, run_list: RunList, measured: Measured) -> ResultLine:
        info, known = self.info, {field.name for field in fields(EpochRow)}
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
            metrics=measured.metrics,
            curves=tuple(
                EpochRow(**{key: value for key, value in row.items() if key in known}) for row in self.history
            ),
            weights_sha256=self.result["weights_sha256"],
            correct=measured.correct,
            confusion=measured.confusion,
            divergence=Divergence(**self.result["divergence"]) if self.result["divergence"] else None,
            observed=measured.observed,
        )

    def cost_line(self, experiment: str, latency: Latency | None) -> CostLine:
        rate, info = self.result["samples_per_second"], self.info
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
