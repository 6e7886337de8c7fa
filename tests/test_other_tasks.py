"""A user's project whose labels aren't one class, from params to verdicts and to the service's answers."""

import base64
import csv
import hashlib
import io
import json
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fastapi.testclient import TestClient
from PIL import Image
from sklearn.datasets import load_digits, make_multilabel_classification
from sklearn.metrics import average_precision_score, f1_score
from sqlalchemy import select

from service.settings import Settings
from stages.datasets.packed import read_images
from stages.results import VerdictRow, open_results
from stages.runs.consistency import find_contradictions
from stages.runs.evidence import ResultLine, read_lines
from tests.datasets.test_own import tree_digest
from tests.project import edit, environment
from tests.service.conftest import serving

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

from stages.training.tasks import ImageRegression


class Counts(ImageRegression):
    def loss(self, outputs, targets, *_):
        return nn.functional.poisson_nll_loss(outputs.float(), targets)

    def predict(self, outputs):
        return outputs.exp()


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


def counts(project: Path) -> dict[str, Any]:
    """Digits to be counted, whose logarithm a network gives: a task of the project's own."""
    images, numbers = digits()
    path = project / "data/downloads/counts/counts.npz"
    path.parent.mkdir(parents=True)
    targets = numbers[:, None].astype(float)
    np.savez(path, x_train=images[:400], y_train=targets[:400], x_test=images[400:], y_test=targets[400:])
    task = {"task": "regression", "task_class": {"name": "nets:Counts"}, "classes": 1}
    return {"title": "Counts", "reader": "npz", "files": ["counts.npz"], **task, **DIGITS}


SETS = {arrays: VIT, pictures: LINEAR, rows: ROWS, masks: PIXELS, counts: LINEAR}
"""Data sets, each with the model that learns it."""
MEASURED = {
    "multi-label": {"loss": "nats", **dict.fromkeys(("mean_average_precision", "macro_f1", "exact_match"), "fraction")},
    "segmentation": {"loss": "nats", "mean_iou": "fraction", "pixel_accuracy": "fraction"},
    "regression": {"mse": None, "rmse": None, "mae": None},
    "other": {"loss": "nats", "rmse": None, "mae": None},
}
"""Metrics of each kind with their units; the first is the loss."""
OWN: dict[str, dict[str, Any]] = {
    "multi-label": {"name": "sklearn.metrics:f1_score", "average": "micro", "unit": "fraction", "range": [0, 1]},
    "segmentation": {"name": "sklearn.metrics:jaccard_score", "average": "macro", "unit": "fraction", "range": [0, 1]},
    "regression": {"name": "sklearn.metrics:mean_absolute_error", "unit": "", "range": [0, None]},
    "other": {"name": "sklearn.metrics:mean_poisson_deviance", "unit": "", "range": [0, None]},
}
OWN_NAMES = {kind: "own_share" if metric["unit"] else "own_error" for kind, metric in OWN.items()}
"""A metric of scikit-learn for each kind, and its name here."""


def kind_of(described: dict[str, Any]) -> str:
    return "other" if "task_class" in described else described["task"]


def claimed_of(kind: str) -> dict[str, str | None]:
    """Metrics in which claims are made, with their units."""
    return MEASURED[kind] | {OWN_NAMES[kind]: OWN[kind]["unit"] or None}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of one's own, trained and recorded."""
    project = tmp_path_factory.mktemp("project")
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    python(project, "-m", "stages.cli", "init")
    (project / "nets.py").write_text(NETS, encoding="utf-8")
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
        own = OWN[kind_of(fields)]
        own = {
            OWN_NAMES[kind_of(fields)]: own | {"takes": "predictions", "better": "higher" if own["unit"] else "lower"}
        }
        experiment = {"title": name, "protocol": protocol, "arms": arms, "metrics": own}
        (project / f"params/{name}.yaml").write_text(json.dumps(experiment), encoding="utf-8")
        for metric, unit in claimed_of(kind_of(fields)).items():
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
    (project / "run.py").write_text(STAGES, encoding="utf-8")
    python(project, "run.py", *sets)
    return project


