"""Results from experiment trackers: tables that W&B exports, MLflow's database or folder, TensorBoard's events.

A tracker has no columns for model, seed and data set.  They are taken from a run's parameters, by the usual names or by
those that the caller gives, or else from its name: `vit-seed3` is the model `vit` with seed 3, but `resnet-18` a model.
"""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from stages.reported import TableError
from stages.reported.reading import read_file
from stages.reported.units import HIGHER, LOWER, explain_number, last_word

USUAL = {
    "arm": ("arm", "model", "model_name", "arch", "architecture", "network"),
    "seed": ("seed", "random_seed", "random_state"),
    "dataset": ("dataset", "dataset_name", "data", "task"),
}
"""Names of the parameters that hold each column, in the order in which they are tried."""
_NAME = re.compile(r"(?:^|[-_./ ])(?:seed|run)[-_= ]?(\d+)(?=$|[-_./ ])", re.IGNORECASE)
_WITH_COMMA = re.compile(r"[+-]?\d+,\d+")
_ADMINISTRATIVE = ("state", "notes", "user", "tags", "created", "runtime", "sweep", "id", "name")
"""Columns of a table that W&B exports, which are neither parameters nor metrics."""


@dataclass(kw_only=True)
class TrackedRun:
    """One run as its tracker stores it.  `points`: metric, step (None of a final value) and value."""

    name: str
    parameters: Mapping[str, str]
    points: list[tuple[str, int | None, float]] = field(default_factory=list)
    is_finished: bool = True


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A table for `claimcheck.judge`, and a sentence on each reason why something was left out."""

    table: pd.DataFrame
    notes: tuple[str, ...]


def import_results(
    kind: str, source: Path, *, columns: Mapping[str, str] | None = None, metrics: Sequence[str] = ()
) -> Imported:
    """Read `source`, the export or folder of a tracker of this `kind`.

    `columns` names the parameter that holds arm, seed or dataset; `metrics` are the ones to keep, by default all whose
    last word is a known metric.  A run that did not finish is left out: a crash is not a result, but a divergence is.
    So is a run without a model or a seed.

    Raises:
        TableError: the source can't be read, or every run lacks a model or a seed.
    """
    try:
        runs = list(READERS[kind](source))
    except TableError:
        raise
    except (OSError, ValueError, KeyError, OverflowError, sqlite3.Error) as error:
        raise TableError(f"{source}: {error}") from None
    if not runs:
        raise TableError(f"{source}: no runs found")
    rows, left_out, unnamed, taken = [], [], [], []
    names: dict[tuple[str, ...], list[str]] = {}
    known = sorted({metric for run in runs for metric, _, _ in run.points})
    kept = list(metrics) or [metric for metric in known if last_word(metric) in HIGHER + LOWER]
    has = f"the runs have {', '.join(known) or 'none'}"
    if not kept:
        raise TableError(f"{source}: no metric has a known name; name those to keep with --metric; {has}")
    if missing := [metric for metric in kept if metric not in known]:
        raise TableError(f"{source}: no metric {', '.join(missing)}; {has}")
    for run in runs:
        if not run.is_finished:
            left_out.append(run.name)
            continue
        try:
            cells = {column: _find(column, run, columns or {}) for column in USUAL}
        except TableError as error:
            unnamed.append(str(error))
            continue
        if {"arm", "seed"} - {column for column in USUAL if _find_parameter(column, run, columns or {})}:
            taken.append(f"{run.name} is {cells['arm']} with seed {cells['seed']}")
        names.setdefault(tuple(cells.values()), []).append(run.name)
        points = {(m, step): value for m, step, value in run.points if m in kept}  # the last one logged of each step
        rows += [{**cells, "metric": m, "epoch": step, "value": value} for (m, step), value in points.items()]
    if unnamed and not rows:
        raise TableError(unnamed[0])
    table = pd.DataFrame(rows, columns=["dataset", "arm", "seed", "metric", "epoch", "value"])
    if table["epoch"].isna().all():
        table = table.drop(columns="epoch")
    notes = [f"left out because they did not finish: {', '.join(left_out)}"] if left_out else []
    if unnamed:
        notes.append(f"left out {len(unnamed)} without a model or a seed, such as: {unnamed[0]}")
    if taken:
        notes.append(f"read from {len(taken)} names, such as: {taken[0]}")
    if twice := [same for same in names.values() if len(same) > 1]:
        also = f" and {len(twice) - 1} more" if len(twice) > 1 else ""
        notes.append(
            f"the same model, seed and data set, which judge refuses: {', '.join(twice[0])}{also}; delete all but one, "
            "or name the parameter that tells them apart with --arm"
        )
    if others := [metric for metric in known if metric not in kept]:
        notes.append(f"left out because --metric doesn't name them: {', '.join(others)}")
    return Imported(table=table, notes=tuple(notes))


def _find_parameter(column: str, run: TrackedRun, columns: Mapping[str, str]) -> str:
    """Return the value of the parameter that holds a column, empty if there is none."""
    if chosen := columns.get(column):
        if chosen not in run.parameters:
            raise TableError(f"the run {run.name!r} has no {chosen!r}; it has {', '.join(run.parameters) or 'nothing'}")
        return run.parameters[chosen]
    lower = {name.lower().rpartition(".")[2]: value for name, value in reversed(list(run.parameters.items()))}
    return next((lower[name] for name in USUAL[column] if lower.get(name)), "")


def _find(column: str, run: TrackedRun, columns: Mapping[str, str]) -> str:
    """Return the value of a column from the run's parameters or its name."""
    if found := _find_parameter(column, run, columns):
        return found
    if column == "dataset":
        return ""
    seeds = list(_NAME.finditer(run.name))
    if len(seeds) == 1:
        (seed,) = seeds
        arm = run.name[: seed.start()] + run.name[seed.end() :]
        if found := seed[1] if column == "seed" else arm.strip("-_./ "):
            return found
    raise TableError(
        f"no parameter holds the {column} of the run {run.name!r}; name the parameter with --{column}: "
        f"{', '.join(run.parameters) or 'it has none, so rename runs to model-seed0'}"
    )


