from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stages import fetch, preprocess
from stages.datasets.packed import read_images, read_info
from tests.datasets.tiny import tiny_mnist
from tests.datasets.workplace import REPOSITORY, write_params


@pytest.fixture(autouse=True)
def work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLAIMCHECK_HOME", raising=False)
    monkeypatch.delenv("CLAIMCHECK_MIRROR", raising=False)


def test_fetched_files_become_the_packed_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = tiny_mnist()
    dataset.write(tmp_path / "data/downloads/tiny")
    write_params(tmp_path, "quick", tiny=dataset.source)
    assert fetch.main(["tiny"]) == 0
    assert preprocess.main(["tiny"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("preprocess: tiny: full, 50 training and 200 test images, digest ")
    assert read_info(tmp_path / "data/processed/tiny").provenance == "full"


def test_stand_in_is_composed_where_fetch_said_so(tmp_path: Path) -> None:
    write_params(tmp_path, "smoke", tiny=tiny_mnist().source)
    assert fetch.main(["tiny"]) == 0
    assert preprocess.main(["tiny"]) == 0
    assert read_info(tmp_path / "data/processed/tiny").provenance == "embedded"
    assert len(read_images(tmp_path / "data/processed/tiny", "test")) == 16


def test_fault_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    """As a user runs it: exit status 1 and one line on stderr."""
    write_params(tmp_path, "quick", tiny=tiny_mnist().source)
    done = subprocess.run(
        [sys.executable, "-m", "stages.preprocess", "tiny"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == ("preprocess: data/raw/tiny.json: no such file; `python -m stages.fetch tiny` writes it\n")
    assert not (tmp_path / "data").exists()
