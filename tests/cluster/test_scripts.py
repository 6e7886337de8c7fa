"""What starts a cluster on Slurm or by SkyPilot, as far as it can be read without either."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.project import REPOSITORY

JOB = REPOSITORY / "deploy" / "slurm" / "claimcheck.sbatch"


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
