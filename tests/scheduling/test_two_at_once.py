"""Two simultaneous commands: the second waits or is refused with a reason, and continues if the first is killed."""

import os
import signal
import socket
from pathlib import Path

import pytest

from tests.checkout import make_checkout, variables
from tests.polling import wait_until
from tests.project import ends, make_project, outcomes, saved_states, start_module, start_training, train

pytestmark = [pytest.mark.slow(hours=True), pytest.mark.timeout(600)]


def test_second_runner_waits_for_the_first_and_takes_over_if_it_is_killed(tmp_path: Path) -> None:
    undisturbed = make_project(tmp_path / "undisturbed", epochs=40)
    train(undisturbed)
    project = make_project(tmp_path / "project", epochs=40)
    first = start_training(project)
    wait_until(lambda: saved_states(project))
    first.send_signal(signal.SIGSTOP)  # it holds its run for as long as this takes
    second = start_training(project)
    assert second.stdout is not None
    said = next(line for line in second.stdout if "waiting for" in line)
    assert f": waiting for process {first.pid} on {socket.gethostname()} since " in said
    assert said.endswith(", which trains it; if that process ends, training resumes here\n")
    first.kill()
    first.communicate()
    rest, _ = second.communicate(timeout=120)
    assert second.returncode == 0, said + rest
    assert outcomes(project) == outcomes(undisturbed)
    assert ends(project) == [[("lost", "its process is gone"), ("published", "")], [("published", "")]]


def is_gone(group: int) -> bool:
    """Return True once no process of the group is left, not even a zombie."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_second_repro_names_the_first_and_a_kill_frees_the_next(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "checkout", epochs=40)
    first = start_module(checkout, variables(), "stages.cli", "repro")
    wait_until(lambda: saved_states(checkout))
    os.killpg(first.pid, signal.SIGSTOP)
    said, _ = start_module(checkout, variables(), "stages.cli", "repro").communicate(timeout=120)
    assert said == (
        f"claimcheck repro: another repro is running in this folder (process {first.pid}), so nothing was done. "
        "`claimcheck status --watch` shows how far it is; wait for its end, or stop it by "
        f"`kill {first.pid}`: its finished trainings are kept\n"
    )
    by_hand, _ = start_module(checkout, variables(), "dvc", "repro").communicate(timeout=120)
    assert "is busy, it is being blocked by" in by_hand and "(PID" in by_hand, "DVC's own message says the same"
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    wait_until(lambda: is_gone(first.pid), 60)  # DVC considers a lock's process alive until it has been reaped
    third = start_module(checkout, variables(), "stages.cli", "repro")
    output, _ = third.communicate(timeout=300)
    assert third.returncode == 0, output
    assert ends(checkout)[:2] == [[("lost", "its process is gone"), ("published", "")], [("published", "")]]
