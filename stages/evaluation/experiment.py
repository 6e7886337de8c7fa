"""Measures an experiment's trained runs on test data and writes its result and cost lines.

Only one network is in memory at a time.  A run's measurements are cached (`stages.evaluation.flops`); a run that can't
be evaluated doesn't stop the others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from stages.checkpoint.predictor import Predictor, load_predictor
from stages.datasets.packed import PackedInfo, read_info
from stages.evaluation.cost import Latency, Stopwatch
from stages.evaluation.flops import FlopCounts, MeasurementCache, digest_of
from stages.evaluation.scores import Observer, cut_info, cut_rows, score
from stages.params.callables import describe_guest, isolated
from stages.params.experiment import LatencySpec, ProfileParams
from stages.params.metrics import OwnMetric
from stages.params.stage_inputs import origin_of
from stages.run import ModelSpec, RunSpec
from stages.runs.consistency import find_contradictions
from stages.runs.equivalence import read_equivalences
from stages.runs.evidence import CostLine, DataUsed, Divergence, EpochRow, Layers, Measurement, Moment, ResultLine
from stages.runs.fingerprint import changed_modules, code_today, unlike_loaded
from stages.runs.store import ListedRun, RunList, find_fault, outcome_digest, read_run_list
from stages.training.kinds import RowSet, read_rows
from stages.training.process import describe_environment, describe_variables

CodeOf = Callable[[ModelSpec], Mapping[str, str]]
"""Digests of the modules that evaluate a model."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Lines in the order of the run list; `faults`: error messages by the label of the run.

    `kept`: labels of runs whose earlier measurements are reused, because files, code and machine are the same.
    `failed`: reasons why a run, by its label, lacks metrics of the user's own; its line has all others.
    """

    results: list[ResultLine] = field(default_factory=list)
    costs: list[CostLine] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def evaluate_experiment(
    name: str,
    data: Path,
    profile: ProfileParams,
    device: str,
    code_of: CodeOf,
    own: Mapping[str, OwnMetric] | None = None,
    *,
    anew: bool = False,
) -> Evaluation:
    """Return result and cost lines of the runs in `data/runs/<name>/`, with the profile's timing and test rows.

    `own`: metrics of the user's own.  `anew`: reuse no earlier measurement.

    Raises:
        EvaluationError: there is no run list.
        PackedDataError: the test data can't be read.
        EvidenceError: a line of equivalent codes can't be read, or was altered.
    """
    run_list = read_run_list(data / "runs" / name)
    if run_list is None:
        raise EvaluationError(f"data/runs/{name}/runs.json: no such file; run `dvc repro train@{name}` first")
    found = Evaluation(faults=dict.fromkeys(run_list.missing, f"has no outcome; `dvc repro train@{name}` trains it"))
    packed = data / "processed" / run_list.dataset
    info = cut_info(read_info(packed), profile.test_rows)
    runs = []
    for run in run_list.runs:
        try:
            runs.append(TrainedRun(run, data / "runs" / name / run.run_key, info))
        except EvaluationError as error:
            found.faults[f"{run.arm}.{run.replicate}"] = str(error)
    evaluator = _Evaluator(run_list, packed, info, device, code_of, own or {}, anew)
    latencies = evaluator.evaluate(runs, profile.latency, found)
    found.costs.extend(run.cost_line(name, latencies.get(run.label)) for run in runs if run.label not in found.faults)
    return found


@dataclass
class _Evaluator:
    """Evaluates runs on the test data, and caches measurements."""

    run_list: RunList
    packed: Path
    info: PackedInfo
    device: str
    code_of: CodeOf
    metrics: Mapping[str, OwnMetric]
    anew: bool

    def __post_init__(self) -> None:
        self.counts, self.kept, self.times = FlopCounts(), MeasurementCache("evaluated"), MeasurementCache("timed")
        self.equivalences = read_equivalences(self.packed.parent.parent.parent)
        self.environment = describe_environment(torch.device(self.device)) | describe_variables()

    @cached_property
    def origins(self) -> dict[str, Any]:
        """Definition, code and range of each metric of the user's own, by name."""
        return {name: origin_of(metric) | {"range": list(metric.range)} for name, metric in self.metrics.items()}

    @cached_property
    def test_set(self) -> RowSet:
        return cut_rows(read_rows(self.packed, self.info, "test"), self.info.test_images)

    @cached_property
    def observer(self) -> Observer:
        return Observer(self.test_set)

    @cached_property
    def data(self) -> list[str]:
        path = self.packed / "test.safetensors"
        if not path.is_file():
            read_rows(self.packed, self.info, "test")  # raises an error that says what to do
        with path.open("rb") as file:
            return [self.info.digest, str(self.info.test_images), hashlib.file_digest(file, "sha256").hexdigest()]

    def evaluate(self, runs: Sequence[TrainedRun], spec: LatencySpec, found: Evaluation) -> dict[str, Latency]:
        """Fill in results and faults; return inference times by the label of the run that represents its arm.

        Times are comparable only if measured together, so if one arm is new or changed, all are measured again.
        """
        timed: dict[str, TrainedRun] = {}
        for run in runs:
            if run.has_network:
                timed.setdefault(run.run.arm, run)
        timed_key = self._cache_key(list(timed.values()), asdict(spec))
        latencies = dict[str, Latency]()
        with suppress(AttributeError, TypeError):  # cached by another version, with other fields
            kept = None if self.anew else self.times.read(self.run_list.experiment, timed_key)
            latencies = {label: Latency(**latency) for label, latency in (kept or {}).items()}
        watch = (
            None
            if latencies or not timed
            else Stopwatch(
                self.info.shape,
                vocabulary=self.info.vocabulary,
                device=self.device,
                # A window has a thousand tokens already, and its logits are most of the memory.
                batch_size=1 if self.info.kind == "text" else spec.batch_size,
                warmup=spec.warmup,
                repeats=spec.repeats,
            )
        )
        for run in runs:
            with _isolate_failure(run, found):
                line, is_kept = self._line(run, watch if timed.get(run.run.arm) is run else None, found)
                found.results.append(line)
                found.kept.extend([run.label] * is_kept)
        self.counts.save()
        if watch is None:
            return latencies
        for _ in range(1, watch.rounds):
            for run in [run for run in timed.values() if run.label not in found.faults]:
                with _isolate_failure(run, found), _as_guest():
                    watch.time(run.label, run.load(self.device).network)
        latencies = watch.latencies()
        if len(latencies) == len(timed) and not self._ran_other_code(list(timed.values())):
            times = {label: asdict(latency) for label, latency in latencies.items()}
            self.times.write(self.run_list.experiment, timed_key, times)
        return latencies

    def _line(self, run: TrainedRun, watch: Stopwatch | None, found: Evaluation) -> tuple[ResultLine, bool]:
        """Return the run's result line, and whether its numbers were measured earlier; record metrics that fail."""
        if not self.equivalences.today(run.spec, run.result["environment"]):
            self._refuse_other_code(changed_modules(run.spec))
        key = self._cache_key([run], self.origins)
        kept: MeasuredRun | None = None
        earlier: Any = None if self.anew or not run.has_network else self.kept.read(run.run.run_key, key)
        with suppress(KeyError, TypeError):  # nothing is cached, or another version cached it, with other fields
            kept = MeasuredRun(**earlier | {"metrics": tuple(Measurement(**one) for one in earlier["metrics"])})
        if kept is not None and find_contradictions(run.result_line(self.run_list, kept)):
            kept = None
        measured = kept or MeasuredRun()
        if run.has_network and (kept is None or watch is not None):
            test_set = self.test_set if kept is None else None  # read here, so that no network is blamed for its faults
            with _as_guest():
                predictor = run.load(self.device)
                self._refuse_other_code(unlike_loaded(code_today(run.spec) or run.planned.code))
                if test_set is not None:
                    measured = self._measure(run, predictor, test_set, found)
                if watch is not None:
                    watch.time(run.label, predictor.network)
        line = run.result_line(self.run_list, measured)
        if contradictions := find_contradictions(line):
            raise EvaluationError(
                f"contradicts itself: {'; '.join(contradictions)}; remove data/store/runs/{run.run.run_key} and "
                f"`dvc repro -f train@{self.run_list.experiment}` trains it again"
            )
        if kept is None and run.has_network and run.label not in found.failed and not self._ran_other_code([run]):
            self.kept.write(run.run.run_key, key, asdict(measured))
        return line, kept is not None

    def _measure(self, run: TrainedRun, predictor: Predictor, test_set: RowSet, found: Evaluation) -> MeasuredRun:
        info, spec = self.info, run.planned
        flops = self.counts.count(spec.model, info.shape, info.vocabulary)
        scores = score(predictor, test_set, info, spec, run.history, flops, self.metrics)
        if scores.failed:
            found.failed[run.label] = "; ".join(f"metric {name}: {why}" for name, why in scores.failed.items())
        inside = self.observer.observe(predictor, spec.replicate)
        return MeasuredRun(
            metrics=(*scores.metrics, *inside.metrics),
            correct=scores.correct,
            confusion=scores.confusion,
            observed=inside.layers,
        )

    def _refuse_other_code(self, modules: Sequence[str]) -> None:
        if modules:
            raise EvaluationError(
                f"was trained by code that differs from the code here ({', '.join(modules)}); "
                f"run `dvc repro train@{self.run_list.experiment}` first"
            )

    def _cache_key(self, runs: Sequence[TrainedRun], settings: Mapping[str, Any] | None = None) -> str:
        """Return a digest of everything that a measurement depends on: outcomes, data, code, machine, settings."""
        outcomes = [[run.label if settings else "", run.digest, dict(self.code_of(run.planned.model))] for run in runs]
        return digest_of([outcomes, self.data, self.environment, dict(settings or {})])

    def _ran_other_code(self, runs: Sequence[TrainedRun]) -> bool:
        """True if a module was edited between its digest and its import, so the measured code is unknown."""
        return any(unlike_loaded(self.code_of(run.planned.model)) for run in runs)


