"""Choosing the engine."""

import importlib.util
from pathlib import Path

import pytest

from stages.scheduling import local
from stages.scheduling.groups import ENGINE, EngineError, default_engine, find_engine
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
