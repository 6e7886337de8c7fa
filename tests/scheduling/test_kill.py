"""Killed at any moment and restarted, training gives the same numbers and leaves no process running."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.runs.store import RunStore
from stages.scheduling.journal import PREFIX
from stages.train import KILLED
from tests.polling import wait_until
from tests.project import EXPERIMENT, captured, environment, make_project, outcomes, saved_states, start_training, train

# Real processes are killed and awaited, which takes minutes on a busy machine.
pytestmark = [pytest.mark.slow(hours=True), pytest.mark.timeout(600)]


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bytes, bytes]]:
    project = make_project(tmp_path_factory.mktemp("undisturbed"), epochs=40)
    train(project)
    return outcomes(project)


def start_below(project: Path, program: str) -> tuple[subprocess.Popen[str], int]:
    """Start a parent whose program is called `program`; return it and the pid of its training in a shell."""
    script = project / program
    script.write_text(
        "import subprocess, sys\n"
        f"command = f'{{sys.executable}} -m stages.train {EXPERIMENT} & echo $!; wait'\n"
        "subprocess.run(command, shell=True)\n",
        encoding="utf-8",
    )
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        cwd=project,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


def test_stage_of_a_dead_dvc_trains_nothing(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    finished = captured(
        [sys.executable, "-m", "stages.train", EXPERIMENT],
        cwd=project,
        env=environment() | {"DVC_STAGE": f"train@{EXPERIMENT}"},
    )
    assert finished.returncode == 1
    assert finished.stderr == f"train@{EXPERIMENT}: dvc started this stage and is gone already; nothing was trained\n"


def test_training_started_by_hand_survives_its_parent(tmp_path: Path) -> None:
    project = make_project(tmp_path, epochs=4000)
    parent, child = start_below(project, "terminal")
    try:
        wait_until(lambda: saved_states(project))
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        time.sleep(2)
        assert running(child)
    finally:
        os.kill(child, signal.SIGKILL)
        parent.communicate()


def test_losing_all_slots_has_its_own_exit_code(tmp_path: Path) -> None:
    project = make_project(tmp_path, epochs=40)
    process = start_training(project, "--device", "cpu,cpu")
    wait_until(lambda: len(saved_states(project)) == 2)
    for slot in slots_of(process.pid):
        os.kill(slot, signal.SIGKILL)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == KILLED, output
    assert "2 of 2 training processes were killed, 2 by SIGKILL (often because of too little memory" in output
    assert "Traceback" not in output


def slots_of(pid: int) -> list[int]:
    """Return the forks of the process that has loaded torch."""
    servers = [child for child in children(pid) if b"forkserver" in command_of(child)]
    return [slot for server in servers for slot in children(server)]


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]
    except OSError:
        return []


@pytest.mark.parametrize(("slots", "devices"), [(1, "cpu,cpu"), (2, "cpu"), (3, "auto")])
def test_several_slots_train_each_run_once(tmp_path: Path, slots: int, devices: str) -> None:
    """As many slots as the command or the profile sets, but no more than there are runs."""
    project = make_project(tmp_path, slots=slots)
    process = start_training(project, "--device", devices)
    wait_until(lambda: len(slots_of(process.pid)) == 2)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert output.count(": trained\n") == 2
    assert "trained by another process" not in output and "waiting for" not in output
    assert len(outcomes(project)) == 2


@pytest.fixture(scope="module")
def pace(tmp_path_factory: pytest.TempPathFactory) -> tuple[float, float]:
    """Duration of an undisturbed training here: in total, and from its first saved state."""
    project = make_project(tmp_path_factory.mktemp("pace"), epochs=40)
    started = time.monotonic()
    process = start_training(project)
    wait_until(lambda: saved_states(project))
    saved = time.monotonic()
    process.communicate()
    return time.monotonic() - started, time.monotonic() - saved


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("devices", ["cpu", "cpu,cpu"], ids=["one slot", "two slots"])
def test_training_killed_at_random_moments_gives_the_same_outcomes(
    tmp_path: Path, undisturbed: dict[str, tuple[bytes, bytes]], pace: tuple[float, float], devices: str
) -> None:
    """Kills all processes, the parent or a slot, between epochs, at startup or while files are written."""
    random_ = random.Random(devices)
    for attempt in range(10):
        project = make_project(tmp_path / str(attempt), epochs=40)
        for _ in range(20):
            process = start_training(project, "--device", devices)
            kill_sometime(process, project, random_, *pace)
            assert process.returncode != 1, "killed or finished, but never failed"
            if process.returncode == 0:
                break
        train(project, "--device", devices)
        assert outcomes(project) == undisturbed
        works = RunStore(project / "data" / "store").scratch.list_works()
        assert not [work for work in works if not work.startswith(PREFIX)], "nothing is unfinished"


def kill_sometime(
    process: subprocess.Popen[str], project: Path, random_: random.Random, whole: float, working: float
) -> None:
    """Kill some of the training's processes within its `whole` or `working` seconds, and check that all are gone."""
    started = time.time()
    if random_.random() < 0.7:  # well into its work, because most of the time before is imports
        wait_until(lambda: process.poll() is not None or any(changed_since(started, project)), seconds=400)
        moment = random_.uniform(0.0, working)
    else:
        moment = random_.uniform(0.0, whole)
    try:
        process.communicate(timeout=moment)
    except subprocess.TimeoutExpired:
        slots = slots_of(process.pid)
        victim = random_.choice(["all", "parent", "slot"] if slots else ["all"])
        if victim == "slot":
            os.kill(random_.choice(slots), signal.SIGKILL)
            process.communicate(timeout=120)  # the other slot finishes the work
        elif victim == "parent":
            process.kill()
            process.wait()
            wait_until(lambda: not any(running(pid) for pid in slots), seconds=30)
        else:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def changed_since(moment: float, project: Path) -> Iterator[Path]:
    for state in saved_states(project):
        try:
            if state.stat().st_mtime > moment:
                yield state
        except FileNotFoundError:  # published meanwhile
            yield state


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
