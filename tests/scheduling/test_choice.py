"""The engine is chosen by name; a name or a package that isn't there is told with what to do."""

from __future__ import annotations

import importlib.util

import pytest

from stages import train
from stages.scheduling.engine import local
from stages.scheduling.engine.choice import ENGINE, EngineError, default_engine, find_engine


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


def test_the_verb_tells_it_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(["dac-sgemm", "--engine", "slurm"]) == 1
    assert capsys.readouterr().err.startswith("train@dac-sgemm: no engine 'slurm'; known: local, ray")
