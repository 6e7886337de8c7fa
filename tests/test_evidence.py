from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from stages.equivalence import PATH as EQUIVALENCES
from stages.equivalence import read_equivalences
from stages.evidence import EpochRow, EvidenceError, EvidenceLine, ResultLine, read_lines, write_lines
from stages.experiment import load_params
from stages.publishing import line_faults
from stages.recording.sources import find_results
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
        ({"epoch": [1], "steps": [], "lr": [0.1], "train_loss": [2.5]}, r"x\.jsonl, line 1: curves: .*shorter"),
        (
            {"epoch": [1], "steps": [10], "lr": [0.1], "train_loss": ["high"]},
            r"x\.jsonl, line 1: curves\.train_loss: .*number",
        ),
        ({"epoch": [1], "steps": [10], "lr": [0.1]}, r"x\.jsonl, line 1: curves\.train_loss: .*required"),
        ([{"epoch": 1}], r"x\.jsonl, line 1: curves\.0"),
    ],
)
def test_curves_that_are_no_columns_are_refused_by_file_and_line(tmp_path: Path, curves: object, message: str) -> None:
    line = json.loads(write_lines([published()]))
    (tmp_path / "x.jsonl").write_text(json.dumps({**line, "curves": curves}) + "\n")
    with pytest.raises(EvidenceError, match=message):
        read_lines(tmp_path / "x.jsonl", ResultLine)


def test_committed_evidence_is_as_it_would_be_written() -> None:
    files = {path for path in (REPOSITORY / "data" / "evidence").glob("*.jsonl") if path.name != EQUIVALENCES.name}
    for path in sorted(files):
        assert write_lines(read_lines(path, EvidenceLine)) == path.read_bytes(), path.name


def test_all_published_lines_are_of_current_code_or_lead_to_it() -> None:
    lines = read_equivalences(REPOSITORY)
    assert lines.loose_ends() == [] and line_faults(REPOSITORY) == []
    found, _ = find_results(REPOSITORY, load_params(REPOSITORY), evidence_only=True)
    assert {f"{item.file.name} {item.result.arm}": item.changed_code for item in found if item.changed_code} == {}