@contextmanager
def _isolate_failure(run: TrainedRun, found: Evaluation) -> Iterator[None]:
    """Attribute a fault in this block to this run only: record it, drop the run's line, continue with the others."""
    try:
        yield
    except (ValueError, TypeError, RuntimeError, MemoryError) as error:  # out of memory is a RuntimeError in torch
        found.faults[run.label] = next(iter(str(error).splitlines()), type(error).__name__)
        identity = run.run.arm, run.run.replicate
        found.results[:] = [line for line in found.results if (line.arm, line.replicate) != identity]


@contextmanager
def _as_guest() -> Iterator[None]:
    """Undo what a network changes in the process, and turn whatever it raises into an error of `_isolate_failure`."""
    try:
        with isolated():
            yield
    except (ValueError, TypeError, RuntimeError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        raise EvaluationError(f"its network fails: {describe_guest(error)}") from error


class EvaluationError(ValueError):
    """A run, or every run, can't be evaluated; the message says what to do."""


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """Results of a pass over the test set, and observations inside the network; empty for a run that diverged."""

    metrics: tuple[Measurement, ...] = ()
    correct: str | None = None
    confusion: str | None = None
    observed: Mapping[Moment, Layers] | None = None


class TrainedRun:
    """A run whose outcome is complete, without its network.

    Raises:
        EvaluationError: the outcome is damaged, or was trained on data other than `info`'s.
    """

    def __init__(self, run: ListedRun, folder: Path, info: PackedInfo) -> None:
        self.run, self.folder, self.info = run, folder, info
        train = f"dvc repro train@{folder.parent.name}"
        if fault := find_fault(folder, run.run_key):
            raise EvaluationError(f"{folder}: {fault}; `{train}` trains it again")
        try:
            self.digest = outcome_digest(folder)
            self.spec: dict[str, Any] = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
            self.result: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
            # Losses are means of single-precision numbers, which hold only eight digits.
            lines = (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
            self.history = [json.loads(line, parse_float=lambda text: float(f"{float(text):.8g}")) for line in lines]
            self.planned = RunSpec.from_dict(self.spec)
        except (ValueError, TypeError, KeyError) as error:  # outcomes of older versions have no digest over all
            raise EvaluationError(f"{folder}: can't be read ({error}); `{train}` trains it again") from None
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

    def result_line(self, run_list: RunList, measured: MeasuredRun) -> ResultLine:
        known = {field.name for field in fields(EpochRow)}
        return ResultLine(
            **self._identity(run_list.experiment, "status", "environment", "weights_sha256"),
            profile=run_list.profile,
            cut=run_list.cut,
            spec=self.spec,
            data=DataUsed(**{field.name: getattr(self.info, field.name) for field in fields(DataUsed)}),
            curves=tuple(
                EpochRow(**{key: value for key, value in row.items() if key in known}) for row in self.history
            ),
            divergence=Divergence(**self.result["divergence"]) if self.result["divergence"] else None,
            **vars(measured),
        )

    def _identity(self, experiment: str, *names: str) -> dict[str, Any]:
        """Return the fields that identify the run on every line, and the named fields of its outcome."""
        run, own = self.run, {name: self.result[name] for name in ("environment_digest", *names)}
        return {"experiment": experiment, "arm": run.arm, "replicate": run.replicate, "run_key": run.run_key} | own

    def cost_line(self, experiment: str, latency: Latency | None) -> CostLine:
        rate, info = self.result["samples_per_second"], self.info
        return CostLine(
            **self._identity(experiment, "train_seconds", "samples_per_second", "peak_memory_bytes"),
            epoch_seconds=tuple(round(seconds, 4) for seconds in self.result["epoch_seconds"]),
            train_tokens_per_second=rate * info.shape[0] if info.kind == "text" else None,
            energy_joules=self.result.get("energy_joules"),
            **({f"latency_{name}": value for name, value in asdict(latency).items()} if latency else {}),
        )
