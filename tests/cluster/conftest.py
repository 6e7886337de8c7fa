from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.nodes import Nodes
from tests.cluster.runs import RUN, two_experiments
from tests.object_server import ObjectServer
from tests.project import environment, outcomes


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two_experiments(tmp_path_factory.mktemp("template") / "project")


@pytest.fixture(scope="session")
def undisturbed(template: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bytes, bytes]]:
    project = Path(shutil.copytree(template, tmp_path_factory.mktemp("undisturbed") / "project"))
    done = subprocess.run(RUN, cwd=project, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 of 4 missing runs trained" in done.stdout
    return outcomes(project)


@pytest.fixture
def project(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "project"))


@pytest.fixture(scope="session")
def nodes(object_server: ObjectServer) -> Iterator[Nodes]:
    nodes = Nodes(object_server.environment)
    try:
        nodes.start(workers=2)
        yield nodes
    finally:
        nodes.close()


@pytest.fixture
def two_nodes(nodes: Nodes) -> Iterator[Nodes]:
    """The cluster, with what an earlier test took from it put back."""
    nodes.add(2 - len(nodes.workers))
    yield nodes
    nodes.end_commands()
