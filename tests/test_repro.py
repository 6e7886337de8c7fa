"""`claimcheck repro` with real DVC: one line per stage, a live line on a terminal, output of failing stages, Ctrl-C."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.checkout import DVC, call, make_checkout, variables
from tests.project import EXPERIMENT, captured, edit
from tests.terminal import on_terminal
from tests.test_pipeline import trainings_in

REPRO = [sys.executable, "-m", "stages.cli", "repro"]
STAGES = 10
"""`inputs`, two for the data set, two for each of two experiments, `analyse`, `record` and `report`."""

pytestmark = [pytest.mark.slow(hours=True), pytest.mark.timeout(900)]


def repro(folder: Path, *experiments: str) -> subprocess.CompletedProcess[str]:
    return call(folder, *REPRO, *experiments)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = make_checkout(tmp_path_factory.mktemp("first"))
    return folder, repro(folder)


@pytest.fixture
def checkout(first: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path) -> Path:
    return Path(shutil.copytree(first[0], tmp_path / "checkout", symlinks=True))


def test_piped_output_has_one_line_per_stage_and_the_log_the_rest(
    first: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = first
    *stages, last = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    numbers = [re.fullmatch(r"stage (\d+) of (\d+), ([\w@-]+): (.* runs, )?\d+ (?:s|min)", line) for line in stages]
    assert [(match[1], match[2]) for match in numbers if match] == [
        (str(number), str(STAGES)) for number in range(1, STAGES + 1)
    ]
    trained = next(line for line in stages if f"train@{EXPERIMENT}" in line)
    assert ": 2 of 2 runs, " in trained
    log = re.fullmatch(r"10 stages run, in \d+ (?:s|min); full log: (data/logs/repro-[\d-]+\.log)", last)
    assert log
    written = (folder / log[1]).read_text(encoding="utf-8")
    assert "git add dvc.lock" in written and "vit.0: trained" in written


def test_second_run_reports_no_changes(checkout: Path) -> None:
    lock = (checkout / "dvc.lock").read_bytes()
    assert repro(checkout).stdout == "all 10 stages are up to date\n"
    assert (checkout / "dvc.lock").read_bytes() == lock


def test_named_experiment_is_recorded_and_reported_once_after_a_change(checkout: Path) -> None:
    claims = checkout / "data" / "claims.csv"
    claims.touch()
    assert repro(checkout, EXPERIMENT).stdout == "all 8 stages are up to date\n"
    claims.write_bytes(claims.read_bytes().replace(b"\n", b"\r\n"))
    ran = [re.findall(r"^stage \d+ of 8, ([\w@-]+): ", repro(checkout, EXPERIMENT).stdout, re.MULTILINE) for _ in "ab"]
    assert ran == [["record", "report"], []]


def test_repro_works_without_git_and_without_a_user_name(checkout: Path) -> None:
    shutil.rmtree(checkout / ".git")
    (checkout / "dvc.lock").unlink()
    nameless = ["unshare", "--user", "--map-user=54321"]
    if subprocess.run([*nameless, "true"], capture_output=True, check=False).returncode:
        nameless = []
    env = {name: value for name, value in variables().items() if name not in ("HOME", "USER", "LOGNAME")}
    done = captured([*nameless, *REPRO, EXPERIMENT], cwd=checkout, env=env)
    assert done.returncode == 0, done.stdout
    assert "not a git repository" in done.stderr and "this runs without git" in done.stderr


def test_only_named_experiments_run(checkout: Path) -> None:
    edit(checkout / "params" / f"{EXPERIMENT}.yaml", lambda p: p["arms"]["vit"]["model"].update(mlp_dim=24))
    edit(checkout / "params" / "other-mnist.yaml", lambda p: p["arms"]["vit"]["model"].update(mlp_dim=24))
    done = repro(checkout, EXPERIMENT)
    ran = re.findall(r"^stage \d+ of 8, ([\w@-]+): ", done.stdout, re.MULTILINE)
    assert ran == ["inputs", f"train@{EXPERIMENT}", f"evaluate@{EXPERIMENT}", "analyse", "record", "report"], (
        done.stdout
    )
    assert done.returncode == 0 and "6 stages run, 2 unchanged, in " in done.stdout


def test_failing_stage_prints_its_output_and_dvcs_exit_code(checkout: Path) -> None:
    arms = checkout / "params" / f"{EXPERIMENT}.yaml"
    edit(arms, lambda p: p["arms"]["vit"]["model"].update(num_heads=3))  # not a multiple of 16
    by_dvc = call(checkout, *DVC, "repro")
    done = repro(checkout)
    assert done.returncode == by_dvc.returncode != 0
    lines = done.stdout.splitlines()
    start = lines.index(f"Running stage 'train@{EXPERIMENT}':")
    said = "\n".join(lines[start:])
    assert (
        "vit.0: to train" in said and " vit.0: failed" in said and f"failed to reproduce 'train@{EXPERIMENT}'" in said
    )
    assert "Running stage" not in "\n".join(lines[:start])
    assert f", train@{EXPERIMENT}, failed (exit code {done.returncode}); full log: data/logs/repro-" in lines[-1]


def test_terminal_shows_one_live_line(checkout: Path) -> None:
    edit(checkout / "params" / f"{EXPERIMENT}.yaml", lambda p: p["arms"]["vit"]["model"].update(mlp_dim=24))
    code, written = on_terminal(REPRO, checkout, variables(), columns=100)
    shown = [line.strip() for line in written.splitlines() if line.strip()]
    assert code == 0 and "looking for what has changed" in shown[0]
    assert any(re.match(rf"stage \d+ of 10, train@{EXPERIMENT}, [12] of 2 runs", line) for line in shown), shown
    assert max(map(len, shown)) <= 100
    assert re.fullmatch(r"6 stages run, 4 unchanged, in .*; full log: data/logs/.*\.log", shown[-1])
    assert not [line for line in shown if "Running stage" in line or "git add" in line]


def test_ctrl_c_stops_a_training_that_the_next_run_resumes(tmp_path: Path) -> None:
    folder = make_checkout(tmp_path / "stopped", epochs=3000)
    pressed: list[float] = []

    def press(shown: str, process: subprocess.Popen[bytes]) -> None:
        if not pressed and list((folder / "data").glob("store/work/*/resume.pt")):
            pressed.append(time.monotonic())
            os.killpg(process.pid, signal.SIGINT)  # like the terminal

    code, written = on_terminal(REPRO, folder, variables(), columns=100, look=press)
    assert pressed and code != 0
    assert "the next dvc repro resumes from here" in written, written
    assert re.search(r", train@[\w-]+, stopped \(exit code \d+\); full log: data/logs/", " ".join(written.split()))
    assert "Traceback" not in written and trainings_in(folder) == []
