"""Nodes are killed, heads restarted, processes stand still: every result is there once, bit for bit as undisturbed.

Real processes of a Ray cluster on this machine, and `claimcheck run --all --engine ray` as a person calls it.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from stages.runs.store import RunStore
from stages.scheduling.engine.leases import Attempt
from stages.scheduling.engine.opening import open_leases
from tests.cluster.nodes import Nodes, wait_for
from tests.project import EXPERIMENT, edit, environment, make_project, outcomes

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("ray") is None, reason="no Ray here; `make cluster` adds it"),
]

OTHER = "tiny-other"
RUN = [sys.executable, "-m", "stages.cli", "run", "--all", "--device", "cpu"]
HASTY = """
import sys
from stages.scheduling.engine import ray_engine
ray_engine.PATIENCE = ray_engine.Patience(silent=8, stuck=60, stopping=20, unreachable=120)
from stages.cli import main
sys.exit(main(sys.argv[1:]))
"""


def two_experiments(folder: Path) -> Path:
    """Four runs, of a few seconds each."""
    make_project(folder, epochs=400)
    content = yaml.safe_load((folder / "params" / f"{EXPERIMENT}.yaml").read_text())
    for arm in content["arms"].values():
        arm["model"]["mlp_dim"] = 24
    (folder / "params" / f"{OTHER}.yaml").write_text(yaml.safe_dump(content))
    edit(
        folder / "params.yaml",
        lambda index: index["experiments"].update({OTHER: {"paper": "ninformer", "dataset": "mnist"}}),
    )
    return folder


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_experiments(tmp_path_factory.mktemp("template") / "project")


@pytest.fixture(scope="module")
def undisturbed(template: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bytes, bytes]]:
    project = Path(shutil.copytree(template, tmp_path_factory.mktemp("undisturbed") / "project"))
    done = subprocess.run(RUN, cwd=project, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 of 4 missing runs trained" in done.stdout
    return outcomes(project)


@pytest.fixture
def project(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "project"))


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    nodes = Nodes()
    try:
        nodes.start(workers=2)
        yield nodes
    finally:
        nodes.close()


@pytest.fixture
def two_nodes(nodes: Nodes) -> Nodes:
    """The cluster, with what an earlier test took from it put back."""
    nodes.add(2 - len(nodes.workers))
    return nodes


def start(project: Path, nodes: Nodes) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HASTY, "run", "--all", "--device", "cpu", "--engine", "ray"],
        cwd=project,
        env=environment() | nodes.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    output, _ = process.communicate(timeout=400)
    assert process.returncode == code, output
    assert "Traceback" not in output, output
    return output


def saved_states(project: Path) -> list[Path]:
    return list((project / "data" / "store" / "work").glob("*/resume.pt"))


def attempts(project: Path) -> dict[str, list[Attempt]]:
    store = RunStore(project / "data" / "store")
    leases = open_leases(store)
    return {run_key: leases.attempts(run_key) for run_key in store.run_keys()}


def lost_reasons(project: Path) -> list[str]:
    """Of attempts that were lost; each run was published by its last attempt."""
    found = attempts(project)
    assert [[one.end for one in of_run].count("published") for of_run in found.values()] == [1] * 4
    assert all(of_run[-1].end == "published" for of_run in found.values())
    return [one.reason for of_run in found.values() for one in of_run if one.end == "lost"]


def test_a_killed_node_loses_no_result(
    two_nodes: Nodes, project: Path, undisturbed: dict[str, tuple[bytes, bytes]]
) -> None:
    process = start(project, two_nodes)
    wait_for(lambda: len(saved_states(project)) == 2 and len(two_nodes.trainings()) == 2)
    two_nodes.kill(two_nodes.training_node())
    output = finish(process)
    assert outcomes(project) == undisturbed
    assert output.count("lost, its node is gone") == 1
    reasons = lost_reasons(project)
    assert len(reasons) == 1 and reasons[0].startswith("its node is gone, process ")
    assert not saved_states(project) and not two_nodes.trainings()


def test_a_process_that_stands_still_is_ended_and_followed(
    two_nodes: Nodes, project: Path, undisturbed: dict[str, tuple[bytes, bytes]]
) -> None:
    process = start(project, two_nodes)
    wait_for(lambda: len(saved_states(project)) == 2 and len(two_nodes.trainings()) == 2)
    standing = two_nodes.trainings()[0]
    standing.send_signal(signal.SIGSTOP)
    finish(process)
    assert outcomes(project) == undisturbed
    reasons = lost_reasons(project)
    assert len(reasons) == 1 and reasons[0].startswith("no sign of life for 8 s, process ")
    wait_for(lambda: not standing.is_running(), 30)


def test_asked_to_stop_the_nodes_save_and_end_and_another_run_goes_on(
    two_nodes: Nodes, project: Path, undisturbed: dict[str, tuple[bytes, bytes]]
) -> None:
    process = start(project, two_nodes)
    wait_for(lambda: len(saved_states(project)) == 2 and len(two_nodes.trainings()) == 2)
    process.send_signal(signal.SIGTERM)
    output = finish(process, code=1)
    assert "the next dvc repro goes on from here" in output
    assert len(saved_states(project)) == 2
    wait_for(lambda: not two_nodes.trainings(), 30)
    finish(start(project, two_nodes))
    assert outcomes(project) == undisturbed
    ends = sorted(tuple(one.end for one in of_run) for of_run in attempts(project).values())
    assert ends == [("published",), ("published",), ("stopped", "published"), ("stopped", "published")]


def test_killed_itself_it_leaves_nothing_training(
    two_nodes: Nodes, project: Path, undisturbed: dict[str, tuple[bytes, bytes]]
) -> None:
    process = start(project, two_nodes)
    wait_for(lambda: len(saved_states(project)) == 2 and len(two_nodes.trainings()) == 2)
    process.kill()
    process.communicate()
    wait_for(lambda: not two_nodes.trainings(), 60)
    finish(start(project, two_nodes))
    assert outcomes(project) == undisturbed


def test_a_restarted_cluster_is_found_again(
    two_nodes: Nodes, project: Path, undisturbed: dict[str, tuple[bytes, bytes]]
) -> None:
    process = start(project, two_nodes)
    wait_for(lambda: len(saved_states(project)) == 2 and len(two_nodes.trainings()) == 2)
    assert two_nodes.head is not None
    two_nodes.kill(two_nodes.head)
    for node in two_nodes.workers:
        node.wait(60)  # a node without its head ends by itself
    two_nodes.workers.clear()
    two_nodes.start(workers=2)
    output = finish(process)
    assert outcomes(project) == undisturbed
    assert output.count("lost, the connection to the cluster is lost") == 2
    assert len(lost_reasons(project)) == 2
