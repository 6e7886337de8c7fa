"""The engine that is chosen, and runs counted for whoever watches."""

import importlib.util
from pathlib import Path

import pytest

from stages.scheduling.engine import local
from stages.scheduling.engine.groups import ENGINE, EngineError, default_engine, find_engine
from stages.scheduling.journal import StageTimes
from tests.preloaded import python
from tests.project import EXPERIMENT, environment, make_project


def test_the_environment_names_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENGINE, raising=False)
    assert find_engine(default_engine()) is local.run_groups
    monkeypatch.setenv(ENGINE, "ray")
    assert default_engine() == "ray"


def test_an_engine_whose_package_is_missing_names_the_command_that_adds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EngineError, match="needs the package ray, which isn't installed: `make cluster` adds it"):
        find_engine("ray")


def test_the_verb_tells_it_in_one_line(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    done = python("-m", "stages.train", EXPERIMENT, "--engine", "slurm", cwd=project, env=environment())
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"train@{EXPERIMENT}: no engine 'slurm'; known: local, ray")
    assert done.stderr.count("\n") == 1


def test_what_is_left_of_a_repro_is_told_by_stages_of_the_same_verb() -> None:
    """A stage weighs as many runs as it has; until one of each verb was seen nobody can say."""
    times = StageTimes({"inputs": 1, "train@a": 2, "evaluate@a": 2, "train@b": 6, "evaluate@b": 6, "record": 1})
    times.start("inputs")
    assert times.left(1, None) is None
    times.end(1)
    times.start("train@a")
    assert times.left(5, 15) is None, "nothing is known of evaluation"
    times.end(20)
    times.start("evaluate@a")
    times.end(4)
    times.start("train@b")
    assert times.left(12, None) == pytest.approx(6 * 10 - 12 + 6 * 2)
    assert times.left(12, 30) == pytest.approx(30 + 6 * 2), "the stage itself knows better"
    times.end(60)
    assert times.left(0, None) == pytest.approx(12)


def test_stages_that_were_unchanged_so_far_let_expect_more_of_them() -> None:
    times = StageTimes({f"train@{name}": 1 for name in "abcd"})
    times.skip("train@a")
    assert times.left(0, None) == 0, "all that was seen is unchanged"
    times.start("train@b")
    times.end(10)
    assert times.left(0, None) == pytest.approx(2 * 10 / 2)
    times.start("train@c")
    assert times.left(4, None) == pytest.approx(10 - 4 + 10 / 2), "this one runs for sure"
