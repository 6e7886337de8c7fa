"""Everything twice, as `benchmarks.growth` writes it, is a project that can be read and recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import growth
from stages.params.experiment import load_params
from stages.recording import record
from stages.runs.evidence import EvidenceLine, evidence_files, read_lines
from tests.project import REPOSITORY

# All evidence is copied and judged: minutes on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_two_of_everything_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(growth, "REPLICATES", 1)
    (tmp_path / "data").mkdir()
    growth.enlarge(tmp_path, 2)
    assert len(load_params(tmp_path).experiments) == 2 * len(load_params(REPOSITORY).experiments)
    published = sum(len(read_lines(path, EvidenceLine)) for path in evidence_files(REPOSITORY / "data" / "evidence"))
    assert record(tmp_path, "data/results.db").results == 2 * published
