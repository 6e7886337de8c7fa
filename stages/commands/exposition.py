"""Trainings and claims as Prometheus metrics, in a file for the textfile collector of node_exporter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

from stages.faults import named

_ROW = ("experiment", "node")
_GAUGES = {
    "samples_per_second": ("claimcheck_training_samples_per_second", "Samples a second of what trains now."),
    "seconds": ("claimcheck_training_device_seconds", "Device time spent on trainings of the current sessions."),
    "left_seconds": ("claimcheck_training_left_device_seconds", "Device time expected for the rest."),
    "usd": ("claimcheck_training_usd", "Price of the device time spent."),
    "left_usd": ("claimcheck_training_left_usd", "Price of the device time expected for the rest."),
}
"""Of a row of `stages.scheduling.watching`; a number that nobody knows is left out."""


class MetricsError(ValueError):
    """The metrics can't be written where they are wanted."""


def write_metrics(path: Path, papers: Sequence[Mapping[str, Any]], trainings: Mapping[str, Any], now: float) -> None:
    """Write the metrics; whoever reads the file sees the old ones or these.

    Raises:
        MetricsError: there is no such folder.
        OSError: the file can't be written.
    """
    if not path.parent.is_dir():
        raise MetricsError(f"{path}: no folder {path.parent}; node_exporter's --collector.textfile.directory names one")
    registry = CollectorRegistry()
    runs = Gauge("claimcheck_training_runs", "Trainings by state.", [*_ROW, "state"], registry=registry)
    gauges = {name: Gauge(metric, said, _ROW, registry=registry) for name, (metric, said) in _GAUGES.items()}
    for row in trainings["rows"]:
        labels = [row[name] for name in _ROW]
        for state, number in row["runs"].items():
            runs.labels(*labels, state).set(number)
        for name, gauge in gauges.items():
            if row[name] is not None:
                gauge.labels(*labels).set(row[name])
    claims = Gauge("claimcheck_claims", "Claims by what is decided of them.", ["paper", "decided"], registry=registry)
    for paper in papers:
        for part in ("in_favour", "against", "open", "waiting"):
            claims.labels(paper["paper"], part).set(paper[part])
    Gauge("claimcheck_status_timestamp_seconds", "When these metrics were written.", registry=registry).set(now)
    with named(path):
        write_to_textfile(str(path), registry)
