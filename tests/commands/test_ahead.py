"""What is trained is evaluated while dvc goes on, in a fork of the loaded libraries; it ends with whoever asked."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stages.commands.repro import Ahead
from stages.params.experiment import ProfileParams, load_params
from stages.preloaded import ADDRESS
from tests.polling import wait_until
from tests.project import REPOSITORY
from tests.test_preloaded_stages import server

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
    with server(tmp_path, environment), Ahead(environment[ADDRESS], os.environ, profile("smoke")) as found:
        yield found


def profile(name: str) -> ProfileParams:
    return load_params(REPOSITORY).profiles[name]


def begun() -> list[str]:
    return [path.name.split()[1] for path in sorted(Path("begun").iterdir())]


def let_end(experiment: str) -> None:
    Path(f"{experiment} may end").touch()


def wait_for(ahead: Ahead, stage: str, ended: list[str], expected: list[str]) -> None:
    def are_begun() -> bool:
        ahead.look(stage, ended)
        return begun() == expected

    wait_until(are_begun)


def test_what_is_trained_is_evaluated_one_at_a_time_in_the_order_of_dvc(ahead: Ahead) -> None:
    ended = ["preprocess@mnist", "train@a", "train@b"]
    wait_for(ahead, "train@c", ended, ["a"])
    for _ in range(20):
        ahead.look("train@c", ended)
    assert begun() == ["a"], "b waits"
    let_end("a")
    wait_for(ahead, "train@c", ended, ["a", "b"])


def test_once_dvc_evaluates_it_is_met_halfway_and_nothing_is_evaluated_twice(ahead: Ahead) -> None:
    for name in "abc":
        let_end(name)
    ended = ["train@a", "train@b", "train@c"]
    wait_for(ahead, "evaluate@a", ended, ["c", "b"])
    for _ in range(20):
        ahead.look("evaluate@b", ended)
        time.sleep(0.01)
    assert begun() == ["c", "b"], "dvc has come to a itself"


def test_it_ends_with_whoever_asked(ahead: Ahead) -> None:
    wait_for(ahead, "train@b", ["train@a"], ["a"])
    (path,) = Path("begun").iterdir()
    process = psutil.Process(int(path.name.split()[-1]))
    ahead.__exit__()
    wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


def test_where_times_count_nothing_is_evaluated_beside_a_training(ahead: Ahead, tmp_path: Path) -> None:
    with Ahead(str(tmp_path / "s"), os.environ, profile("quick")) as other:
        for _ in range(20):
            other.look("train@b", ["train@a"])
            time.sleep(0.01)
    assert begun() == []


def test_without_such_a_process_dvc_evaluates_alone(tmp_path: Path) -> None:
    with Ahead(str(tmp_path / "none"), os.environ, profile("smoke")) as ahead:
        ahead.look("train@b", ["train@a"])
