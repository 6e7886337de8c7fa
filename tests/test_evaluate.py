"""Evaluation: deterministic lines, the observer's last value is the Predictor's, and mixed-up data are refused."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from stages.datasets.packed import read_images
from stages.evaluate import main
from stages.evidence import CostLine, ResultLine, read_lines, unpack_confusion, unpack_correct
from stages.experiment import load_params
from stages.runner import train_experiment
from tests.project import EXPERIMENT, make_project, pack_stand_in

RESULTS = Path("data/results") / f"{EXPERIMENT}.jsonl"
COSTS = Path("data/results") / f"{EXPERIMENT}.cost.jsonl"


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(make_project(tmp_path, epochs=2))
    monkeypatch.delenv("CLAIMCHECK_HOME", raising=False)
    monkeypatch.setenv("CLAIMCHECK_DEVICE", "cpu")
    params = load_params()
    assert train_experiment(
        EXPERIMENT, params, data=Path("data"), devices=["cpu"], report=lambda event: None, stop=threading.Event()
    )
    return tmp_path


def test_lines_hold_what_was_measured_and_are_the_same_again(trained: Path) -> None:
    assert main([EXPERIMENT]) == 0
    first = RESULTS.read_bytes()
    assert main([EXPERIMENT]) == 0
    assert RESULTS.read_bytes() == first
    lines = read_lines(RESULTS, ResultLine)
    labels = read_images(Path("data/processed/mnist"), "test").labels
    assert sorted(line.arm for line in lines) == ["ninformer", "vit"]
    for line in lines:
        metrics = {m.metric: m for m in line.metrics}
        assert line.correct is not None and line.confusion is not None
        correct, confusion = unpack_correct(line.correct, len(labels)), unpack_confusion(line.confusion, 10)
        assert metrics["accuracy"].n == len(labels) == 16
        assert metrics["accuracy"].value == correct.mean() == np.trace(confusion) / len(labels)
        assert (confusion.sum(axis=1) == np.bincount(labels, minlength=10)).all()
        assert metrics["accuracy"].value == line.curves[-1].test_accuracy
        assert metrics["loss"].value == pytest.approx(line.curves[-1].test_loss, rel=1e-5)
        best = max(row.test_accuracy for row in line.curves if row.test_accuracy is not None)
        assert metrics["best_epoch_accuracy"].value == best
        assert line.data.provenance == "embedded"
    costs = read_lines(COSTS, CostLine)
    assert all(line.train_seconds > 0 and line.peak_memory_bytes > 1e7 for line in costs)
    assert all((line.latency_batch_size, line.latency_repeats) == (2, 2) for line in costs)
    assert all(line.latency_seconds_per_sample and line.latency_seconds_per_sample > 0 for line in costs)
    shown = json.loads((Path("data/metrics") / f"{EXPERIMENT}.json").read_text())
    assert shown["vit"]["accuracy"] == next(m.value for m in lines[1].metrics if m.metric == "accuracy")
    assert len((Path("data/plots") / f"{EXPERIMENT}.csv").read_text().splitlines()) == 1 + 2 * 2


def test_other_test_data_are_refused(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack_stand_in(Path("data/processed/mnist"), "cifar10")
    assert main([EXPERIMENT]) == 1
    assert f"run `dvc repro train@{EXPERIMENT}` first" in capsys.readouterr().err
    assert not RESULTS.exists()


def test_without_runs_it_says_what_to_run(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lost"]) == 1
    assert "run `dvc repro train@lost` first" in capsys.readouterr().err


def test_exchanged_weights_are_refused(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = sorted((Path("data/runs") / EXPERIMENT).glob("*/weights.safetensors"))
    content = other.read_bytes()
    one.unlink()
    one.write_bytes(content)
    assert main([EXPERIMENT]) == 1
    assert "weights.safetensors is not the file that result.json names" in capsys.readouterr().err
