"""Choosing the engine, and estimating the remaining time."""

import importlib.util
from pathlib import Path

import pytest

from stages.scheduling.engine import local
from stages.scheduling.engine.groups import ENGINE, EngineError, default_engine, find_engine
from stages.scheduling.journal import StageTimes
from tests.preloaded import python
from tests.project import EXPERIMENT, environment, make_project


def test_environment_variable_selects_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENGINE, raising=False)
    assert find_engine(default_engine()) is local.run_groups
    monkeypatch.setenv(ENGINE, "ray")
    assert default_engine() == "ray"


def test_engine_with_a_missing_package_explains_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EngineError, match="needs the package ray, which isn't installed: `make cluster` adds it"):
        find_engine("ray")


def test_unknown_engine_is_one_line(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    done = python("-m", "stages.train", EXPERIMENT, "--engine", "slurm", cwd=project, env=environment())
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"train@{EXPERIMENT}: no engine 'slurm'; known: local, ray")
    assert done.stderr.count("\n") == 1


def test_remaining_time_of_repro_is_estimated_from_similar_stages() -> None:
    """A stage counts as many runs as it has; without a finished stage of each kind there is no estimate."""
    times = StageTimes({"inputs": 1, "train@a": 2, "evaluate@a": 2, "train@b": 6, "evaluate@b": 6, "record": 1})
    times.start("inputs")
    assert times.left(1, None) is None
    times.end(1)
    times.start("train@a")
    assert times.left(5, 15) is None, "no evaluation has finished"
    times.end(20)
    times.start("evaluate@a")
    times.end(4)
    times.start("train@b")
    assert times.left(12, None) == pytest.approx(6 * 10 - 12 + 6 * 2)
    assert times.left(12, 30) == pytest.approx(30 + 6 * 2), "the stage's own estimate is better"
    times.end(60)
    assert times.left(0, None) == pytest.approx(12)


def test_unchanged_stages_reduce_the_estimate() -> None:
    times = StageTimes({f"train@{name}": 1 for name in "abcd"})
    times.skip("train@a")
    assert times.left(0, None) == 0, "every stage so far was unchanged"
    times.start("train@b")
    times.end(10)
    assert times.left(0, None) == pytest.approx(2 * 10 / 2)
    times.start("train@c")
    assert times.left(4, None) == pytest.approx(10 - 4 + 10 / 2), "this one certainly runs"
