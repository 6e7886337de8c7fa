"""Killed at any moment, started again: the same numbers, and nobody trains on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.project import EXPERIMENT, environment, make_project, outcomes, start_training, train


def wait_for(condition: Callable[[], object], seconds: float = 90.0) -> None:
    """Poll until `condition()` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


def saved_states(project: Path) -> list[Path]:
    return list((project / "data" / "store" / "work").glob("*/resume.pt"))


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bytes, bytes]]:
    project = make_project(tmp_path_factory.mktemp("undisturbed"), epochs=40)
    train(project)
    return outcomes(project)


def test_killed_between_epochs_and_resumed_gives_the_same_numbers(
    tmp_path: Path, undisturbed: dict[str, tuple[bytes, bytes]]
) -> None:
    project = make_project(tmp_path, epochs=40)
    process = start_training(project)
    wait_for(lambda: saved_states(project))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert saved_states(project), "the resume state survives"
    train(project)
    assert outcomes(project) == undisturbed


def test_asked_to_stop_it_saves_and_goes_on_later(tmp_path: Path, undisturbed: dict[str, tuple[bytes, bytes]]) -> None:
    project = make_project(tmp_path, epochs=40)
    process = start_training(project)
    wait_for(lambda: saved_states(project))
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "the next dvc repro goes on from here" in output
    train(project)
    assert outcomes(project) == undisturbed


def test_training_ends_when_what_started_it_is_killed(tmp_path: Path) -> None:
    """`kill -9` of the parent, as of `dvc`, leaves no orphan that trains on."""
    project = make_project(tmp_path, epochs=4000)
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys;"
            f"child = subprocess.Popen([sys.executable, '-m', 'stages.train', '{EXPERIMENT}']);"
            "print(child.pid, flush=True); child.wait()",
        ],
        cwd=project,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    wait_for(lambda: saved_states(project))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: not running(child), seconds=10)


def test_two_slots_train_each_run_once(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    output = train(project, "--device", "cpu,cpu")
    assert output.count(": trained\n") == 2
    assert len(outcomes(project)) == 2


def test_damaged_resume_state_starts_over_and_says_so(
    tmp_path: Path, undisturbed: dict[str, tuple[bytes, bytes]]
) -> None:
    project = make_project(tmp_path, epochs=40)
    process = start_training(project)
    wait_for(lambda: saved_states(project))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    state = saved_states(project)[0]
    state.write_bytes(state.read_bytes()[:1000])
    output = train(project)
    assert "resume state can't be used" in output
    assert outcomes(project) == undisturbed


@pytest.mark.slow
def test_killed_at_random_moments_again_and_again(tmp_path: Path, undisturbed: dict[str, tuple[bytes, bytes]]) -> None:
    """Also the killed spawned slots of a training on two."""
    moments = random.Random(0)
    for attempt in range(10):
        project = make_project(tmp_path / str(attempt), epochs=40)
        options = ("--device", "cpu,cpu") if attempt % 2 else ()
        for _ in range(20):
            process = start_training(project, *options)
            try:
                process.communicate(timeout=moments.uniform(0.5, 8.0))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
            if process.returncode == 0:
                break
        train(project)
        assert {key: history for key, (history, _) in outcomes(project).items()} == {
            key: history for key, (history, _) in undisturbed.items()
        }
