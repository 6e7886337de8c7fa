"""`python -m stages.evaluate EXPERIMENT`: result and cost lines, and what `dvc metrics` and `dvc plots` show."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from stages.checkpoint.contract import CheckpointError
from stages.device import pick_device
from stages.evaluation.experiment import evaluate_experiment
from stages.evaluation.trained import EvaluationError
from stages.faults import in_one_line
from stages.params.experiment import ParamsError, load_params
from stages.params.stage_inputs import code_digests, refuse_changed
from stages.run import ModelSpec
from stages.runs.curves import EpochRow
from stages.runs.evidence import ResultLine, write_lines
from stages.runs.fingerprint import source_path
from stages.runs.store import write_atomically

INCOMPLETE = 4
"""Exit code where some runs couldn't be evaluated; the others are written."""


def metrics_document(results: Sequence[ResultLine]) -> bytes:
    """`{arm: {metric: mean over replicates}}` for `dvc metrics show`."""
    values: dict[str, dict[str, list[float]]] = {}
    for line in results:
        for measurement in line.metrics:
            values.setdefault(line.arm, {}).setdefault(measurement.metric, []).append(measurement.value)
    means = {arm: {name: sum(list_) / len(list_) for name, list_ in metrics.items()} for arm, metrics in values.items()}
    return (json.dumps(means, indent=1, sort_keys=True) + "\n").encode()


def curves_table(results: Sequence[ResultLine]) -> bytes:
    """One row per arm, replicate and epoch for `dvc plots show`."""
    text = io.StringIO()
    names = ["arm", "replicate", *(field.name for field in fields(EpochRow))]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for line in results:
        writer.writerows({"arm": line.arm, "replicate": line.replicate, **asdict(row)} for row in line.curves)
    return text.getvalue().encode()


def _in_words(shown: Mapping[str, float], line: ResultLine) -> str:
    """The main metric of a run's kind of data."""
    if not shown:
        return line.status
    words = f"accuracy {shown['accuracy']:.2%}" if "accuracy" in shown else ""
    words = f"mean squared error {shown['mse']:.4g}" if "mse" in shown else words
    words = words or f"loss {shown['loss']:.4g}"
    return f"{words} on {line.data.test_images:,} test samples"


def _code_of(model: ModelSpec) -> Mapping[str, str]:
    """Digests of everything that evaluates this model: what `evaluate` depends on in dvc.yaml, without other models."""
    module = model.path.split(":")[0]
    observations = f"{module.rpartition('.')[0]}.observations"
    looks = (observations,) if source_path(observations) else ()
    return code_digests(("stages.evaluation.experiment", module, *looks), ())


def _say_faults(name: str, faults: Mapping[str, str]) -> None:
    """Print one line per fault, with the runs that have it."""
    labels: dict[str, list[str]] = {}
    for label, words in faults.items():
        labels.setdefault(words, []).append(label)
    for words, runs in labels.items():
        more = f" and {len(runs) - 3} more" if len(runs) > 3 else ""
        print(f"evaluate@{name}: {', '.join(runs[:3])}{more}: {words}", file=sys.stderr)


@in_one_line("evaluate")
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment")
    parser.add_argument("--device", default=os.environ.get("CLAIMCHECK_DEVICE", "auto"))
    parser.add_argument("--anew", action="store_true", help="measure all, also what was measured before")
    options = parser.parse_args(arguments)
    data, name = Path("data"), options.experiment
    try:
        device, profile = str(pick_device(options.device)), load_params().profile
        found = evaluate_experiment(name, data, profile, device, _code_of, anew=options.anew)
    except (ParamsError, EvaluationError, CheckpointError, ValueError) as error:
        print(f"evaluate@{name}: {error}", file=sys.stderr)
        return 1
    _say_faults(name, found.faults)
    if refuse_changed(f"evaluate@{name}") or not found.results:
        return 1
    write_atomically(data / "results" / f"{name}.jsonl", write_lines(found.results))
    write_atomically(data / "results" / f"{name}.cost.jsonl", write_lines(found.costs))
    write_atomically(data / "metrics" / f"{name}.json", metrics_document(found.results))
    write_atomically(data / "plots" / f"{name}.csv", curves_table(found.results))
    for line in found.results:
        label, shown = f"{line.arm}.{line.replicate}", {m.metric: m.value for m in line.metrics}
        print(f"  {label}: {_in_words(shown, line)}{', measured before' if label in found.kept else ''}")
    if found.faults:
        lines = f"{len(found.results)} of {len(found.results) + len(found.faults)} runs"
        print(
            f"evaluate@{name}: {lines} are in data/results/{name}.jsonl; the next dvc repro evaluates the rest alone, "
            "`python -m stages.record` takes these in now",
            file=sys.stderr,
        )
        return INCOMPLETE
    return 0


if __name__ == "__main__":
    sys.exit(main())
