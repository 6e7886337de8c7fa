"""Published lines are consistent; `record` reports each edited number with its file and line."""

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stages.params.experiment import load_params
from stages.recording.builder import record
from stages.recording.sources import RecordError, find_results
from stages.run import canonical_json
from stages.runs.consistency import find_contradictions, find_cost_contradictions, find_release_contradictions
from stages.runs.equivalence import read_equivalences
from stages.runs.evidence import (
    Curves,
    EpochRow,
    EvidenceError,
    EvidenceLine,
    ResultLine,
    as_curves,
    evidence_files,
    given_columns,
    pack_correct,
    read_lines,
    seal,
    unpack_correct,
    write_lines,
)
from tests.project import REPOSITORY

EVIDENCE = REPOSITORY / "data" / "evidence"
Edit = Callable[[dict[str, Any]], None]


def every_line() -> list[EvidenceLine]:
    return [line for path in evidence_files(EVIDENCE) for line in read_lines(path, EvidenceLine)]


def test_published_lines_have_no_contradictions() -> None:
    lines = every_line()
    assert len(lines) >= 169
    for line in lines:
        assert find_contradictions(line.result) == []
        assert find_cost_contradictions(line.result, line.cost) == []
        assert line.release is None or find_release_contradictions(line.result, line.release) == []


@pytest.fixture(scope="module")
def chosen() -> dict[str, list[EvidenceLine]]:
    """Lines by experiment: MNIST's, and one network of SGEMM."""
    images, tables = (read_lines(EVIDENCE / f"{name}.jsonl", EvidenceLine) for name in ("ninformer-mnist", "dac-sgemm"))
    return {"ninformer-mnist": images, "dac-sgemm": tables[:1]}