@pytest.mark.parametrize("name", [make.__name__ for make in SETS])
def test_other_labels_are_trained_evaluated_recorded_and_judged(project: Path, name: str) -> None:
    lines = [
        json.loads(line) for line in (project / f"data/results/{name}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    assert len(lines) == 3
    for line in lines:
        task = kind_of(line["spec"])
        values = {row["metric"]: row["value"] for row in line["metrics"]}
        assert {*claimed_of(task)} <= values.keys() and "accuracy" not in values
        assert ("mse" in values) == (task == "regression")
        if task == "regression":
            assert values["own_error"] == pytest.approx(values["mae"], rel=1e-5)
        assert "stages.training.tasks" in line["spec"]["code"] and line["environment"]["process"]["modules"] == {}
        assert re.fullmatch("[0-9a-f]{12}", line["environment"]["process"]["canary"]["digest"]), "a canary trained"
        places = (line["spec"]["code"], line["environment"].get("packages", ()))
        assert ["timm" in place for place in places] == [name == "arrays"] * 2, "it is in the key, and it ran"
        curve = line["curves"]["test_loss"]
        assert curve[-1] < curve[0] and curve[-1] == pytest.approx(values[next(iter(MEASURED[task]))], rel=1e-4)
        assert len(line["curves"]["val_loss"]) == 4
    with open_results(str(project / "data/results.db")).begin() as session:
        judged = {row.claim: row.status for row in session.scalars(select(VerdictRow))}
    for metric in claimed_of(task):
        assert judged[f"toy.{name}.{metric}"] != "not tested"


@pytest.mark.parametrize("name", [make.__name__ for make in SETS])
def test_edited_result_of_another_task_is_found(project: Path, name: str) -> None:
    line = read_lines(project / f"data/results/{name}.jsonl", ResultLine)[0]
    assert find_contradictions(line) == []
    unknown = {"mae", *OWN_NAMES.values(), *(["rmse"] if name == "counts" else [])}
    for metric in {row.metric for row in line.metrics if row.split == "test"} - unknown:
        rows = (replace(row, value=row.value + 2) if row.metric == metric else row for row in line.metrics)
        assert any(metric in fault for fault in find_contradictions(replace(line, metrics=tuple(rows)))), metric


@pytest.fixture(scope="module")
def client(project: Path) -> Iterator[TestClient]:
    """A client of the project's service, whose models are in the project's folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(project)
        with serving(Settings(root=project, database="data/results.db", workers=1)) as client:
            yield client


def test_service_shows_other_labels(client: TestClient) -> None:
    for name in (make.__name__ for make in SETS):
        pages = (f"/experiments/{name}", f"/leaderboard?dataset={name}", f"/compare?dataset={name}", "/")
        for page in (*pages, f"/models/{name}.ours"):
            assert client.get(page, headers={"accept": "text/html"}).status_code == 200, page
        assert client.get(f"/api/v1/datasets/{name}/samples").status_code == 404


def test_model_of_a_task_of_ones_own_is_not_served(client: TestClient) -> None:
    answer = client.post("/predict?checkpoint=counts.ours.0", files={"file": ("0.png", b"x")})
    assert answer.status_code == 409 and "learns a task of another package, which only evaluation reads" in answer.text
    assert client.get("/v2/models/counts.ours").status_code in (404, 409)
    assert {row["id"].split(".")[0] for row in client.get("/api/v1/checkpoints").json()} == {
        "arrays",
        "pictures",
        "masks",
    }


def png_of(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels[0]).save(buffer, "PNG")
    return buffer.getvalue()


def infer(client: TestClient, name: str, images: np.ndarray) -> dict[str, np.ndarray]:
    """Answers of a model under /v2, by the name of the tensor."""
    tensor = {"name": "image", "datatype": "UINT8", "shape": images.shape, "data": images.reshape(-1).tolist()}
    answer = client.post(f"/v2/models/{name}.ours/infer", json={"inputs": [tensor]})
    assert answer.status_code == 200, answer.text
    described = {row["name"]: row for row in client.get(f"/v2/models/{name}.ours").json()["outputs"]}
    found = {}
    for row in answer.json()["outputs"]:
        assert row["datatype"] == described[row["name"]]["datatype"]
        assert row["shape"][1:] == described[row["name"]]["shape"][1:]
        found[row["name"]] = np.array(row["data"]).reshape(row["shape"])
    assert found.keys() == described.keys()
    return found


def recorded(project: Path, name: str) -> dict[str, float]:
    lines = [
        json.loads(line) for line in (project / f"data/results/{name}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    (first,) = (line for line in lines if line["replicate"] == 0)
    return {row["metric"]: row["value"] for row in first["metrics"]}


def test_predictions_of_all_test_images_give_the_recorded_metrics(client: TestClient, project: Path) -> None:
    """The service's answers are those that evaluation measured."""
    tests = {name: read_images(project / "data/processed" / name, "test") for name in ("arrays", "pictures", "masks")}
    found = {name: infer(client, name, test.images) for name, test in tests.items()}

    labels, values = tests["arrays"].labels, recorded(project, "arrays")
    predicted, probabilities = found["arrays"]["labels"], found["arrays"]["probabilities"]
    assert (predicted == (probabilities >= 0.5)).all() and 0 < predicted.mean() < 1
    assert (predicted == labels).all(axis=1).mean() == pytest.approx(values["exact_match"])
    assert f1_score(labels, predicted, average="macro") == pytest.approx(values["macro_f1"])
    precision = average_precision_score(labels, probabilities)
    assert precision == pytest.approx(values["mean_average_precision"], rel=1e-4)

    numbers, values = tests["pictures"].labels.view(np.float64), recorded(project, "pictures")
    errors = found["pictures"]["numbers"] - numbers
    assert (errors**2).mean() == pytest.approx(values["mse"], rel=1e-4)
    assert np.abs(errors).mean() == pytest.approx(values["mae"], rel=1e-4)

    true = tests["masks"].labels.view(np.uint8).reshape(-1, 8, 8).astype(int) - 1
    right = (found["masks"]["mask"] == true)[true >= 0]
    assert right.mean() == pytest.approx(recorded(project, "masks")["pixel_accuracy"])


@pytest.mark.parametrize("name", ["arrays", "pictures", "masks"])
def test_file_and_tensor_have_the_same_answer(client: TestClient, project: Path, name: str) -> None:
    images = read_images(project / "data/processed" / name, "test").images[:3]
    expected = infer(client, name, images)
    files = [("file", (f"{number}.png", png_of(image))) for number, image in enumerate(images)]
    answered = client.post(f"/predict?dataset={name}", files=[*files, ("file", ("bad.png", b"x"))]).json()
    assert "not a PNG" in answered["images"].pop()["problem"] and answered["models"][0]["our_accuracy"] is None
    for number, image in enumerate(answered["images"]):
        alone = client.post(f"/predict?checkpoint={name}.ours.0", files=[files[number]]).json()["images"][0]
        (answer,) = alone["answers"]
        if name == "arrays":
            assert [row["name"] for row in answer["labels"]] == ["0", "1", "2"]
            assert [row["is_predicted"] for row in answer["labels"]] == expected["labels"][number].tolist()
            said = [row["probability"] for row in answer["labels"]]
            np.testing.assert_allclose(said, expected["probabilities"][number], atol=1e-5)
        elif name == "pictures":
            assert [row["name"] for row in answer["numbers"]] == ["digit", "ink"]
            said = [row["value"] for row in answer["numbers"]]
            np.testing.assert_allclose(said, expected["numbers"][number], atol=1e-5)
        else:
            assert answer == image["answers"][0]
            with Image.open(io.BytesIO(base64.b64decode(answer["mask"]))) as mask:
                pixels, palette = np.asarray(mask), mask.getpalette()
            assert mask.format == "PNG" and pixels.tolist() == expected["mask"][number].tolist()
            for row in answer["shares"]:
                assert row["share"] == (pixels == row["index"]).mean()
                assert row["colour"] == "#" + bytes(palette[3 * row["index"] :][:3]).hex()
            assert sum(row["share"] for row in answer["shares"]) == 1
    page = client.post(f"/predict?dataset={name}", files=files, headers={"accept": "text/html"})
    assert page.status_code == 200
    shown = {"arrays": "<b>", "pictures": "digit", "masks": "data:image/png;base64,"}[name]
    assert page.text.count(shown) >= 3


HUGE = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", 60_000, 60_000, 8, 0, 0, 0, 0)
HUGE += struct.pack(">I", zlib.crc32(HUGE[12:29]))
REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    ("checkpoint=masks.ours.0", {"files": {"sample": (None, "")}}, 422, "sample is ''; expected <data set>/<position>"),
    ("checkpoint=masks.ours.0", {"files": {"sample": (None, "masks/0")}}, 404, "no class each, by which samples"),
    ("checkpoint=masks.ours.0", {"files": {"file": ("a.png", b"")}}, 422, "the file is empty; expected a PNG, JPEG"),
    ("checkpoint=masks.ours.0", {"files": {"file": ("a.png", HUGE)}}, 413, "60,000 x 60,000 pixels; at most"),
    ("checkpoint=masks.ours.0", {"json": [{"x0": 1}]}, 415, "images come as multipart/form-data"),
    ("checkpoint=masks.ours.9", {"files": {"file": b"x"}}, 404, "unknown checkpoint 'masks.ours.9'"),
    ("dataset=masks&arm=theirs", {"files": {"file": b"x"}}, 404, "known: ours"),
    ("checkpoint=rows.ours.0", {"files": {"file": b"x"}}, 409, "takes rows of a table, whose scaling no checkpoint"),
    ("dataset=rows", {"files": {"file": b"x"}}, 409, "takes rows of a table, whose scaling no checkpoint"),
]


@pytest.mark.parametrize(("query", "body", "status", "words"), REFUSED)
def test_wrong_request_is_explained(
    client: TestClient, query: str, body: dict[str, Any], status: int, words: str
) -> None:
    for accept, media in (("*/*", "application/problem+json"), ("text/html", "text/html; charset=utf-8")):
        answer = client.post(f"/predict?{query}", headers={"accept": accept}, **body)
        assert (answer.status_code, answer.headers["content-type"]) == (status, media)
        assert media.startswith("text/html") or words in answer.json()["detail"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"datatype": "FP32"}, "expected 'image', UINT8 [N, 1, 8, 8]; got 'image', FP32"),
        ({"shape": [1, 3, 8, 8]}, "expected 'image', UINT8 [N, 1, 8, 8]; got shape [1, 3, 8, 8]"),
        ({"data": [0.5] * 64}, "data needs 64 whole numbers from 0 to 255"),
        ({"data": [float("nan")] * 64}, "the request is not JSON"),
        ({"outputs": [{"name": "classes"}]}, "no output 'classes'; known: mask"),
    ],
)
def test_wrong_tensor_is_explained(client: TestClient, changes: dict[str, Any], words: str) -> None:
    tensor: dict[str, Any] = {"name": "image", "datatype": "UINT8", "shape": [1, 1, 8, 8], "data": [0] * 64, **changes}
    outputs = {"outputs": tensor.pop("outputs")} if "outputs" in tensor else {}
    answer = client.post("/v2/models/masks.ours/infer", content=json.dumps({"inputs": [tensor], **outputs}))
    assert answer.status_code == 400 and words in answer.json()["error"]
    assert client.get("/v2/models/rows.ours").status_code == 404


def test_answer_is_bounded(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [("file", png_of(np.zeros((1, 8, 8), dtype=np.uint8)))] * 3
    monkeypatch.setattr("service.inference.engine.MOST_MASK_PIXELS", 128)
    answer = client.post("/predict?dataset=masks", files=files)
    assert answer.status_code == 413
    assert answer.json()["detail"] == (
        "the masks would have 192 pixels; at most 128: send fewer images or name fewer models"
    )
    monkeypatch.setattr("service.inference.engine.MOST_CLASSES", 8)
    answer = client.post("/predict?dataset=arrays&top_k=1", files=files)
    assert answer.status_code == 413 and answer.json()["detail"].endswith("send fewer images or name fewer models")
