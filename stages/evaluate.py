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
from stages.evaluation.experiment import EvaluationError, evaluate_experiment
from stages.evidence import EpochRow, ResultLine, write_lines
from stages.experiment import ParamsError, load_params
from stages.faults import in_one_line
from stages.stage_inputs import refuse_changed
from stages.store import write_atomically


def metrics_document(results: Sequence[ResultLine]) -> bytes:
    """`{arm: {metric: mean over replicates}}` for `dvc metrics show`."""
    values: dict[str, dict[str, list[float]]] = {}
    for line in results:
        for measurement in line.metrics:
            values.setdefault(line.arm, {}).setdefault(measurement.metric, []).append(measurement.value)
    means = {arm: {name: sum(list_) / len(list_) for name, list_ in metrics.items()} for arm, metrics in values.items()}
    return (json.dumps(means, indent=1, sort_keys=True) + "\n").encode()


def curves_table(results: Sequence[ResultLine]) -> bytes:
    """A row per arm, replicate and epoch for `dvc plots show`."""
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


@in_one_line("evaluate")
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment")
    parser.add_argument("--device", default=os.environ.get("CLAIMCHECK_DEVICE", "auto"))
    options = parser.parse_args(arguments)
    data, name = Path("data"), options.experiment
    try:
        device = str(pick_device(options.device))
        results, costs = evaluate_experiment(name, data, load_params().profile.latency, device)
    except (ParamsError, EvaluationError, CheckpointError, ValueError) as error:
        print(f"evaluate@{name}: {error}", file=sys.stderr)
        return 1
    if refuse_changed(f"evaluate@{name}"):
        return 1
    write_atomically(data / "results" / f"{name}.jsonl", write_lines(results))
    write_atomically(data / "results" / f"{name}.cost.jsonl", write_lines(costs))
    write_atomically(data / "metrics" / f"{name}.json", metrics_document(results))
    write_atomically(data / "plots" / f"{name}.csv", curves_table(results))
    for line in results:
        shown = {m.metric: m.value for m in line.metrics}
        print(f"  {line.arm}.{line.replicate}: {_in_words(shown, line)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
