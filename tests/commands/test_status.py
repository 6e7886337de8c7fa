"""`claimcheck status`: verdicts and trainings as tables, JSON and metrics, and live on a terminal."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stages.recording.builder import record
from stages.runs.store import RunStore
from stages.scheduling.groups import Event, Group
from stages.scheduling.journal import Journal
from stages.scheduling.leases import Leases
from tests.claims.lines import copy_project
from tests.commands.waiting import claimcheck
from tests.project import environment, make_spec
from tests.terminal import on_terminal

LABEL = "dac-sgemm mlp-25x5.0"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All params and claims, and a database without results."""
    folder = tmp_path_factory.mktemp("project")
    copy_project(folder)
    record(folder, "data/results.db")
    return folder


@pytest.fixture
def project(recorded: Path, tmp_path: Path) -> Path:
    for part in ("params", "params.yaml"):
        (tmp_path / part).symlink_to(recorded / part)
    (tmp_path / "data").mkdir()
    for part in ("claims.csv", "claims-history.jsonl", "results.db"):
        (tmp_path / "data" / part).symlink_to(recorded / "data" / part)
    return tmp_path


def train_in(project: Path, *, dashboard: str = "") -> None:
    """Write a journal in which one run trains under its lease and is half done, and another failed."""
    store = RunStore(project / "data" / "store")
    specs = [make_spec(seed=seed) for seed in (0, 1)]
    labels = [LABEL, LABEL.replace(".0", ".1")]
    groups = [Group(label=label, specs=(spec,), data=Path()) for label, spec in zip(labels, specs, strict=True)]
    names = {spec.run_key: label.replace(" ", ".") for label, spec in zip(labels, specs, strict=True)}
    journal = Journal(store, groups, names, engine="ray", profile="paper", slots=2, held={"dac-sgemm": 3})
    journal.session.dashboard = dashboard
    assert Leases(store).claim(specs[0].run_key) is not None
    progress = {"epoch": 2, "epochs": 4, "step": 50, "total_steps": 100, "samples_per_second": 1234.0, "scores": {}}
    for event in (
        Event(kind="started", label=labels[0], device="cuda:0", node="node-7"),
        Event(kind="progress", label=labels[0], progress=progress),
        Event(kind="failed", label=labels[1], message="out of memory", node="node-8"),
    ):
        journal._next = 0.0
        journal.report(event)


def test_status_without_trainings_shows_only_verdicts(project: Path) -> None:
    done = claimcheck(project, "status", "dac")
    assert done.returncode == 0 and done.stdout.startswith("paper  decided") and "trains" not in done.stdout
    document = json.loads(claimcheck(project, "status", "dac", "--json").stdout)
    assert [row["paper"] for row in document["papers"]] == ["dac"]
    assert document["trainings"] == {"sessions": [], "rows": [], "left_seconds": None, "finished": [], "brought": []}
    assert claimcheck(project, "status", "--watch").stdout == "no training has run in this store yet\n"
    assert not (project / "data" / "store").exists(), "reading writes nothing"


def test_snapshot_has_every_state_by_experiment_and_node(project: Path) -> None:
    train_in(project, dashboard="http://127.0.0.1:8265")
    shown = claimcheck(project, "status", "--watch").stdout
    assert shown.startswith("ray engine on ") and "; dashboard: http://127.0.0.1:8265\n" in shown
    assert ", 3 runs were in the store; " in shown
    row = next(line.split() for line in shown.splitlines() if " node-7 " in line)
    assert row[:8] == ["dac-sgemm", "node-7", "1", "0", "0", "0", "0", "1,234"]
    assert f"{LABEL}  cuda:0    2/4   50%" in shown and "mlp-25x5.1: failed, out of memory" in shown
    assert claimcheck(project, "status", "ninformer", "--watch").stdout.count("dac-sgemm") == 0
    everything = claimcheck(project, "status").stdout
    assert everything.startswith("paper") and LABEL in everything


def test_metrics_are_valid_prometheus_format(project: Path) -> None:
    train_in(project)
    path = project / "claimcheck.prom"
    assert claimcheck(project, "status", "--prometheus", str(path)).returncode == 0
    families = {family.name: family for family in text_string_to_metric_families(path.read_text(encoding="utf-8"))}
    runs = {
        (sample.labels["node"], sample.labels["state"]): sample.value
        for sample in families["claimcheck_training_runs"].samples
    }
    assert (runs["node-7", "running"], runs["node-8", "failed"], runs["node-7", "failed"]) == (1, 1, 0)
    (speed,) = (
        one for one in families["claimcheck_training_samples_per_second"].samples if one.labels["node"] == "node-7"
    )
    assert speed.value == 1234
    claims = {(s.labels["paper"], s.labels["verdict"]) for s in families["claimcheck_claims"].samples}
    assert ("dac", "holds") in claims and len(claims) == 5 * 4
    assert [path.name for path in project.iterdir() if path.name.startswith("claimcheck.prom")] == ["claimcheck.prom"]
    nowhere = claimcheck(project, "status", "--prometheus", str(project / "none" / "x.prom"))
    assert (nowhere.returncode, nowhere.stderr.count("\n")) == (1, 1)
    assert "none/x.prom: no folder " in nowhere.stderr


def test_status_does_not_import_torch(project: Path) -> None:
    train_in(project)
    code = "import sys; from stages.cli import main; main(['status', '--watch']); print('torch' in sys.modules)"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=project, env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_status_on_a_terminal_runs_until_ctrl_c(project: Path) -> None:
    train_in(project)
    pressed: list[bool] = []

    def press(shown: str, process: subprocess.Popen[bytes]) -> None:
        if not pressed and "50%" in shown:
            pressed.append(True)
            os.killpg(process.pid, signal.SIGINT)

    words = [sys.executable, "-m", "stages.cli", "status", "--watch"]
    code, written = on_terminal(words, project, environment(), columns=100, look=press)
    assert pressed and code == 0 and "Traceback" not in written
