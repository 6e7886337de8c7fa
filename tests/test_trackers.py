"""`claimcheck import`: exports of W&B, MLflow 3 and TensorBoard become a table that can be judged."""

import csv
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pandas as pd
import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

import claimcheck
from stages.cli import main
from stages.reported import TableError
from stages.reported.trackers import import_results
from stages.verdicts import Status

CURVES = {
    (arm, seed): [last - 0.2, last + seed / 1000] for arm, last in (("vit", 0.95), ("ours", 0.972)) for seed in range(5)
}


def as_table(folder: Path) -> Path:
    """Write a W&B export of a runs table."""
    header = next(csv.reader(["Name,State,Notes,User,Tags,Created,Runtime,Sweep,model,seed,lr,val/accuracy"]))
    rows = [[f"run {n}", "finished", "-", "", "", "", "9", "", arm, str(seed), "0.1", str(curve[-1])]
            for n, ((arm, seed), curve) in enumerate(CURVES.items())]  # fmt: skip
    rows.append(["sunny-sky", "crashed", "-", "", "", "", "1", "", "ours", "9", "0.1", "0.1"])
    with (folder / "export.csv").open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([header, *rows])
    return folder / "export.csv"


def as_chart(folder: Path) -> Path:
    """Write a W&B export of a chart."""
    columns: dict[str, list[object]] = {"Step": [0, 1]}
    for (arm, seed), curve in CURVES.items():
        columns |= {f"{arm}-seed{seed} - val/accuracy{suffix}": list(curve) for suffix in ("", "__MIN", "__MAX")}
    pd.DataFrame(columns).to_csv(folder / "chart.csv", index=False)
    return folder / "chart.csv"


def as_file_store(folder: Path) -> Path:
    """Write MLflow's folder `mlruns`."""
    (folder / "mlruns" / "0").mkdir(parents=True)
    (folder / "mlruns" / "0" / "meta.yaml").write_text(
        "experiment_id: '0'\nname: Default\nlifecycle_stage: active\n", encoding="utf-8"
    )
    runs = [(f"{arm}-{seed}", arm, seed, curve, 3, "active") for (arm, seed), curve in CURVES.items()]
    runs += [("sunny-sky", "ours", 9, [0.1], 4, "active"), ("gone", "ours", 8, [0.2], 3, "deleted")]
    for name, arm, seed, curve, status, stage in runs:
        run = folder / "mlruns" / "0" / name
        for path, text in {
            "meta.yaml": f"run_id: {name}\nrun_name: {name}\nlifecycle_stage: {stage}\nstatus: {status}\n",
            "params/model": arm,
            "params/seed": str(seed),
            "metrics/val/accuracy": "".join(f"1795677501 {value} {step}\n" for step, value in enumerate(curve)),
        }.items():
            (run / path).parent.mkdir(parents=True, exist_ok=True)
            (run / path).write_text(text, encoding="utf-8")
    return folder / "mlruns"


def as_database(folder: Path) -> Path:
    """Write MLflow's database with the columns that the importer reads."""
    with closing(sqlite3.connect(folder / "mlflow.db")) as database, database:
        database.executescript("""
            CREATE TABLE runs (run_uuid VARCHAR(32), name VARCHAR(250), status VARCHAR(9), lifecycle_stage VARCHAR(20));
            CREATE TABLE params (key VARCHAR(250), value VARCHAR(8000), run_uuid VARCHAR(32));
            CREATE TABLE metrics (key VARCHAR(250), value FLOAT, timestamp BIGINT,
                run_uuid VARCHAR(32), step BIGINT, is_nan BOOLEAN);
            INSERT INTO runs VALUES ('x', 'sunny-sky', 'FAILED', 'active'), ('y', 'gone', 'FINISHED', 'deleted');
            """)
        for (arm, seed), curve in CURVES.items():
            key = f"{arm}-{seed}"
            database.execute("INSERT INTO runs VALUES (?, ?, 'FINISHED', 'active')", (key, key))
            database.executemany("INSERT INTO params VALUES (?, ?, ?)", [("model", arm, key), ("seed", str(seed), key)])
            rows = [("val/accuracy", value, 0, key, step, False) for step, value in enumerate(curve)]
            database.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", rows)
    return folder / "mlflow.db"


