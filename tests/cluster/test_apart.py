"""Where the cluster is: nodes that see nothing of the clone, and one of this machine where no address is given."""

import os
import socket
import subprocess
import sys
import uuid
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from stages.datasets.packed import read_info
from stages.runs.object_store import ObjectStore
from stages.scheduling.engine.object_leases import open_leases
from tests.cluster.nodes import Nodes, without_grammar
from tests.cluster.runs import finish, outcomes_in, start
from tests.object_server import BUCKET, ObjectServer
from tests.project import environment, outcomes

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("ray") is None, reason="no Ray here; `make cluster` adds it"),
]


def test_nodes_that_see_nothing_of_the_clone_train_by_what_is_sent_and_a_store_by_url(
    two_nodes: Nodes,
    object_server: ObjectServer,
    project: Path,
    undisturbed: dict[str, tuple[bytes, bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not two_nodes.hidden:
        pytest.skip("no right to hide folders here (unshare --mount)")
    for name, value in object_server.environment.items():
        monkeypatch.setenv(name, value)
    store = ObjectStore(f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}", project / "read")
    output = finish(start(project, two_nodes, CLAIMCHECK_STORE=store.address), project)
    assert "4 of 4 missing runs trained" in output
    assert outcomes_in(store) == undisturbed
    assert [one.end for key in undisturbed for one in open_leases(store).attempts(key)] == ["published"] * 4, output
    read = {path for node in two_nodes.workers for path in seen_by(node.pid, project)}
    assert read == set(), "to the nodes the project is empty"
    brought = [path for path in (two_nodes.cache / "claimcheck" / "packed").iterdir() if not path.name.startswith(".")]
    assert [path.name for path in brought] == [read_info(project / "data" / "processed" / "mnist").digest]


def test_without_an_address_a_cluster_of_this_machine_is_started_and_ended(
    project: Path, undisturbed: dict[str, tuple[bytes, bytes]], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "stages.cli", "run", "--all", "--engine", "ray", "--device", "cpu,cpu"]
    env = {name: value for name, value in environment().items() if not name.startswith("RAY_")}
    env["PYTHONPATH"] += f"{os.pathsep}{without_grammar(tmp_path)}"
    done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "4 of 4 missing runs trained" in done.stdout, done.stdout + done.stderr
    assert outcomes(project) == undisturbed
    assert [process.cmdline() for process in psutil.process_iter() if is_in(process, project)] == []


def test_another_token_than_the_clusters_is_one_line(two_nodes: Nodes, project: Path) -> None:
    output = finish(start(project, two_nodes, RAY_AUTH_TOKEN="0" * 64), project, code=1)
    said = f"claimcheck run: the Ray cluster {two_nodes.address} wants the token that its nodes were started with"
    assert output.splitlines()[-1].startswith(said), output
    assert "InvalidAuthToken" not in output, "what Ray writes every second"


def test_a_node_whose_keys_were_exported_after_its_start_ends_the_command(
    two_nodes: Nodes, object_server: ObjectServer, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {name: value for name, value in object_server.environment.items() if "KEY" in name}
    without = {name: value for name, value in two_nodes.environment.items() if name not in keys}
    monkeypatch.setattr(two_nodes, "environment", without)
    two_nodes.kill(two_nodes.workers[0])
    two_nodes.add(1)
    try:
        url = f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}"
        output = finish(start(project, two_nodes, CLAIMCHECK_STORE=url, **keys), project, code=1)
    finally:
        two_nodes.kill(two_nodes.workers[-1])
    host = socket.gethostname()
    said = f"claimcheck run: node {host} can't use the store: {url}: the environment has no AWS_ACCESS_KEY_ID and "
    last = output.splitlines()[-1]
    assert last.startswith(said) and f"export the keys on {host}, then `ray stop` and `ray start`" in last, output
    assert "failed" not in output, output


def seen_by(pid: int, folder: Path) -> list[str]:
    """What a process finds in a folder."""
    return os.listdir(f"/proc/{pid}/root{folder.resolve()}") if os.path.exists(f"/proc/{pid}/root{folder}") else []


def is_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.cwd() == os.fspath(folder.resolve())
    except psutil.Error:
        return False
