"""A stranger's project whose data have other labels than one class: from params to verdicts, and what answers."""

import csv
import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.datasets import load_digits, make_multilabel_classification
from sqlalchemy import select

from service.settings import Settings
from stages.results import VerdictRow, open_results
from stages.runs.consistency import find_contradictions
from stages.runs.evidence import ResultLine, read_lines
from tests.datasets.test_own import tree_digest
from tests.project import edit, environment
from tests.service.conftest import reading

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
STAGES = """
import sys
from stages import analyse, evaluate, fetch, inputs, preprocess, record, train

if __name__ == "__main__":
    inputs.main()
    for stage in (fetch, preprocess, train, evaluate):
        for name in sys.argv[1:]:
            assert not stage.main([name]), name
    analyse.main([])
    record.main()
"""
"""Stages that `claimcheck repro` runs, without DVC and a process for each stage."""
NETS = """
from torch import nn


class Linear(nn.Sequential):
    def __init__(self, in_channels: int, image_size: int, num_classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(in_channels * image_size**2, num_classes))


class Pixels(nn.Sequential):
    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__(nn.Conv2d(in_channels, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, num_classes, 1))


class Rows(nn.Sequential):
    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__(nn.Linear(in_features, 32), nn.ReLU(), nn.Linear(32, num_classes))
"""
LINEAR, PIXELS, ROWS = {"name": "nets:Linear"}, {"name": "nets:Pixels"}, {"name": "nets:Rows"}
VIT = {"name": "timm.models.vision_transformer:VisionTransformer", "patch_size": 4, "depth": 1}
VIT |= {"embed_dim": 16, "num_heads": 2}
PLAIN = {"licence": "ours", "homepage": "http://127.0.0.1/", "urls": []}
DIGITS = {"shape": [1, 8, 8], "train": 400, "test": 100, **PLAIN}


