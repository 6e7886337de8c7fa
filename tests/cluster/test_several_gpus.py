"""A run on several GPUs has them to itself: a node that pretends to have two, and a worker that trains on neither.

Whether two GPUs train a run together, no machine here can say: only what Ray gives the run is looked at.
"""

import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cluster.nodes import Nodes
from tests.cluster.runs import finish, start
from tests.project import REPOSITORY

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("ray") is None, reason="no Ray here; `make cluster` adds it"),
]
CHOICE = "    devices = devices_of(job.device)\n"
PRETENCE = """
    import os, time
    with open({seen!r}, "a") as seen:
        seen.write(f"began {{job.device}} {{os.environ['CUDA_VISIBLE_DEVICES']}}\\n")
    time.sleep(1)
    with open({seen!r}, "a") as seen:
        seen.write("ended\\n")
    job, devices = dataclasses.replace(job, device="cpu"), ("cpu",)
"""


@pytest.fixture
def with_two_gpus(nodes: Nodes) -> Iterator[Nodes]:
    """The cluster with a node more, whose processors would take several runs at once."""
    nodes.add(1, "--num-cpus=8", "--num-gpus=2", sees_all=True)
    node = nodes.workers[-1]
    yield nodes
    nodes.end_commands()
    nodes.kill(node)


def test_runs_on_two_gpus_follow_each_other_on_a_node_with_two(with_two_gpus: Nodes, project: Path) -> None:
    shutil.copytree(REPOSITORY / "stages", project / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    worker, seen = project / "stages" / "worker.py", project / "seen"  # the worker is in no run key
    source = worker.read_text()
    assert source.count(CHOICE) == 1
    worker.write_text(source.replace(CHOICE, PRETENCE.format(seen=str(seen))))
    output = finish(
        start(project, with_two_gpus, device="cuda:2+cuda:3", PYTHONPATH=str(project)),
        project,
    )
    assert "4 of 4 missing runs trained" in output
    assert seen.read_text().splitlines() == ["began cuda:0+cuda:1 0,1", "ended"] * 4
