"""A checkout with the real pipeline and code, a data set and two tiny experiments, under git and DVC."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from tests.project import EXPERIMENT, REPOSITORY, copy_stages, environment, make_project

DVC = [sys.executable, "-m", "dvc"]


def variables() -> dict[str, str]:
    """Return the environment of commands that call our Python by name, as dvc.yaml does."""
    return environment() | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def call(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, env=variables(), capture_output=True, text=True, check=False)


def run(folder: Path, *command: str) -> str:
    done = call(folder, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def repro(folder: Path) -> str:
    return run(folder, *DVC, "repro")


def make_checkout(folder: Path, *, epochs: int = 1) -> Path:
    make_project(folder, epochs=epochs)
    shutil.rmtree(folder / "data")
    index = yaml.safe_load((folder / "params.yaml").read_text(encoding="utf-8"))
    index["datasets"] = {"mnist": index["datasets"]["mnist"]}
    index["experiments"]["other-mnist"] = index["experiments"][EXPERIMENT]
    (folder / "params.yaml").write_text(yaml.safe_dump(index), encoding="utf-8")
    other = yaml.safe_load((folder / "params" / f"{EXPERIMENT}.yaml").read_text(encoding="utf-8"))
    other["protocol"]["seeds"] = [7]
    (folder / "params" / "other-mnist.yaml").write_text(yaml.safe_dump(other), encoding="utf-8")
    copy_stages(folder)
    for name in ("dvc.yaml", ".dvcignore", ".gitignore"):
        shutil.copy(REPOSITORY / name, folder / name)
    for name in ("evidence", "models", "registrations"):
        (folder / "data" / name).mkdir(parents=True)
        (folder / "data" / name / ".gitkeep").touch()
    for name in ("claims.csv", "claims-history.jsonl"):
        shutil.copy(REPOSITORY / "data" / name, folder / "data")
    run(folder, "git", "init", "-q")
    run(folder, *DVC, "init", "-q")
    shutil.copytree(REPOSITORY / ".dvc" / "plots", folder / ".dvc" / "plots")
    run(folder, *DVC, "config", "core.analytics", "false")
    return folder


def stages_run(output: str) -> list[str]:
    return [line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage")]
