"""The Slurm job is run, stopped and requeued by a real one-node Slurm."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cluster.nodes import HOST
from tests.cluster.slurm import missing, slurm
from tests.polling import wait_until
from tests.project import EXPERIMENT, REPOSITORY, ends, environment, make_project, saved_states

JOB = REPOSITORY / "deploy" / "slurm" / "claimcheck.sbatch"
ENDED = ("COMPLETED", "FAILED", "CANCELLED")


pytestmark = [
    pytest.mark.needs(cluster=True),
    pytest.mark.slow(hours=True),
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("ray") is None, reason="no Ray here; `make cluster` adds it"),
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = make_project(tmp_path / "project", epochs=300)
    (project / ".venv").symlink_to(Path(sys.executable).parent.parent)
    return project


@pytest.fixture
def reach(tmp_path: Path) -> Iterator[dict[str, str]]:
    if missing():
        pytest.skip(f"no {', '.join(missing())} here; on Debian: apt install slurmd slurmctld slurm-client munge")
    (tmp_path / "slurm").mkdir()
    with slurm(tmp_path / "slurm") as found:
        yield found


def submit(project: Path, reach: dict[str, str]) -> None:
    more = {"RAY_agent_register_timeout_ms": "120000", "CLAIMCHECK_HOST": HOST}
    command = ["sbatch", "--nodes=1", str(JOB), EXPERIMENT, "--device", "cpu"]
    subprocess.run(command, cwd=project, env=reach | environment() | more, check=True, capture_output=True)


def test_job_starts_a_cluster_trains_and_stops_it(project: Path, reach: dict[str, str]) -> None:
    submit(project, reach)
    log = project / "claimcheck-1.log"
    wait_until(lambda: state_of(reach) in ENDED, 500)
    said = log.read_text(encoding="utf-8")
    assert state_of(reach) == "COMPLETED", said
    assert "2 of 2 missing runs trained" in said
    assert not left_running(project), "the cluster has ended with the job"


def test_job_near_its_time_limit_saves_and_resumes_when_requeued(project: Path, reach: dict[str, str]) -> None:
    submit(project, reach)
    wait_until(lambda: saved_states(project), 300)
    scancel(reach, "USR1")
    wait_until(lambda: state_of(reach) == "PENDING", 120)
    assert saved_states(project) and not left_running(project)
    # Slurm waits two minutes before it starts a job again
    subprocess.run(["scontrol", "update", "JobId=1", "StartTime=now"], env=reach, check=True)
    wait_until(lambda: state_of(reach) in ENDED, 300)
    assert state_of(reach) == "COMPLETED", (project / "claimcheck-1.log").read_text(encoding="utf-8")
    how = [[end for end, _ in of_run] for of_run in ends(project)]
    assert how in ([["published"], ["stopped", "published"]], [["stopped", "published"]] * 2)


def test_stopped_job_saves_and_ends(project: Path, reach: dict[str, str]) -> None:
    submit(project, reach)
    wait_until(lambda: saved_states(project), 300)
    scancel(reach, "TERM")
    wait_until(lambda: state_of(reach) in ENDED, 120)
    said = (project / "claimcheck-1.log").read_text(encoding="utf-8")
    assert "0 of 2 missing runs trained; run the same command again to train the rest" in said
    assert show(reach, "Restarts") == "0" and saved_states(project) and not left_running(project)


def scancel(reach: dict[str, str], signal: str) -> None:
    subprocess.run(["scancel", f"--signal={signal}", "--batch", "1"], env=reach, check=True)


def state_of(reach: dict[str, str]) -> str:
    return show(reach, "JobState")


def show(reach: dict[str, str], what: str) -> str:
    """Return a field of the only job."""
    command = ["scontrol", "show", "job", "1"]
    shown = subprocess.run(command, env=reach, capture_output=True, text=True, check=False, timeout=30).stdout
    return shown.partition(f"{what}=")[2].partition(" ")[0].strip()


def left_running(project: Path) -> list[str]:
    return [
        str(path)
        for path in Path("/proc").glob("[0-9]*/cwd")
        if path.exists() and path.resolve() == project and "ray" in path.with_name("comm").read_text(encoding="utf-8")
    ]
