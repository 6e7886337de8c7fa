"""`python -m stages.evaluate EXPERIMENT`: write result and cost lines, and files for `dvc metrics` and `dvc plots`."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import sys
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from statistics import fmean
from typing import Any

from stages.device import keep_freed_memory, pick_device
from stages.evaluation.experiment import evaluate_experiment
from stages.evaluation.flops import MeasurementCache
from stages.faults import in_one_line
from stages.params.experiment import load_params
from stages.params.stage_inputs import code_digests, refuse_changed
from stages.run import ModelSpec
from stages.runs.evidence import EpochRow, ResultLine, write_lines
from stages.runs.fingerprint import model_addresses, source_path
from stages.runs.store import read_run_list, write_atomically

INCOMPLETE = 4
"""Exit code if some runs couldn't be evaluated; the others are written."""
_IN_WORDS = {"accuracy": "accuracy {:.2%}", "mse": "mean squared error {:.4g}", "loss": "loss {:.4g}"}
"""The main metrics of images, tables and texts; the first one that a result has counts."""


def metrics_document(results: Sequence[ResultLine], roles: Mapping[str, str]) -> bytes:
    """Return the summary for `dvc metrics`, with a few numbers of those in the result lines.

    It has the number of `runs`, the main `metric` of the experiment's data and, by role (`roles` has them by arm), the
    best arm's mean over replicates.
    """
    values: dict[str, dict[str, list[float]]] = {}
    for line in results:
        for measurement in line.metrics:
            if measurement.split == "test":
                values.setdefault(measurement.metric, {}).setdefault(line.arm, []).append(measurement.value)
    summary: dict[str, Any] = {"runs": len(results)}
    if metric := _main_metric(values):
        summary["metric"] = metric
        best = max if metric == "accuracy" else min
        means = {arm: fmean(of_runs) for arm, of_runs in values[metric].items()}
        for role in ("baseline", "proposed"):
            if of_role := [mean for arm, mean in means.items() if roles[arm] == role]:
                summary[role] = best(of_role)
    return (json.dumps(summary, indent=1) + "\n").encode()


def _main_metric(names: Container[str]) -> str | None:
    """Return the main one of these metrics, which depends on the kind of data; None if nothing was measured."""
    return next((name for name in _IN_WORDS if name in names), None)


def curves_table(results: Sequence[ResultLine]) -> bytes:
    """Return one row per arm, replicate and epoch for `dvc plots show`."""
    text = io.StringIO()
    names = ["arm", "replicate", *(field.name for field in fields(EpochRow))]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for line in results:
        writer.writerows({"arm": line.arm, "replicate": line.replicate, **asdict(row)} for row in line.curves)
    return text.getvalue().encode()


def _code_of(model: ModelSpec) -> Mapping[str, str]:
    """Return digests of all code that evaluates this model: the stage's dependencies without other models."""
    modules = [address.partition(":")[0] for address in model_addresses(model.path, model.arguments)]
    observations = f"{modules[0].rpartition('.')[0]}.observations"
    modules += [observations] if source_path(observations) else []
    return code_digests(("stages.evaluation.experiment", *modules), ())


@in_one_line("evaluate")
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment")
    parser.add_argument("--device", default=os.environ.get("CLAIMCHECK_DEVICE", "auto"))
    parser.add_argument("--anew", action="store_true", help="measure again what was measured before")
    parser.add_argument("--ahead", action="store_true", help="cache the measurements for the stage; write no lines")
    options = parser.parse_args(arguments)
    data, name = Path("data"), options.experiment
    try:
        device, params = str(pick_device(options.device)), load_params()
        profile, own = params.profile, params.experiments[name].metrics if name in params.experiments else {}
        if profile.data == "embedded":  # on real data, this would change the latencies
            keep_freed_memory()
        with MeasurementCache("timed").held(name, waits=not options.ahead) as is_ours:
            if not is_ours:
                return 0  # the stage itself is running
            found = evaluate_experiment(name, data, profile, device, _code_of, own, anew=options.anew)
    except ValueError as error:
        print(f"evaluate@{name}: {error}", file=sys.stderr)
        return 1
    labels: dict[str, list[str]] = {}
    for label, words in [*found.faults.items(), *found.failed.items()]:
        labels.setdefault(words, []).append(label)
    for words, runs in labels.items():
        more = f" and {len(runs) - 3} more" if len(runs) > 3 else ""
        print(f"evaluate@{name}: {', '.join(runs[:3])}{more}: {words}", file=sys.stderr)
    if options.ahead:
        return INCOMPLETE if found.faults or found.failed else 0
    if refuse_changed(f"evaluate@{name}") or not found.results:
        return 1
    write_atomically(data / "results" / f"{name}.jsonl", write_lines(found.results))
    write_atomically(data / "results" / f"{name}.cost.jsonl", write_lines(found.costs))
    run_list = read_run_list(data / "runs" / name)
    write_atomically(
        data / "metrics" / f"{name}.json",
        metrics_document(found.results, {run.arm: run.role for run in run_list.runs} if run_list else {}),
    )
    write_atomically(data / "plots" / f"{name}.csv", curves_table(found.results))
    for line in found.results:
        label, words = f"{line.arm}.{line.replicate}", line.status
        shown = {row.metric: row.value for row in line.metrics}
        if metric := _main_metric(shown):
            words = f"{_IN_WORDS[metric].format(shown[metric])} on {line.data.test_images:,} test samples"
        print(f"  {label}: {words}{', measured before' if label in found.kept else ''}")
    if found.faults:
        lines = f"{len(found.results)} of {len(found.results) + len(found.faults)} runs"
        print(
            f"evaluate@{name}: {lines} are in data/results/{name}.jsonl; the next dvc repro evaluates only the rest, "
            "`claimcheck stage record` records these now",
            file=sys.stderr,
        )
        return INCOMPLETE
    if found.failed:
        print(f"evaluate@{name}: all other metrics are in data/results/{name}.jsonl", file=sys.stderr)
        return INCOMPLETE
    return 0


if __name__ == "__main__":
    sys.exit(main())
