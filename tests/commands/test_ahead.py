"""What is trained is evaluated while dvc goes on, in a fork of the loaded libraries; it ends with whoever asked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from stages.commands.ahead import Ahead
from stages.preloaded import ADDRESS
from tests.test_preloaded_stages import server, wait_until

VERB = """
import os, pathlib, sys, time
experiment, option = sys.argv[1:]
assert option == "--ahead"
begun = pathlib.Path("begun")
begun.joinpath(f"{len(list(begun.iterdir()))} {experiment} {os.getpid()}").touch()
while not pathlib.Path(f"{experiment} may end").exists():
    time.sleep(0.01)
"""


@pytest.fixture
def ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ahead]:
    monkeypatch.chdir(tmp_path)
    for folder in ("stages", "begun"):
        (tmp_path / folder).mkdir()
    (tmp_path / "stages" / "__init__.py").touch()
    (tmp_path / "stages" / "evaluate.py").write_text(VERB)
    environment = {**os.environ, ADDRESS: str(tmp_path / "s")}
    with server(tmp_path, environment), closing(Ahead(environment[ADDRESS], os.environ)) as found:
        yield found


def begun() -> list[str]:
    return [path.name.split()[1] for path in sorted(Path("begun").iterdir())]


def let_end(experiment: str) -> None:
    Path(f"{experiment} may end").touch()


def wait_for(ahead: Ahead, stage: str, expected: list[str]) -> None:
    def are_begun() -> bool:
        ahead.look(stage)
        return begun() == expected

    wait_until(are_begun)


def test_what_is_trained_is_evaluated_one_at_a_time_in_the_order_of_dvc(ahead: Ahead) -> None:
    for stage in ("preprocess@mnist", "train@a", "train@b"):
        ahead.ended(stage)
    wait_for(ahead, "train@c", ["a"])
    for _ in range(20):
        ahead.look("train@c")
    assert begun() == ["a"], "b waits"
    let_end("a")
    wait_for(ahead, "train@c", ["a", "b"])


def test_once_dvc_evaluates_it_is_met_halfway_and_nothing_is_evaluated_twice(ahead: Ahead) -> None:
    for name in "abc":
        let_end(name)
        ahead.ended(f"train@{name}")
    wait_for(ahead, "evaluate@a", ["c", "b"])
    for _ in range(20):
        ahead.look("evaluate@b")
    assert begun() == ["c", "b"], "dvc has come to a itself"


def test_it_ends_with_whoever_asked(ahead: Ahead) -> None:
    ahead.ended("train@a")
    wait_for(ahead, "train@b", ["a"])
    (path,) = Path("begun").iterdir()
    process = psutil.Process(int(re.findall(r"\d+", path.name)[-1]))
    ahead.close()
    wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


def test_without_such_a_process_dvc_evaluates_alone(tmp_path: Path) -> None:
    ahead = Ahead(str(tmp_path / "none"), os.environ)
    ahead.ended("train@a")
    ahead.look("train@b")
    ahead.close()
