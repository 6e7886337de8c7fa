"""`BackgroundEvaluator` evaluates trained experiments while DVC continues, in a fork that ends with its caller."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stages.commands.preloaded import ADDRESS
from stages.commands.repro import BackgroundEvaluator
from stages.params.experiment import ProfileParams, load_params
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
def evaluator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BackgroundEvaluator]:
    monkeypatch.chdir(tmp_path)
    for folder in ("stages", "begun"):
        (tmp_path / folder).mkdir()
    (tmp_path / "stages" / "__init__.py").touch()
    (tmp_path / "stages" / "evaluate.py").write_text(VERB, encoding="utf-8")
    environment = {**os.environ, ADDRESS: str(tmp_path / "s")}
    with (
        server(tmp_path, environment),
        BackgroundEvaluator(environment[ADDRESS], os.environ, profile("smoke")) as found,
    ):
        yield found


def profile(name: str) -> ProfileParams:
    return load_params(REPOSITORY).profiles[name]


def begun() -> list[str]:
    return [path.name.split()[1] for path in sorted(Path("begun").iterdir())]


def let_end(experiment: str) -> None:
    Path(f"{experiment} may end").touch()


def wait_for(evaluator: BackgroundEvaluator, stage: str, ended: list[str], expected: list[str]) -> None:
    def are_begun() -> bool:
        evaluator.start_next(stage, ended)
        return begun() == expected

    wait_until(are_begun)


def test_trained_experiments_are_evaluated_one_at_a_time_in_order_of_training(evaluator: BackgroundEvaluator) -> None:
    ended = ["preprocess@mnist", "train@a", "train@b"]
    wait_for(evaluator, "train@c", ended, ["a"])
    for _ in range(20):
        evaluator.start_next("train@c", ended)
    assert begun() == ["a"], "b waits for a"
    let_end("a")
    wait_for(evaluator, "train@c", ended, ["a", "b"])


def test_last_experiments_come_first_once_dvc_evaluates(evaluator: BackgroundEvaluator) -> None:
    for name in "abc":
        let_end(name)
    ended = ["train@a", "train@b", "train@c"]
    wait_for(evaluator, "evaluate@a", ended, ["c", "b"])
    for _ in range(20):
        evaluator.start_next("evaluate@b", ended)
        time.sleep(0.01)
    assert begun() == ["c", "b"], "DVC evaluates a itself"


def test_running_evaluation_ends_with_its_caller(evaluator: BackgroundEvaluator) -> None:
    wait_for(evaluator, "train@b", ["train@a"], ["a"])
    (path,) = Path("begun").iterdir()
    process = psutil.Process(int(path.name.split()[-1]))
    evaluator.__exit__()
    wait_until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


def test_nothing_is_evaluated_during_training_on_real_data(evaluator: BackgroundEvaluator, tmp_path: Path) -> None:
    with BackgroundEvaluator(str(tmp_path / "s"), os.environ, profile("quick")) as other:
        for _ in range(20):
            other.start_next("train@b", ["train@a"])
            time.sleep(0.01)
    assert begun() == []


def test_missing_server_leaves_evaluation_to_dvc(tmp_path: Path) -> None:
    with BackgroundEvaluator(str(tmp_path / "none"), os.environ, profile("smoke")) as evaluator:
        evaluator.start_next("train@b", ["train@a"])