def as_events(folder: Path) -> Path:
    """Write TensorBoard events with its own package."""
    for (arm, seed), curve in CURVES.items():
        writer = EventFileWriter(str(folder / "tb" / f"{arm}-seed{seed}"))
        for step, value in enumerate(curve):
            scalar = Summary(value=[Summary.Value(tag="val/accuracy", simple_value=value)])
            writer.add_event(Event(step=step, summary=scalar, wall_time=1.0))
        writer.close()
    return folder / "tb"


@pytest.mark.parametrize(
    ("kind", "write"),
    [
        ("wandb", as_table),
        ("wandb", as_chart),
        ("mlflow", as_file_store),
        ("mlflow", as_database),
        ("tensorboard", as_events),
    ],
)
def test_tracked_results_are_judged(kind: str, write: Callable[[Path], Path], tmp_path: Path) -> None:
    claims, results = tmp_path / "claims.csv", tmp_path / "results.csv"
    claims.write_text(
        "id,kind,metric,arm,baseline,printed,n\nt,value,val/accuracy,ours,,97.4 %,5\nu,order,val/accuracy,ours,vit,,\n",
        encoding="utf-8",
    )
    assert main(["import", kind, str(write(tmp_path)), "-o", str(results)]) == 0
    judged = claimcheck.judge(claims, results)
    assert [one.status for one in judged.verdicts] == [Status.REPRODUCED, Status.SUPPORTED] and not judged.problems
    assert judged.verdicts[0].ours == pytest.approx(0.974), "the last step of each run"


def test_unfinished_run_is_omitted_by_name(tmp_path: Path) -> None:
    for kind, source in (
        ("wandb", as_table(tmp_path)),
        ("mlflow", as_file_store(tmp_path)),
        ("mlflow", as_database(tmp_path)),
    ):
        found = import_results(kind, source)
        assert "left out because they did not finish: sunny-sky" in found.notes
        assert set(found.table["seed"]) == set("01234")


def test_only_named_columns_and_metrics_are_imported(tmp_path: Path) -> None:
    source = tmp_path / "runs.csv"
    source.write_text("optimizer,try,model,score,accuracy\nadam,0,vit,3,0.9\nsgd,1,vit,4,0.8\n", encoding="utf-8")
    found = import_results("csv", source, columns={"arm": "optimizer", "seed": "try"}, metrics=["score"])
    assert found.table[["arm", "seed", "metric", "value"]].to_numpy().tolist() == [
        ["adam", "0", "score", 3.0],
        ["sgd", "1", "score", 4.0],
    ]
    assert found.notes == ("left out because --metric doesn't name them: accuracy, try",)


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("model,accuracy\nvit,0.9\n", {}, r"no parameter holds the seed of .*'\(line 2\)'; .* --seed: model, accuracy"),
        ("model,seed,time\nvit,0,3\n", {}, "name those to keep with --metric; the runs have seed, time"),
        ("model,seed,accuracy\nvit,0,0.9\n", {"metrics": ["acc"]}, "no metric acc; the runs have accuracy, seed"),
        ("model,seed,accuracy\nvit,0,0.9\n", {"columns": {"arm": "net"}}, "has no 'net'; it has model, seed, accuracy"),
        ("model,seed,accuracy\n", {}, "no runs found"),
        ("", {}, "is empty"),
    ],
)
def test_unreadable_source_explains_what_is_missing(
    tmp_path: Path, text: str, more: dict[str, dict[str, str]], said: str
) -> None:
    (tmp_path / "runs.csv").write_text(text, encoding="utf-8")
    with pytest.raises(TableError, match=said):
        import_results("csv", tmp_path / "runs.csv", **more)  # type: ignore[arg-type]
    with pytest.raises(TableError, match=r"not a database|no such table: runs"):
        import_results("mlflow", tmp_path / "runs.csv")
