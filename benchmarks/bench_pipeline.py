"""Goals: a `dvc repro` with nothing to do takes at most 2 s; a stage costs at most 0.3 s besides its own command.

The graph of this clone in a separate folder, with an empty file or folder for every output, which `dvc commit` accepts
as it is.  Times are processor time of `dvc` and everything that it starts; the cost of a stage is what each fetching
stage adds when they are forced to run.
Run: python -m benchmarks pipeline
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from benchmarks.timing import Line

DVC = [sys.executable, "-m", "dvc"]


def make_checkout(folder: Path) -> None:
    """Make a checkout with code, params and graph under git and DVC, every output present and recorded."""
    for name in ("stages", "params", "data/evidence", "data/models", "data/registrations"):
        shutil.copytree(name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("params.yaml", "dvc.yaml", ".dvcignore", ".gitignore", "data/claims.csv"):
        shutil.copy(name, folder / name)
    run(folder, "git", "init", "-q")
    run(folder, *DVC, "init", "-q")
    shutil.copy(".dvc/config", folder / ".dvc" / "config")
    run(folder, sys.executable, "-m", "stages.inputs")
    index = yaml.safe_load((folder / "params.yaml").read_text(encoding="utf-8"))
    for stage in yaml.safe_load((folder / "dvc.yaml").read_text(encoding="utf-8"))["stages"].values():
        items = index[stage["foreach"].strip("${}")] if "foreach" in stage else {"": {}}
        body = stage.get("do", stage)
        for key, item in items.items():
            # A file that one stage depends on lies in the folder that another stage writes.
            for entry in [*body["outs"], *body.get("metrics", []), *body.get("plots", []), *body["deps"]]:
                name = entry if isinstance(entry, str) else next(iter(entry))
                path = folder / name.replace("${key}", key).replace("${item.dataset}", item.get("dataset", ""))
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.suffix:
                    path.touch()
                else:
                    path.mkdir(exist_ok=True)
                    (path / "stand-in").touch()
    run(folder, *DVC, "commit", "-q", "-f")


def run(folder: Path, *command: str) -> float:
    """Processor seconds of a command and of the processes that it waited for."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    return usage.ru_utime + usage.ru_stime


def measure() -> list[Line]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_checkout(folder)
        datasets = yaml.safe_load((folder / "params.yaml").read_text(encoding="utf-8"))["datasets"]
        targets = [f"fetch@{dataset}" for dataset in datasets]
        idle = statistics.median(run(folder, *DVC, "repro", "-q") for _ in range(3))
        # Last, as these write the real outputs of the stages.
        force = [*DVC, "repro", "-q", "-f", "-s"]
        each = (run(folder, *force, *targets) - run(folder, *force, targets[0])) / (len(targets) - 1)
        command = statistics.median(run(folder, sys.executable, "-m", "stages.fetch", "mnist") for _ in range(3))
        stages = len(list((folder / "data" / "inputs").glob("*.json"))) + 1
    return [
        Line(
            what=f"`dvc repro` with nothing to do, {stages} stages",
            peer="none",
            ours=f"{idle:.2f} s",
            value=idle,
            goal=2.0,
            at_most=True,
            unit="s",
        ),
        Line(
            what="a stage besides its command",
            peer=f"`python -m stages.fetch` alone: {command:.2f} s",
            ours=f"{each:.2f} s",
            value=each - command,
            goal=0.3,
            at_most=True,
            unit="s more",
        ),
    ]