@pytest.fixture
def root(tmp_path: Path, chosen: dict[str, list[EvidenceLine]]) -> Path:
    """A project with MNIST's results as local, unpublished ones."""
    (tmp_path / "data").mkdir()
    for name in ("params", "params.yaml", "data/claims.csv", "data/claims-history.jsonl", "data/models"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    (tmp_path / "data" / "results").mkdir()
    for experiment, own in chosen.items():
        folder = tmp_path / "data" / "results"
        (folder / f"{experiment}.jsonl").write_bytes(write_lines(line.result for line in own))
        (folder / f"{experiment}.cost.jsonl").write_bytes(write_lines(line.cost for line in own))
    return tmp_path


def edit(path: Path, number: int, change: Edit) -> None:
    """Change one line as with an editor."""
    lines = path.read_text(encoding="utf-8").splitlines()
    value = json.loads(lines[number - 1])
    change(value)
    lines[number - 1] = canonical_json(value)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def metric(name: str, value: float) -> Edit:
    def change(line: dict[str, Any]) -> None:
        next(row for row in line["metrics"] if row["metric"] == name)["value"] = value

    return change


def put(value: Any, *path: str | int) -> Edit:
    def change(line: dict[str, Any]) -> None:
        *place, last = path
        for name in place:
            line = line[name]  # type: ignore[index]
        line[last] = value  # type: ignore[index]

    return change


def flip_images(line: dict[str, Any]) -> None:
    correct = unpack_correct(line["correct"], line["data"]["test_images"])
    correct[np.flatnonzero(correct)[:3]] = False
    line["correct"] = pack_correct(correct)


def add_twelve_images(line: dict[str, Any]) -> None:
    """Make bitmap and accuracy agree on twelve images more than the curve says."""
    correct = unpack_correct(line["correct"], line["data"]["test_images"])
    correct[np.flatnonzero(~correct)[:12]] = True
    line.pop("confusion", None)
    line["correct"] = pack_correct(correct)
    metric("accuracy", float(correct.mean()))(line)


def diverge(line: dict[str, Any]) -> None:
    line["status"] = "diverged"


def shorten(line: dict[str, Any]) -> None:
    line["curves"] = {name: column[:-1] for name, column in line["curves"].items()}


IMAGES: dict[str, tuple[Edit, str]] = {
    "accuracy": (metric("accuracy", 0.9999), r"accuracy is 0\.9999, its bitmap has \d,\d{3} correct of 10,000 images"),
    "bitmap": (flip_images, "accuracy is .*, its bitmap has .*; its confusion matrix has 10,000 images"),
    "accuracy and bitmap": (add_twelve_images, r"accuracy is 0\.9\d+, the last epoch of its curves has 0\.9"),
    "no bitmap": (lambda line: line.pop("correct"), "it has an accuracy and no bitmap of correct images"),
    "short bitmap": (put("AAAA", "correct"), "its bitmap of correct images is not one of 10,000 test images"),
    "no base64": (put("A", "correct"), "its bitmap or confusion matrix can't be read"),
    "best epoch": (metric("best_epoch_accuracy", 0.9999), r"best_epoch_accuracy is 0\.9999, its curves give 0\.9"),
    "curve": (put(0.9999, "curves", "test_accuracy", -1), r"best_epoch_accuracy is .*, its curves give 0\.9999"),
    "n": (put(9999, "metrics", 0, "n"), "was measured on 9999 test samples, its data have 10,000"),
    "test images": (put(9999, "data", "test_images"), "was measured on 10000 test samples, its data have 9,999"),
    "seed": (put(77, "spec", "replicate", "seed"), "run_key is .*, the sha256 of its spec is"),
    "threads": (put(77, "environment", "threads"), "environment_digest is .*, the sha256 of its environment is"),
    "data": (put("0" * 64, "data", "digest"), "its data are 000000000000, those of its spec"),
    "diverged": (diverge, "its status is diverged, and it has metrics"),
    "finished": (
        put({"step": 9, "last_finite_step": 8, "last_finite_loss": None}, "divergence"),
        "its status is finished, and it has divergence",
    ),
    "weights": (lambda line: line.pop("weights_sha256"), "its status is finished, and it has no weights_sha256"),
    "fewer epochs": (shorten, "its curves have 2 epochs, its protocol 3"),
    "order": (put(5, "curves", "epoch", 1), "its curves don't have the epochs 1 to 3 one after the other"),
    "steps": (put(1, "curves", "steps", 2), "the steps of its curves don't grow from epoch to epoch"),
    "share": (put(1.5, "curves", "train_accuracy", 0), "train_accuracy of epoch 1 isn't a share between 0 and 1"),
}
TABLES: dict[str, tuple[Edit, str]] = {
    "mse": (metric("mse", 0.001), r"log_mse is .*, the logarithm of mse is -6\.9.*mse is 0\.001, the last epoch"),
    "log_mse": (metric("log_mse", -9.0), "log_mse is -9, the logarithm of mse is"),
    "selected_mse": (metric("selected_mse", 0.001), r"selected_mse is 0\.001, its curves give"),
    "selected_log_mse": (metric("selected_log_mse", -9.0), "selected_log_mse is -9, the logarithm of selected_mse is"),
    "validation": (put(1e-9, "curves", "val_loss", 0), "selected_mse is .*, its curves give"),
    "no error": (metric("mse", 0.0), "mse is 0, not a squared error"),
}


@pytest.mark.parametrize(
    ("experiment", "name"), [*(("ninformer-mnist", name) for name in IMAGES), *(("dac-sgemm", name) for name in TABLES)]
)
def test_edited_result_line_is_found(root: Path, experiment: str, name: str) -> None:
    change, message = (IMAGES | TABLES)[name]
    path = root / "data" / "results" / f"{experiment}.jsonl"
    edit(path, 1, change)
    assert re.search(message, "; ".join(find_contradictions(read_lines(path, ResultLine)[0])))


def test_record_refuses_an_edited_line_by_file_and_line(root: Path) -> None:
    change, message = IMAGES["accuracy"]
    edit(root / "data" / "results" / "ninformer-mnist.jsonl", 2, change)
    where = r"ninformer-mnist\.jsonl, line 2: ninformer-mnist\.[\w-]+\.0: "
    with pytest.raises(RecordError, match=rf"{where}.*{message}.*evaluate@"):
        record(root, "data/results.db")


def test_contradictory_cost_is_refused(root: Path) -> None:
    path = root / "data" / "results" / "ninformer-mnist.cost.jsonl"
    edit(path, 1, put(1.0, "train_seconds"))
    with pytest.raises(RecordError, match="train_seconds is 1, its epochs took"):
        record(root, "data/results.db")


@pytest.fixture
def published(root: Path) -> Path:
    """The same results as evidence."""
    shutil.rmtree(root / "data" / "results")
    (root / "data" / "evidence").mkdir()
    path = root / "data" / "evidence" / "ninformer-mnist.jsonl"
    shutil.copy(EVIDENCE / path.name, path)
    return path


def test_evidence_without_its_digest_is_refused(root: Path, published: Path) -> None:
    edit(published, 3, lambda line: line.pop("digest"))
    with pytest.raises(EvidenceError, match=r"mnist\.jsonl, line 3: it has no digest.* ninformer-mnist\.\S+\.0 again"):
        record(root, "data/results.db")


@pytest.mark.parametrize(
    "change",
    [
        put("0" * 64, "digest"),
        put(1.0, "cost", "peak_memory_bytes"),
        put(True, "origin", "dirty"),
        put(0.1, "result", "metrics", 1, "value"),
        put("another cut", "result", "cut"),
    ],
)
def test_edited_evidence_is_refused_even_if_consistent(root: Path, published: Path, change: Edit) -> None:
    edit(published, 1, change)
    with pytest.raises(
        EvidenceError, match=r"mnist\.jsonl, line 1: .*its content gives \w{12}: it was changed after it was"
    ):
        record(root, "data/results.db")


def test_recomputed_digest_does_not_hide_a_contradiction(root: Path, published: Path) -> None:
    def forge(line: dict[str, Any]) -> None:
        metric("accuracy", 0.9999)(line["result"])
        line.update(seal(line))

    edit(published, 1, forge)
    with pytest.raises(RecordError, match=r"mnist\.jsonl, line 1: .*accuracy is 0\.9999, .*take the line from git"):
        record(root, "data/results.db")


def test_released_accuracy_must_fit_its_number_of_images() -> None:
    line = next(line for line in every_line() if line.release is not None)
    assert line.release is not None
    better = dataclasses.replace(line.release, accuracy=0.99, n=1)
    found = find_release_contradictions(line.result, better)
    assert [text.split(" was ")[0].split(" is ")[0] for text in found] == [
        "its released model",
        "the accuracy of its released model",
    ]


ROWS = (
    EpochRow(epoch=1, steps=10, lr=0.1, train_loss=2.5, val_loss=2.25),
    EpochRow(epoch=2, steps=20, lr=0.1, train_loss=1.5, test_accuracy=0.75),
)


def first_line() -> ResultLine:
    return read_lines(REPOSITORY / "data" / "evidence" / "ninformer-mnist.jsonl", EvidenceLine)[0].result


def test_curves_are_stored_by_column_and_read_back(tmp_path: Path) -> None:
    line = dataclasses.replace(first_line(), curves=ROWS)
    (tmp_path / "x.jsonl").write_bytes(write_lines([line]))
    columns = json.loads((tmp_path / "x.jsonl").read_text(encoding="utf-8"))["curves"]
    assert columns["train_loss"] == [2.5, 1.5]
    assert columns["val_loss"] == [2.25, None]
    assert "test_loss" not in columns, "no epoch has one"
    assert read_lines(tmp_path / "x.jsonl", ResultLine) == [line]


@pytest.mark.parametrize(
    ("curves", "message"),
    [
        (
            {"epoch": [1], "steps": [], "lr": [0.1], "train_loss": [2.5]},
            r"x\.jsonl, line 1: curves: .*lengths: epoch 1, steps 0",
        ),
        (
            {"epoch": [1], "steps": [10], "lr": [0.1], "train_loss": ["high"]},
            r"x\.jsonl, line 1: curves: .*train_loss\.0: .*number",
        ),
        ({"epoch": [1], "steps": [10], "lr": [0.1]}, r"x\.jsonl, line 1: curves: .*train_loss is missing"),
        ({"epoch": [1], "step": [10]}, r"x\.jsonl, line 1: curves: .*unknown column step; known: epoch, steps"),
        (
            {"epoch": [1, 2], "steps": [1, 2], "lr": [0.1, 0.1], "train_loss": [2.5, None]},
            r"x\.jsonl, line 1: curves: .*train_loss\.1: .*number",
        ),
        ({"epoch": 1, "steps": 10, "lr": 0.1, "train_loss": 2.5}, r"x\.jsonl, line 1: curves: .*epoch: .*list"),
        ([{"epoch": 1}], r"x\.jsonl, line 1: curves: .*a list per column"),
    ],
)
def test_invalid_curves_are_reported_by_file_and_line(tmp_path: Path, curves: object, message: str) -> None:
    line = json.loads(write_lines([first_line()]))
    (tmp_path / "x.jsonl").write_text(json.dumps({**line, "curves": curves}) + "\n", encoding="utf-8")
    with pytest.raises(EvidenceError, match=message):
        read_lines(tmp_path / "x.jsonl", ResultLine)


def test_curves_are_a_sequence_of_epochs() -> None:
    curves = Curves.read({"epoch": [1, 2], "steps": [10, 20], "lr": [0.1, 0.1], "train_loss": [3, 1.5]})
    assert len(curves) == 2 and curves[-1].train_loss == 1.5 and curves[-1].test_loss is None
    assert curves.column("train_loss") == [3.0, 1.5] and curves.column("test_loss") == [None, None]
    assert [type(value) for value in curves.column("train_loss")] == [float, float]
    assert [row.epoch for row in curves] == [1, 2] and curves[:1] == (curves[0],)
    assert curves == tuple(curves) and tuple(curves) == curves and curves != ROWS
    assert as_curves(ROWS) == ROWS and given_columns(ROWS)["val_loss"] == [2.25, None]
    assert len(Curves.read({})) == 0 and not list(Curves.read({}))


def test_key_order_and_white_space_do_not_change_the_digest(tmp_path: Path) -> None:
    text = (REPOSITORY / "data" / "evidence" / "ninformer-mnist.jsonl").read_text(encoding="utf-8").splitlines()[0]
    line, path = json.loads(text), tmp_path / "x.jsonl"
    path.write_text(json.dumps(dict(reversed(line.items()))) + "\n", encoding="utf-8")
    assert write_lines(read_lines(path, EvidenceLine)).decode() == f"{text}\n"
    line["cost"]["train_seconds"] += 1
    for edited in (json.dumps(line), json.dumps(line, sort_keys=True, separators=(",", ":"))):
        path.write_text(f"{edited}\n", encoding="utf-8")
        with pytest.raises(EvidenceError, match="it was changed after it was published"):
            read_lines(path, EvidenceLine)


def test_committed_evidence_is_in_canonical_form() -> None:
    for path in evidence_files(REPOSITORY / "data" / "evidence"):
        assert write_lines(read_lines(path, EvidenceLine)) == path.read_bytes(), path.name


def test_published_lines_are_of_current_or_equivalent_code() -> None:
    lines = read_equivalences(REPOSITORY)
    assert lines.loose_ends() == [] and lines.hold(range(1, len(lines.lines) + 1))
    found, _ = find_results(REPOSITORY, load_params(REPOSITORY), evidence_only=True)
    assert {f"{item.file.name} {item.result.arm}": item.changed_code for item in found if item.changed_code} == {}
