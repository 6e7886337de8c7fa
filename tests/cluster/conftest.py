import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.nodes import Nodes
from tests.cluster.runs import RUN, two_experiments
from tests.object_server import ObjectServer
from tests.project import EXPERIMENT, REPOSITORY, environment, make_project, outcomes


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


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of two runs that train for seconds, with operations counted in advance."""
    folder = make_project(tmp_path_factory.mktemp("small") / "project", epochs=100)
    counted = Path(shutil.copytree(folder, folder.with_name("counted")))
    command = [sys.executable, "-m", "stages.cli", "run", EXPERIMENT, "--device", "cpu"]
    subprocess.run(command, cwd=counted, env=environment(), check=True, capture_output=True)
    shutil.copy(counted / "data" / "flops.json", folder / "data")
    return folder


@pytest.fixture(scope="session")
def small_undisturbed(small: Path) -> dict[str, tuple[bytes, bytes]]:
    return outcomes(small.with_name("counted"))


@pytest.fixture
def project(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "project"))


@pytest.fixture
def small_project(small: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small, tmp_path / "project"))


@pytest.fixture(scope="session")
def nodes(object_server: ObjectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """The cluster's nodes can't see the projects or our code, if this user may hide folders from them."""
    may_hide = shutil.which("unshare") and not subprocess.run(["unshare", "--mount", "true"], check=False).returncode
    hidden = [tmp_path_factory.getbasetemp(), REPOSITORY / "stages"] if may_hide else []
    nodes = Nodes(object_server.environment, hidden)
    try:
        nodes.start(workers=2)
        yield nodes
    finally:
        nodes.close()


@pytest.fixture
def two_nodes(nodes: Nodes) -> Iterator[Nodes]:
    """The cluster, repaired after an earlier test."""
    nodes.add(2 - len(nodes.workers))
    yield nodes
    nodes.end_commands()
