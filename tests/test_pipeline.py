"""The whole pipeline with real DVC in a separate checkout: no-op, reruns after a change, pulling, `kill -9` of dvc."""

import json
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from tests.checkout import DVC, make_checkout, repro, run, stages_run, variables
from tests.polling import wait_until
from tests.project import EXPERIMENT, edit, git, outcomes

pytestmark = [pytest.mark.slow(hours=True), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_checkout(tmp_path_factory.mktemp("finished"))
    repro(folder)
    return folder


@pytest.fixture
def checkout(finished: Path, tmp_path: Path) -> Path:
    """A modifiable copy of a finished checkout."""
    return Path(shutil.copytree(finished, tmp_path / "checkout", symlinks=True))


def test_dvc_shows_metrics_and_params(checkout: Path) -> None:
    shown = json.loads(run(checkout, *DVC, "metrics", "show", "--json"))
    metrics = shown[""]["data"][f"data/metrics/{EXPERIMENT}.json"]["data"]
    assert list(metrics) == ["runs", "metric", "baseline", "proposed"] and metrics["metric"] == "accuracy"
    assert 0 <= metrics["baseline"] <= 1 and 0 <= metrics["proposed"] <= 1
    table = run(checkout, *DVC, "metrics", "show").splitlines()
    assert max(map(len, table)) <= 80, "one line per experiment, one column per name"
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "x")
    edit(checkout / "params.yaml", lambda p: p["profiles"]["smoke"]["overrides"].update(epochs=2))
    difference = json.loads(run(checkout, *DVC, "params", "diff", "--json"))
    assert difference["params.yaml"]["profiles.smoke.overrides.epochs"] == {"old": 1, "new": 2, "diff": 1}


def test_pulled_results_are_not_retrained(checkout: Path, tmp_path: Path) -> None:
    run(checkout, *DVC, "remote", "add", "-d", "here", str(tmp_path / "remote"))
    run(checkout, *DVC, "push", "-q")
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "x")
    clone = tmp_path / "clone"
    run(tmp_path, "git", "clone", "-q", str(checkout), str(clone))
    run(clone, *DVC, "pull", "-q")
    assert stages_run(repro(clone)) == []
    assert not (clone / "data" / "store").exists()
    with TestClient(create_app(Settings(root=clone)), base_url="http://127.0.0.1") as client:
        names = [one["name"] for one in client.get("/api/v1/experiments").json()]
    assert sorted(names) == ["other-mnist", EXPERIMENT], "DVC stores the database, too"
    edit(clone / "params.yaml", lambda p: p["profiles"]["smoke"].update(replicates=2))
    output = repro(clone)
    assert output.count("taken from the store") == 4, "the pulled runs are adopted"


def test_killing_dvc_leaves_no_orphans_and_repro_resumes(finished: Path, tmp_path: Path) -> None:
    reference = make_checkout(tmp_path / "reference", epochs=30)
    repro(reference)
    folder = make_checkout(tmp_path / "killed", epochs=30)
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen([*DVC, "repro"], cwd=folder, env=variables(), stdout=nowhere, stderr=nowhere)
    wait_until(lambda: list((folder / "data").glob("store/work/*/resume.pt")), 300)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not trainings_in(folder), 15)  # no training outlives dvc
    repro(folder)
    assert outcomes(folder) == outcomes(reference)


def trainings_in(folder: Path) -> list[int]:
    """List live processes that train with `folder` as their working directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            if b"stages.train" in command and (process / "cwd").resolve() == folder.resolve():
                found.append(int(process.name))
        except OSError:
            continue
    return found
