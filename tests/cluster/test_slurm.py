"""The job for Slurm: linted, and run by a real Slurm of one node."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from tests.cluster.nodes import HOST, wait_for
from tests.cluster.slurm import missing, slurm
from tests.project import EXPERIMENT, REPOSITORY, environment, make_project

JOB = REPOSITORY / "deploy" / "slurm" / "claimcheck.sbatch"


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(find_spec("ray") is None, reason="no Ray here; `make cluster` adds it")
def test_a_job_starts_a_cluster_trains_and_ends_it(tmp_path: Path) -> None:
    if missing():
        pytest.skip(f"no {', '.join(missing())} here; on Debian: apt install slurmd slurmctld slurm-client munge")
    project = make_project(tmp_path / "project", epochs=3)
    (project / ".venv").symlink_to(Path(sys.executable).parent.parent)
    (tmp_path / "slurm").mkdir()
    with slurm(tmp_path / "slurm") as reach:
        subprocess.run(
            ["sbatch", "--nodes=1", str(JOB), EXPERIMENT, "--device", "cpu"],
            cwd=project,
            env=reach | environment() | {"RAY_agent_register_timeout_ms": "120000", "CLAIMCHECK_HOST": HOST},
            check=True,
            capture_output=True,
        )
        log = project / "claimcheck-1.log"
        wait_for(lambda: state_of("1", reach) in ("COMPLETED", "FAILED", "CANCELLED"), 500)
        said = log.read_text()
        assert state_of("1", reach) == "COMPLETED", said
    assert "2 of 2 missing runs trained" in said
    assert not left_running(project), "the cluster has ended with the job"


def state_of(job: str, reach: dict[str, str]) -> str:
    shown = subprocess.run(
        ["scontrol", "show", "job", job], env=reach, capture_output=True, text=True, check=False, timeout=30
    ).stdout
    return shown.partition("JobState=")[2].partition(" ")[0]


def left_running(project: Path) -> list[str]:
    return [
        str(path)
        for path in Path("/proc").glob("[0-9]*/cwd")
        if path.exists() and path.resolve() == project and "ray" in path.with_name("comm").read_text()
    ]


def test_the_job_has_no_fault_that_shellcheck_knows() -> None:
    program = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("no shellcheck here; on Debian: apt install shellcheck")
    done = subprocess.run([program, str(JOB)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_commands_for_skypilot_are_shell_and_the_keys_are_its() -> None:
    task = yaml.safe_load((REPOSITORY / "deploy" / "skypilot.yaml").read_text())
    assert set(task) == {"name", "num_nodes", "resources", "workdir", "envs", "secrets", "setup", "run"}
    for part in ("setup", "run"):
        done = subprocess.run(["bash", "-n"], input=task[part], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    assert "RAY_AUTH_MODE=token" in task["run"] and "claimcheck run $CLAIMCHECK_RUN --engine ray" in task["run"]
