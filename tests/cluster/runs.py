"""Train a project of two experiments on a cluster from the command line, and read the outcomes."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

from stages.runs.store import Store
from tests.cluster.nodes import Nodes
from tests.project import EXPERIMENT, attempts, edit, environment, make_project

OTHER = "tiny-other"
RUN = [sys.executable, "-m", "stages.cli", "run", "--all", "--device", "cpu"]
HASTY = """
import sys
from stages.scheduling import ray_engine
ray_engine.TIMEOUTS = ray_engine.Timeouts(silent=15, stuck=60, stopping=20, unreachable=120)
from stages.cli import main
sys.exit(main(sys.argv[1:]))
"""


def two_experiments(folder: Path) -> Path:
    """Create four runs of a few seconds each."""
    make_project(folder, epochs=200)
    content = yaml.safe_load((folder / "params" / f"{EXPERIMENT}.yaml").read_text(encoding="utf-8"))
    for arm in content["arms"].values():
        arm["model"]["mlp_dim"] = 24
    (folder / "params" / f"{OTHER}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    edit(
        folder / "params.yaml",
        lambda index: index["experiments"].update({OTHER: {"paper": "ninformer", "dataset": "mnist"}}),
    )
    return folder


def start(project: Path, nodes: Nodes, *, device: str = "cpu", **environs: str) -> subprocess.Popen[bytes]:
    """Start all trainings on the cluster."""
    return start_command(project, nodes, ["--all", "--device", device, "--engine", "ray"], environs)


def start_command(
    project: Path, nodes: Nodes, options: list[str], environs: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start `claimcheck run` with output to a file, because a full pipe would block it."""
    with (project / "output").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", HASTY, "run", *options],
            cwd=project,
            env=environment() | nodes.environment | environs,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    nodes.commands.append(process)
    return process


def finish(process: subprocess.Popen[bytes], project: Path, code: int = 0) -> str:
    """Wait for the end and return all output so far."""
    process.wait(timeout=400)
    output = (project / "output").read_text(encoding="utf-8")
    assert process.returncode == code, output
    assert "Traceback" not in output, output
    return output


def outcomes_in(store: Store) -> dict[str, tuple[bytes, bytes]]:
    """Return (history, weights) of each published run by key, read like another machine does."""
    folders = {run_key: store.whole(run_key) for run_key in store.run_keys()}
    return {
        run_key: ((folder / "history.jsonl").read_bytes(), (folder / "weights.safetensors").read_bytes())
        for run_key, folder in folders.items()
        if folder is not None
    }


def lost_reasons(project: Path) -> list[str]:
    """Return the reasons of lost attempts; check that each run was published by its last attempt."""
    found = attempts(project)
    assert [[one.end for one in of_run].count("published") for of_run in found.values()] == [1] * 4
    assert all(of_run[-1].end == "published" for of_run in found.values())
    return [one.reason for of_run in found.values() for one in of_run if one.end == "lost"]