def python(project: Path, *arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=project, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def digits() -> tuple[np.ndarray, np.ndarray]:
    """500 handwritten digits uint8 [N, 8, 8] and what is in them: int64 [N]."""
    images, numbers = load_digits(return_X_y=True)
    return (images[:500] * 15).astype(np.uint8).reshape(-1, 8, 8), numbers[:500]


def facts_of(numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Three labels of a digit, which are independent enough that many digits have two."""
    return {"even": numbers % 2 == 0, "small": numbers < 5, "round": np.isin(numbers, (0, 6, 8, 9))}


def arrays(project: Path) -> dict[str, Any]:
    """Labels in an npz file."""
    images, numbers = digits()
    labels = np.stack([*facts_of(numbers).values()], axis=1)
    path = project / "data/downloads/arrays/arrays.npz"
    path.parent.mkdir(parents=True)
    np.savez(path, x_train=images[:400], y_train=labels[:400], x_test=images[400:], y_test=labels[400:])
    return {"title": "Arrays", "reader": "npz", "task": "multi-label", "classes": 3, "files": ["arrays.npz"], **DIGITS}


def pictures(project: Path) -> dict[str, Any]:
    """Pictures in a folder, and two numbers of each in a table."""
    folder = project / "data/downloads/pictures/pictures"
    folder.mkdir(parents=True)
    images, numbers = digits()
    names = [f"{number:03d}.png" for number in range(len(images))]
    for name, image in zip(names, images, strict=True):
        Image.fromarray(image).save(folder / name)
    numbers = {"digit": numbers / 10, "ink": images.mean(axis=(1, 2)) / 255}
    pd.DataFrame({"file": names, **numbers}).to_csv(folder / "labels.csv", index=False)
    fields = {"reader": "folder", "labels": "pictures/labels.csv", "files": ["pictures/"]}
    return {"title": "Pictures", "task": "regression", "classes": 2, **fields, **DIGITS}


def rows(project: Path) -> dict[str, Any]:
    """Several columns of a table that are labels."""
    features, labels = make_multilabel_classification(500, 6, n_classes=4, random_state=0)
    names = ["red", "green", "blue", "grey"]
    frame = pd.DataFrame(features).add_prefix("x").assign(**dict(zip(names, labels.T, strict=True)))
    path = project / "data/downloads/rows/rows.parquet"
    path.parent.mkdir(parents=True)
    frame.to_parquet(path)
    fields = {"kind": "table", "reader": "parquet", "target": names, "files": ["rows.parquet"]}
    return {"title": "Rows", "task": "multi-label", "classes": 4, **fields, **DIGITS, "shape": [6]}


def masks(project: Path) -> dict[str, Any]:
    """Pictures in a folder with a mask for each: paper or ink, without the pixels in between."""
    folder = project / "data/downloads/masks/drawn"
    for number, image in enumerate(digits()[0]):
        ink = np.where((image > 60) & (image < 120), 255, image >= 120).astype(np.uint8)
        for kind, pixels in (("images", image), ("masks", ink)):
            (folder / kind).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / kind / f"{number:03d}.png")
    fields = {"reader": "folder", "files": ["drawn/"]}
    return {"title": "Masks", "task": "segmentation", "classes": 2, **fields, **DIGITS}


def digest_of(folder: Path, name: str) -> str:
    """The digest of a file, or of a folder as `fetch` prints it."""
    if not name.endswith("/"):
        return hashlib.sha256((folder / name).read_bytes()).hexdigest()
    return tree_digest(folder, name.rstrip("/"))


SETS = {arrays: VIT, pictures: LINEAR, rows: ROWS, masks: PIXELS}
"""Data sets, each with the model that learns it."""
MEASURED = {
    "multi-label": {"loss": "nats", **dict.fromkeys(("mean_average_precision", "macro_f1", "exact_match"), "fraction")},
    "segmentation": {"loss": "nats", "mean_iou": "fraction", "pixel_accuracy": "fraction"},
    "regression": {"mse": None, "rmse": None, "mae": None},
}
"""Metrics of each task with their units; the first is the loss."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of one's own, trained and recorded."""
    project = tmp_path_factory.mktemp("project")
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    python(project, "-m", "stages.cli", "init")
    (project / "nets.py").write_text(NETS)
    sets = {make.__name__: make(project) for make in SETS}
    for name, fields in sets.items():
        folder = project / "data/downloads" / name
        fields["files"] = [{"name": file, "sha256": digest_of(folder, file)} for file in fields["files"]]

    def declare(index: dict[str, Any]) -> None:
        index["datasets"] = sets
        index["experiments"] = {name: {"paper": "toy", "dataset": name} for name in sets}
        index["profile"] = "paper"
        index["profiles"]["paper"]["latency"] = {"batch_size": 8, "warmup": 0, "repeats": 1}

    edit(project / "params.yaml", declare)
    (project / "params/toy-mnist.yaml").unlink()
    claims = []
    for (name, fields), model in zip(sets.items(), SETS.values(), strict=True):
        is_table = fields.get("kind") == "table"
        protocol = {"optimizer": {"name": "adam", "lr": 0.01}, "batch_size": 50, "epochs": 4, "seeds": [0, 1, 2]}
        augmentation = {"crop_padding": 1, "horizontal_flip": True}
        protocol |= {} if is_table else {"mean": [0.3], "std": [0.4], "augmentation": augmentation}
        protocol |= {"split": {"kind": "fraction", "fraction": 0.1}}
        arms = {"ours": {"role": "proposed", "title": "ours", "model": model}}
        (project / f"params/{name}.yaml").write_text(json.dumps({"title": name, "protocol": protocol, "arms": arms}))
        for metric, unit in MEASURED[fields["task"]].items():
            better = "higher" if unit == "fraction" else "lower"
            claims.append([f"toy.{name}.{metric}", name, metric, unit, better])
    with (project / "data/claims.csv").open(encoding="utf-8") as file:
        header = next(csv.reader(file))
    rows = [
        dict(zip(("id", "experiment", "metric", "unit", "better"), claim, strict=True))
        | {"paper": "toy", "place": "Table 1", "arm": "ours", "kind": "value", "value": 0.9, "stderr": 0.01, "n": 3}
        for claim in claims
    ]
    pd.DataFrame(rows, columns=header).to_csv(project / "data/claims.csv", index=False)
    (project / "run.py").write_text(STAGES)
    python(project, "run.py", *sets)
    return project


@pytest.mark.parametrize("name", [make.__name__ for make in SETS])
def test_other_labels_are_trained_evaluated_recorded_and_judged(project: Path, name: str) -> None:
    lines = [json.loads(line) for line in (project / f"data/results/{name}.jsonl").read_text().splitlines()]
    assert len(lines) == 3
    for line in lines:
        task = line["spec"]["task"]
        values = {row["metric"]: row["value"] for row in line["metrics"]}
        assert {*MEASURED[task]} <= values.keys() and "accuracy" not in values
        assert "stages.training.tasks" in line["spec"]["code"] and line["environment"]["process"]["modules"] == {}
        assert re.fullmatch("[0-9a-f]{12}", line["environment"]["process"]["canary"]["digest"]), "a canary trained"
        curve = line["curves"]["test_loss"]
        assert curve[-1] < curve[0] and curve[-1] == pytest.approx(values[next(iter(MEASURED[task]))], rel=1e-4)
        assert len(line["curves"]["val_loss"]) == 4
    with open_results(str(project / "data/results.db")).begin() as session:
        judged = {row.claim: row.status for row in session.scalars(select(VerdictRow))}
    for metric in MEASURED[task]:
        assert judged[f"toy.{name}.{metric}"] != "not tested"


@pytest.mark.parametrize("name", [make.__name__ for make in SETS])
def test_edited_result_of_another_task_is_found(project: Path, name: str) -> None:
    line = read_lines(project / f"data/results/{name}.jsonl", ResultLine)[0]
    assert find_contradictions(line) == []
    for metric in {row.metric for row in line.metrics if row.split == "test"} - {"mae"}:
        rows = (replace(row, value=row.value + 2) if row.metric == metric else row for row in line.metrics)
        assert any(metric in fault for fault in find_contradictions(replace(line, metrics=tuple(rows)))), metric


def test_service_shows_other_labels_and_refuses_to_predict_them(project: Path) -> None:
    with reading(Settings(root=project, database="data/results.db")) as client:
        for name in (make.__name__ for make in SETS):
            for page in (f"/experiments/{name}", f"/leaderboard?dataset={name}", f"/compare?dataset={name}", "/"):
                assert client.get(page, headers={"accept": "text/html"}).status_code == 200, page
            for address in (f"/predict?checkpoint={name}.ours.0", f"/predict?dataset={name}"):
                answer = client.post(address, files={"file": b"x"})
                assert answer.status_code == 409 and "models here name the class" in answer.json()["detail"]
            assert client.get(f"/api/v1/datasets/{name}/samples").status_code == 404
