"""The whole graph with real DVC in a separate checkout: no-op, reruns after a change, pulling, `kill -9` of dvc."""

import hashlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from stages.evaluate import INCOMPLETE
from tests.checkout import DVC, make_checkout, repro, run, stages_run
from tests.polling import wait_until
from tests.project import EXPERIMENT, edit, environment, outcomes

pytestmark = [pytest.mark.slow(hours=True), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_checkout(tmp_path_factory.mktemp("finished"))
    repro(folder)
    return folder


@pytest.fixture
def checkout(finished: Path, tmp_path: Path) -> Path:
    """A copy of a finished checkout, for changes."""
    return Path(shutil.copytree(finished, tmp_path / "checkout", symlinks=True))


def test_repro_fills_the_database_and_again_does_nothing(finished: Path) -> None:
    with sqlite3.connect(finished / "data" / "results.db") as database:
        cells = database.execute("SELECT experiment, arm FROM results ORDER BY 1, 2").fetchall()
    database.close()
    assert cells == [(name, arm) for name in ("other-mnist", EXPERIMENT) for arm in ("ninformer", "vit")]
    lock = (finished / "dvc.lock").read_bytes()
    assert stages_run(repro(finished)) == []
    assert (finished / "dvc.lock").read_bytes() == lock


def test_a_failed_run_holds_up_itself_alone_and_the_next_repro_does_only_that(checkout: Path) -> None:
    arms = checkout / "params" / f"{EXPERIMENT}.yaml"
    edit(arms, lambda p: p["arms"]["vit"]["model"].update(num_heads=3))  # 16 is no multiple of it
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    told = environment() | {"PATH": path}
    failed = subprocess.run([*DVC, "repro"], cwd=checkout, env=told, capture_output=True, text=True, check=False)
    assert failed.returncode != 0
    assert f"`python -m stages.evaluate {EXPERIMENT}`, then `python -m stages.record`" in failed.stdout
    command = [sys.executable, "-m", "stages.evaluate", EXPERIMENT]
    done = subprocess.run(command, cwd=checkout, env=told, capture_output=True, text=True, check=False)
    assert done.returncode == INCOMPLETE
    assert f"evaluate@{EXPERIMENT}: vit.0: has no outcome; `dvc repro train@{EXPERIMENT}` trains it" in done.stderr
    assert "ninformer.0: accuracy" in done.stdout and "vit.0" not in done.stdout
    run(checkout, sys.executable, "-m", "stages.record")
    with sqlite3.connect(checkout / "data" / "results.db") as database:
        cells = database.execute("SELECT arm FROM results WHERE experiment = ?", (EXPERIMENT,)).fetchall()
    database.close()
    assert cells == [("ninformer",)]
    edit(arms, lambda p: p["arms"]["vit"]["model"].update(num_heads=4))
    output = repro(checkout)
    assert "ninformer.0: taken from the store" in output and "vit.0: to train" in output
    lines = [line for line in output.splitlines() if " on 16 test samples" in line]
    assert [line.strip().split(":")[0] for line in lines] == ["ninformer.0", "vit.0"]
    assert [line.endswith("measured before") for line in lines] == [True, False]


def test_metrics_plots_and_params_say_something(checkout: Path) -> None:
    shown = json.loads(run(checkout, *DVC, "metrics", "show", "--json"))
    metrics = shown[""]["data"][f"data/metrics/{EXPERIMENT}.json"]["data"]
    assert list(metrics) == ["runs", "metric", "baseline", "proposed"] and metrics["metric"] == "accuracy"
    assert 0 <= metrics["baseline"] <= 1 and 0 <= metrics["proposed"] <= 1
    table = run(checkout, *DVC, "metrics", "show").splitlines()
    assert max(map(len, table)) <= 80, "a line an experiment, a column a name"
    run(checkout, *DVC, "plots", "show")
    page = (checkout / "dvc_plots" / "index.html").read_text()
    assert "train_loss" in page and "errorband" in page
    run(checkout, "git", "add", "-A")
    run(checkout, "git", "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-qm", "x")
    edit(checkout / "params.yaml", lambda p: p["profiles"]["smoke"]["overrides"].update(epochs=2))
    difference = json.loads(run(checkout, *DVC, "params", "diff", "--json"))
    assert difference["params.yaml"]["profiles.smoke.overrides.epochs"] == {"old": 1, "new": 2, "diff": 1}


def test_after_a_pull_in_a_second_clone_nothing_retrains(checkout: Path, tmp_path: Path) -> None:
    run(checkout, *DVC, "remote", "add", "-d", "here", str(tmp_path / "remote"))
    run(checkout, *DVC, "push", "-q")
    run(checkout, "git", "add", "-A")
    run(checkout, "git", "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-qm", "x")
    clone = tmp_path / "clone"
    run(tmp_path, "git", "clone", "-q", str(checkout), str(clone))
    run(clone, *DVC, "pull", "-q")
    assert stages_run(repro(clone)) == []
    assert not (clone / "data" / "store").exists()
    with TestClient(create_app(Settings(root=clone)), base_url="http://127.0.0.1") as client:
        names = [one["name"] for one in client.get("/api/v1/experiments").json()]
    assert sorted(names) == ["other-mnist", EXPERIMENT], "DVC keeps the database, too"
    edit(clone / "params.yaml", lambda p: p["profiles"]["smoke"].update(replicates=2))
    output = repro(clone)
    assert output.count("taken from the store") == 4, "the pulled runs are adopted"


def test_kill_of_dvc_leaves_no_orphan_and_the_next_repro_goes_on(finished: Path, tmp_path: Path) -> None:
    reference = make_checkout(tmp_path / "reference", epochs=30)
    repro(reference)
    folder = make_checkout(tmp_path / "killed", epochs=30)
    process = subprocess.Popen(
        [*DVC, "repro"],
        cwd=folder,
        env=environment() | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: list((folder / "data").glob("store/work/*/resume.pt")), 300)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not trainings_in(folder), 15)  # no training outlives dvc
    repro(folder)
    assert outcomes(folder) == outcomes(reference)


def trainings_in(folder: Path) -> list[int]:
    """Live processes that train with `folder` as their working directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            if b"stages.train" in command and (process / "cwd").resolve() == folder.resolve():
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_one_flipped_byte_is_found_and_healed_with_dvcs_object(finished: Path, tmp_path: Path) -> None:
    """Store, run folder and cache are one file by hard links: all three are right again after one `dvc repro`."""
    checkout = tmp_path / "flipped"
    run(tmp_path, "cp", "-a", str(finished), str(checkout))  # with its hard links
    before = outcomes(checkout)
    weights = next((checkout / "data" / "runs" / EXPERIMENT).glob("*/weights.safetensors"))
    content = weights.read_bytes()
    flip(weights)
    assert f"train@{EXPERIMENT}" in stages_run(repro(checkout))
    assert outcomes(checkout) == before, "trained anew to the same bytes"
    assert weights.read_bytes() == content
    for file in (checkout / ".dvc" / "cache" / "files" / "md5").glob("*/*"):
        if not file.name.endswith(".dir"):
            assert hashlib.md5(file.read_bytes()).hexdigest() == file.parent.name + file.name, file
    assert stages_run(repro(checkout)) == []


def flip(path: Path) -> None:
    """Flip one bit in place: every name of the file has it."""
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    path.chmod(0o444)
