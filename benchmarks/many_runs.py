"""A results database of the size that this project could grow to: real papers, arms and claims, made-up runs.

Every arm of the index has replicates under the profile `paper`, `SELECTED_RUNS` in all, which are compared; each was
also run in other environments and under other profiles, `TIMES` results in all.  Every result has curves.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from sqlalchemy import Table

from stages.recording import record
from stages.results import Base
from stages.verdicts import ARM_METRICS

SELECTED_RUNS, TIMES, EPOCHS = 1400, 100, 25
METRICS = ("accuracy", "best_epoch_accuracy", "calibration_error", "loss", "selected_log_mse", "perplexity")
PROFILES = ("paper", "quick", "smoke")


@dataclass(frozen=True)
class Planned:
    """The run that a result belongs to, and its number within that run."""

    id: int
    experiment: str
    arm: str
    replicate: int
    time: int

    @property
    def quality(self) -> float:
        """A fraction that varies between results."""
        return 0.5 + 0.4 * math.sin(self.id * 0.37)


def build(place: Path, *, times: int = TIMES) -> int:
    """Write the database to `place`; returns its number of results."""
    record(Path(), str(place.resolve()), evidence_only=True)
    with sqlite3.connect(place) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        for table in ("verdict_runs", "checkpoints", "arrays", "costs", "epochs", "metrics", "arm_metrics", "results"):
            connection.execute(f"DELETE FROM {table}")
        query = (
            "SELECT arms.experiment, arms.name FROM arms JOIN experiments e ON e.name = experiment ORDER BY e.position"
        )
        arms = connection.execute(query).fetchall()
        planned = [
            Planned(number * times + time, *arms[number % len(arms)], number // len(arms), time)
            for number in range(SELECTED_RUNS)
            for time in range(times)
        ]
        _fill(connection, "results", map(_result, planned))
        _fill(connection, "metrics", (row for item in planned for row in _metrics(item)))
        _fill(connection, "arm_metrics", _arm_metrics(planned))
        _fill(connection, "epochs", (row for item in planned for row in _epochs(item)))
        _fill(connection, "costs", map(_cost, planned))
        _fill(connection, "checkpoints", (_checkpoint(item) for item in planned if item.time == 0))
        _fill(connection, "verdict_runs", _verdict_runs(connection))
        connection.execute("UPDATE meta SET value = ? WHERE name = 'content'", (f"made up {times}",))
    connection.close()
    return len(planned)


def _fill(connection: sqlite3.Connection, name: str, rows: Iterable[dict[str, object]]) -> None:
    table: Table = Base.metadata.tables[name]
    columns = [column.name for column in table.columns]
    marks = ", ".join("?" * len(columns))
    connection.executemany(
        f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({marks})",
        ([row.get(column) for column in columns] for row in rows),
    )


def _result(item: Planned) -> dict[str, object]:
    profile = PROFILES[item.time % len(PROFILES)]
    protocol = {"epochs": 100, "batch_size": 128, "lr": 0.001, "optimizer": {"name": "adam", "betas": [0.9, 0.999]}}
    model = {"path": f"stages.papers.x:{item.arm}", "arguments": {"dim": 256, "depth": 8, "patch_size": 4}}
    code = {f"stages.ops.module_{number}": "0123456789abcdef" for number in range(12)}
    spec = {"model": model, "protocol": protocol, "replicate": {"index": item.replicate}, "code": code}
    environment = {"python": "3.11.7", "torch": "2.15.0", "device": "cuda", "device_name": f"machine {item.time}"}
    return {
        "id": item.id,
        "run_key": f"{item.id // 2:064x}",
        "environment_digest": f"{item.time:016x}",
        "machine_digest": f"{item.time:016x}",
        "experiment": item.experiment,
        "arm": item.arm,
        "replicate": item.replicate,
        "source": "evidence" if item.time == 0 else "local",
        "is_selected": item.time == 0,
        "changed_code": "[]",
        "equivalences": "[]",
        "profile": profile,
        "provenance": "embedded" if profile == "smoke" else "full",
        "cut": "" if profile == "paper" else "3 of 100 epochs",
        "conditions": f"{item.experiment} {profile}",
        "group_position": PROFILES.index(profile),
        "status": "finished",
        "data_digest": "d" * 64,
        "train_images": 50_000,
        "test_images": 10_000,
        "excluded_test_images": 0,
        "accuracy": item.quality,
        "train_seconds": 800 + 100 * item.quality,
        "spec": json.dumps(spec),
        "environment": json.dumps(environment),
    }


def _metrics(item: Planned) -> Iterator[dict[str, object]]:
    for position, metric in enumerate(METRICS):
        row = {"result_id": item.id, "metric": metric, "split": "test", "position": position}
        yield row | {"value": item.quality + 0.01 * position, "n": 10_000}
    for position, (metric, value) in enumerate((("flops_per_image", 2.85e8), ("parameters", 2_143_588.0))):
        row = {"result_id": item.id, "metric": metric, "split": "none", "position": len(METRICS) + position}
        yield row | {"value": value}


def _epochs(item: Planned) -> Iterator[dict[str, object]]:
    for epoch in range(1, EPOCHS + 1):
        rise = 1 - math.exp(-epoch / 5)
        yield {
            "result_id": item.id,
            "epoch": epoch,
            "steps": 390 * epoch,
            "lr": 0.001,
            "train_loss": 2.3 * math.exp(-epoch / 5) + 0.2,
            "train_accuracy": item.quality * rise,
            "test_loss": 2.3 * math.exp(-epoch / 6) + 0.3,
            "test_accuracy": 0.95 * item.quality * rise,
        }


def _arm_metrics(planned: Iterable[Planned]) -> Iterator[dict[str, object]]:
    """Metrics of the compared results of each arm."""
    arms: dict[tuple[str, str], list[Planned]] = {}
    for item in planned:
        if item.time == 0:
            arms.setdefault((item.experiment, item.arm), []).append(item)
    for (experiment, arm), items in arms.items():
        for metric in ARM_METRICS:
            yield {
                "experiment": experiment,
                "arm": arm,
                "profile": PROFILES[0],
                "conditions": f"{experiment} {PROFILES[0]}",
                "metric": metric,
                "value": fmean(item.quality for item in items),
                "stderr": 0.01,
                "epoch": EPOCHS,
                "shares": json.dumps([[item.replicate, item.quality] for item in items]),
            }


def _cost(item: Planned) -> dict[str, object]:
    return {
        "result_id": item.id,
        "train_seconds": 800 + 100 * item.quality,
        "epoch_seconds": json.dumps([30.0] * EPOCHS),
        "samples_per_second": 333.0,
        "peak_memory_bytes": 3_221_225_472,
        "latency_seconds_per_sample": 1e-4 * (1 + item.quality),
        "latency_batch_size": 128,
        "latency_warmup": 3,
        "latency_repeats": 10,
        "latency_device": "some GPU",
    }


def _checkpoint(item: Planned) -> dict[str, object]:
    name = f"{item.experiment}.{item.arm}.{item.replicate}"
    content = {"sha256": f"{item.id:064x}", "size_bytes": 8_000_000, "path": f"data/runs/{name}.safetensors"}
    return {"id": name, "position": item.id, "experiment": item.experiment, "result_id": item.id, **content}


def _verdict_runs(connection: sqlite3.Connection) -> list[dict[str, object]]:
    """The runs behind each claim that is tested somewhere: ten compared results of an experiment."""
    query = """
        SELECT claims.id, results.id, results.arm, results.replicate,
               row_number() OVER (PARTITION BY claims.id ORDER BY results.id) AS place
        FROM claims JOIN claim_experiments ON claim_experiments.claim = claims.id
        JOIN results ON results.experiment = claim_experiments.experiment AND results.is_selected"""
    return [
        {"claim": claim, "position": place, "side": "proposed", "arm": arm, "replicate": replicate}
        | {"value": 0.9, "result_id": result}
        for claim, result, arm, replicate, place in connection.execute(query)
        if place <= 10
    ]
