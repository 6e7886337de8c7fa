from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from stages.params.experiment import load_params
from stages.recording.sources import find_results
from stages.runs.curves import Curves, EpochRow, as_curves, given_columns
from stages.runs.equivalence import read_equivalences
from stages.runs.evidence import EvidenceError, EvidenceLine, ResultLine, evidence_files, read_lines, write_lines
from tests.project import REPOSITORY

ROWS = (
    EpochRow(epoch=1, steps=10, lr=0.1, train_loss=2.5, val_loss=2.25),
    EpochRow(epoch=2, steps=20, lr=0.1, train_loss=1.5, test_accuracy=0.75),
)


def published() -> ResultLine:
    return read_lines(REPOSITORY / "data" / "evidence" / "ninformer-mnist.jsonl", EvidenceLine)[0].result


def test_curves_stand_by_column_and_come_back(tmp_path: Path) -> None:
    line = dataclasses.replace(published(), curves=ROWS)
    (tmp_path / "x.jsonl").write_bytes(write_lines([line]))
    columns = json.loads((tmp_path / "x.jsonl").read_text())["curves"]
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
        ([{"epoch": 1}], r"x\.jsonl, line 1: curves\.0"),
    ],
)
def test_curves_that_are_no_columns_are_refused_by_file_and_line(tmp_path: Path, curves: object, message: str) -> None:
    line = json.loads(write_lines([published()]))
    (tmp_path / "x.jsonl").write_text(json.dumps({**line, "curves": curves}) + "\n")
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


def test_a_line_that_is_laid_out_otherwise_is_what_it_says(tmp_path: Path) -> None:
    """The digest covers the canonical line, however it is written."""
    text = (REPOSITORY / "data" / "evidence" / "ninformer-mnist.jsonl").read_text().splitlines()[0]
    line, path = json.loads(text), tmp_path / "x.jsonl"
    path.write_text(json.dumps(dict(reversed(line.items()))) + "\n")
    assert write_lines(read_lines(path, EvidenceLine)).decode() == f"{text}\n"
    line["cost"]["train_seconds"] += 1
    for edited in (json.dumps(line), json.dumps(line, sort_keys=True, separators=(",", ":"))):
        path.write_text(f"{edited}\n")
        with pytest.raises(EvidenceError, match="it is not as it was published"):
            read_lines(path, EvidenceLine)


def test_committed_evidence_is_as_it_would_be_written() -> None:
    for path in evidence_files(REPOSITORY / "data" / "evidence"):
        assert write_lines(read_lines(path, EvidenceLine)) == path.read_bytes(), path.name


def test_all_published_lines_are_of_current_code_or_lead_to_it() -> None:
    lines = read_equivalences(REPOSITORY)
    assert lines.loose_ends() == [] and lines.hold(range(1, len(lines.lines) + 1))
    found, _ = find_results(REPOSITORY, load_params(REPOSITORY), evidence_only=True)
    assert {f"{item.file.name} {item.result.arm}": item.changed_code for item in found if item.changed_code} == {}
