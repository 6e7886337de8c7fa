"""The engine is chosen by name; a name or a package that isn't there is told with what to do."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from stages.scheduling.engine import local
from stages.scheduling.engine.groups import ENGINE, EngineError, default_engine, find_engine
from tests.preloaded import python
from tests.project import EXPERIMENT, environment, make_project


def test_the_environment_names_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENGINE, raising=False)
    assert find_engine(default_engine()) is local.run_groups
    monkeypatch.setenv(ENGINE, "ray")
    assert default_engine() == "ray"


def test_an_unknown_engine_is_refused_with_the_choices() -> None:
    with pytest.raises(EngineError, match="no engine 'slurm'; known: local, ray"):
        find_engine("slurm")


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