def _read_csv(path: Path) -> Iterator[TrackedRun]:
    """Read a table with a row per run, or a chart that W&B exported: a column `run - metric` per curve."""
    frame = read_file(path)
    for line, why in frame.attrs["surplus"].items():
        raise TableError(f"{path}: line {line} has {why}")
    if "Step" in frame.columns and any(" - " in column for column in frame.columns):
        for column in frame.columns:
            name, dash, metric = column.rpartition(" - ")
            if dash and not metric.endswith(("__MIN", "__MAX")):
                run = TrackedRun(name=name, parameters={})
                for line, at, cell in zip(frame.index, frame["Step"], frame[column], strict=True):
                    if cell:
                        step = int(_number(at, f"{path}, line {line}: Step"))
                        run.points.append((metric, step, _number(cell, f"{path}, line {line}: {column}")))
                yield run
        return
    for number, row in zip(frame.index, frame.to_dict("records"), strict=True):
        texts = {str(name): str(cell).strip() for name, cell in row.items()}
        named = {name.lower(): cell for name, cell in texts.items()}
        run = TrackedRun(
            name=named.get("name") or f"(line {number})",
            parameters=texts,
            is_finished=named.get("state", "finished") == "finished",
        )
        for name, cell in texts.items():
            is_metric = last_word(name) in HIGHER + LOWER and _WITH_COMMA.fullmatch(cell)
            with nullcontext() if is_metric else suppress(TableError):  # other texts are parameters
                if name.lower() not in _ADMINISTRATIVE:
                    run.points.append((name, None, _number(cell, f"{path}, line {number}: {name}")))
        yield run


def _number(cell: str, where: str) -> float:
    """Return a cell's number.

    Raises:
        TableError: it has none.
    """
    try:
        return float(cell)
    except ValueError:
        raise TableError(f"{where} is {cell!r}, which is not a number{explain_number(cell)}") from None


def _read_mlflow(source: Path) -> Iterator[TrackedRun]:
    """Read MLflow's database (`mlflow.db`), or the folder `mlruns` of its file store."""
    if source.is_file():
        yield from _read_mlflow_database(source)
        return
    try:
        import yaml
    except ImportError:
        raise TableError("reading MLflow's folders needs a package: pip install pyyaml") from None
    for meta in sorted(source.glob("**/meta.yaml")):
        try:
            described: Any = yaml.safe_load(meta.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise TableError(f"{meta}: {error}") from None
        described = described if isinstance(described, dict) else {}
        if "run_id" not in described or described.get("lifecycle_stage") == "deleted":
            continue
        run = TrackedRun(
            name=str(described.get("run_name") or described["run_id"]),
            parameters={name: text.strip() for name, text in _files_of(meta.parent / "params")},
            is_finished=str(described.get("status")) in ("3", "FINISHED"),
        )
        for metric, text in _files_of(meta.parent / "metrics"):
            lines = [line.split() for line in text.splitlines()]
            run.points += [(metric, int(step[0]) if step else None, float(value)) for _, value, *step in lines]
        yield run


def _read_mlflow_database(path: Path) -> Iterator[TrackedRun]:
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        runs = database.execute(
            "SELECT run_uuid, name, status FROM runs WHERE lifecycle_stage = 'active' ORDER BY name"
        )
        for key, name, status in runs.fetchall():
            parameters = database.execute("SELECT key, value FROM params WHERE run_uuid = ? ORDER BY key", (key,))
            points = database.execute(
                "SELECT key, step, CASE WHEN is_nan THEN NULL ELSE value END FROM metrics WHERE run_uuid = ? "
                "ORDER BY timestamp",
                (key,),
            )
            yield TrackedRun(
                name=name or key,
                parameters=dict(parameters.fetchall()),
                points=[(metric, step, math.nan if value is None else value) for metric, step, value in points],
                is_finished=status == "FINISHED",
            )


def _files_of(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text of each file below a folder; `val/acc` is a file in a folder."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        yield path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8")


def _read_tensorboard(folder: Path) -> Iterator[TrackedRun]:
    """Read folders of TensorBoard events, one per run, which names it."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError:
        raise TableError("reading TensorBoard's events needs its package: pip install tensorboard") from None
    for path in sorted({events.parent for events in folder.rglob("*tfevents*")}):
        events = EventAccumulator(str(path), {"scalars": 0, "tensors": 0}).Reload()
        run = TrackedRun(name=path.relative_to(folder).as_posix() if path != folder else folder.name, parameters={})
        for tag in events.Tags()["scalars"]:
            run.points += [(tag, event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["tensors"]:  # as TensorFlow 2 writes a scalar
            for event in events.Tensors(tag):
                array = make_ndarray(event.tensor_proto)
                run.points += [(tag, event.step, float(array))] if array.ndim == 0 and array.dtype.kind in "fi" else []
        yield run


READERS: Mapping[str, Callable[[Path], Iterable[TrackedRun]]] = {
    "csv": _read_csv,
    "mlflow": _read_mlflow,
    "tensorboard": _read_tensorboard,
    "wandb": _read_csv,
}
"""How to read each kind of tracker."""
