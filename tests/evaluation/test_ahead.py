"""What is measured ahead of dvc's stage is kept for it, and the two never measure at once."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stages.evaluate import main
from stages.evaluation.flops import Kept
from stages.params.experiment import load_params
from stages.scheduling.runner import train_experiment
from tests.project import EXPERIMENT, make_project

RESULTS = Path("data/results") / f"{EXPERIMENT}.jsonl"


@pytest.fixture(autouse=True)
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(make_project(tmp_path))
    monkeypatch.delenv("CLAIMCHECK_HOME", raising=False)
    monkeypatch.setenv("CLAIMCHECK_DEVICE", "cpu")
    assert train_experiment(
        EXPERIMENT, load_params(), data=Path("data"), devices=["cpu"], report=lambda event: None, stop=threading.Event()
    )


def test_the_stage_writes_what_was_measured_ahead_to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    assert main([EXPERIMENT]) == 0
    alone = RESULTS.read_bytes()
    for folder in ("data/results", "data/store/evaluated", "data/store/timed"):
        shutil.rmtree(folder)
    assert main([EXPERIMENT, "--ahead"]) == 0
    assert not Path("data/results").exists()
    monkeypatch.setattr("stages.evaluation.experiment.score", None)  # it would fail
    monkeypatch.setattr("stages.evaluation.cost.Stopwatch.time", None)
    assert main([EXPERIMENT]) == 0
    assert RESULTS.read_bytes() == alone


def test_the_stage_waits_for_what_is_measured_ahead_and_not_the_other_way_round() -> None:
    with ThreadPoolExecutor() as pool:
        with Kept("timed").held(EXPERIMENT) as is_ours:
            assert is_ours
            assert main([EXPERIMENT, "--ahead"]) == 0
            stage = pool.submit(main, [EXPERIMENT])
            with pytest.raises(TimeoutError):
                stage.result(1)
            assert not Path("data/store/evaluated").exists()
        assert stage.result(60) == 0 and RESULTS.exists()
