"""Static checks of the Slurm and SkyPilot scripts, without either installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.project import REPOSITORY

JOB = REPOSITORY / "deploy" / "slurm" / "claimcheck.sbatch"


def test_slurm_job_passes_shellcheck() -> None:
    program = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("no shellcheck here; on Debian: apt install shellcheck")
    done = subprocess.run([program, str(JOB)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


SKYPILOT = yaml.safe_load((REPOSITORY / "deploy" / "skypilot.yaml").read_text(encoding="utf-8"))
LOGGED = """#!/bin/sh
echo "${0##*/} $* [${RAY_ADDRESS-} $RAY_AUTH_MODE]" >>log
case "$0 $1" in *claimcheck\\ run) exit 1;; esac
"""


def test_skypilot_task_has_valid_keys_and_shell() -> None:
    """The keys are those that SkyPilot 0.14.1, which isn't installed here, reads."""
    assert set(SKYPILOT) == {"name", "num_nodes", "resources", "workdir", "envs", "secrets", "setup", "run"}
    done = subprocess.run(["bash", "-n"], input=SKYPILOT["setup"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def run_on(rank: int, folder: Path) -> tuple[int, list[str]]:
    """Return the exit code on the machine of that rank, and our commands that ran, with Ray's address."""
    (folder / ".venv" / "bin").mkdir(parents=True)
    for name in ("ray", "claimcheck", "dvc"):
        (folder / ".venv" / "bin" / name).write_text(LOGGED, encoding="utf-8")
        (folder / ".venv" / "bin" / name).chmod(0o755)
    given = {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NODE_RANK": str(rank), "RAY_AUTH_TOKEN": "t"}
    env = {"PATH": os.environ["PATH"]} | SKYPILOT["envs"] | given
    done = subprocess.run(["bash", "-c", SKYPILOT["run"]], cwd=folder, env=env, capture_output=True, check=False)
    return done.returncode, (folder / "log").read_text(encoding="utf-8").splitlines()


def test_first_machine_packs_the_data_trains_and_exits_with_the_training(tmp_path: Path) -> None:
    ours = "[10.0.0.1:6479 token]"
    assert run_on(0, tmp_path) == (
        1,
        [
            "ray start --head --port=6479 --include-dashboard=false --disable-usage-stats [ token]",
            f"claimcheck profile paper {ours}",
            f"dvc repro preprocess {ours}",
            f"claimcheck run --all --engine ray {ours}",
            f"ray stop {ours}",
        ],
    )


def test_other_machines_join_the_first(tmp_path: Path) -> None:
    address = "10.0.0.1:6479"
    joined = f"ray start --block --address={address} --disable-usage-stats [{address} token]"
    assert run_on(1, tmp_path) == (0, [joined])
