"""`benchmarks.gpu_campaign`, rehearsed on the CPU with processes that act as short-lived machines with only torch."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.waiting import make_waiting
from tests.minimal_machine import hide_other_packages, hide_other_packages_and_interrupt
from tests.preloaded import python
from tests.project import REPOSITORY, environment, make_project, outcomes, train

pytestmark = pytest.mark.slow

FOLDER = Path("data/campaign")


def run_on_a_machine(
    folder: Path, campaign: Path, before: Callable[[], None] = hide_other_packages
) -> subprocess.CompletedProcess[str]:
    """Train on a machine that has only the code and a copy of the campaign's folder, below `folder`."""
    for name in ("stages", "benchmarks"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(campaign, folder / "campaign")
    env = environment() | {"PYTHONPATH": f"{folder}:{REPOSITORY}"}  # `before` is in the repository
    command = ["-m", "benchmarks.gpu_campaign", "run", "campaign", "--seconds", "60", "--device", "cpu"]
    return python(*command, cwd=folder, env=env, before=before)


def prepare(project: Path, *options: str) -> str:
    command = ["-m", "benchmarks.gpu_campaign", "prepare", "--rate", "cpu", "--budget", "600", *options]
    done = python(*command, cwd=project, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_campaign_on_two_machines_equals_an_uninterrupted_training(tmp_path: Path) -> None:
    """The first machine ends in the middle of a training, which the second one continues."""
    project = make_project(tmp_path / "here", epochs=3)
    assert "2 groups are in data/campaign." in prepare(project)
    stopped = run_on_a_machine(tmp_path / "first", project / FOLDER, hide_other_packages_and_interrupt)
    assert stopped.returncode == 0 and stopped.stdout.count(": stopped ") == 1, stopped.stdout + stopped.stderr
    prepare(project, "--back", str(tmp_path / "first" / "campaign"))
    assert len([*(project / FOLDER).glob("store/work/*/resume.pt")]) == 1
    done = run_on_a_machine(tmp_path / "second", project / FOLDER)
    assert done.returncode == 0 and done.stdout.count(": finished") == 2, done.stdout + done.stderr
    said = prepare(project, "--back", str(tmp_path / "second" / "campaign"))
    assert said.endswith("nothing is left to train within the budget\n")
    train(straight := make_project(tmp_path / "straight", epochs=3))
    assert outcomes(project) == outcomes(straight)
    assert "2 from the store, 0 to train" in train(project), "resumed runs end like any other"


def test_failing_training_does_not_block_others_and_damaged_outcomes_are_refused(tmp_path: Path) -> None:
    project = make_project(tmp_path / "here", epochs=1)
    prepare(project)
    queue = json.loads((project / FOLDER / "queue.json").read_text(encoding="utf-8"))
    queue[0]["specs"][0]["model"]["arguments"]["patch_size"] = 5
    (project / FOLDER / "queue.json").write_text(json.dumps(queue), encoding="utf-8")
    done = run_on_a_machine(tmp_path / "there", project / FOLDER)
    assert done.returncode == 1 and done.stdout.count(": failed ") == done.stdout.count(": finished") == 1, done.stdout
    (weights,) = (tmp_path / "there" / "campaign" / "store").glob("runs/*/weights.safetensors")
    weights.chmod(0o644)
    weights.write_bytes(b"?")
    said = prepare(project, "--back", str(tmp_path / "there" / "campaign"))
    assert "not a complete outcome of that run" in said and "2 groups are in data/campaign." in said


def test_deciding_profile_trains_what_brings_claims_to_an_analysis(tmp_path: Path) -> None:
    project = make_waiting(tmp_path)
    assert "10 groups are in data/campaign." in prepare(project)
