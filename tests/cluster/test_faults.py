"""A local Ray cluster: killed nodes, nodes without access to the clone, and several GPUs."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from stages.datasets.packed import read_info
from stages.runs.object_store import ObjectStore
from stages.runs.store import RunStore
from stages.scheduling.journal import read_sessions
from stages.scheduling.leases import Leases
from tests.cluster.nodes import Nodes, without_grammar
from tests.cluster.runs import finish, lost_reasons, outcomes_in, start
from tests.object_server import BUCKET, ObjectServer
from tests.polling import wait_until
from tests.project import REPOSITORY, environment, outcomes, saved_states

pytestmark = [
    pytest.mark.needs(cluster=True),
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("ray") is None, reason="no Ray here; `make cluster` adds it"),
]


def test_killed_node_loses_no_result(
    two_nodes: Nodes, project: Path, undisturbed: dict[str, tuple[bytes, bytes]]
) -> None:
    process = start(project, two_nodes)
    wait_until(lambda: saved_states(project) and two_nodes.trainings())
    two_nodes.kill(two_nodes.training_node())
    output = finish(process, project)
    assert outcomes(project) == undisturbed
    assert output.count("lost, its node is gone") == 1
    reasons = lost_reasons(project)
    assert len(reasons) == 1 and reasons[0].startswith("its node is gone, process ")
    assert not saved_states(project) and not two_nodes.trainings()
    ((_, session),) = read_sessions(RunStore(project / "data" / "store").scratch)
    assert {(group.node, group.device) for group in session.groups} == {(socket.gethostname(), "cpu")}


def test_frozen_process_is_killed_and_replaced(
    two_nodes: Nodes, project: Path, undisturbed: dict[str, tuple[bytes, bytes]]
) -> None:
    process = start(project, two_nodes)
    wait_until(lambda: saved_states(project) and two_nodes.trainings())
    standing = two_nodes.trainings()[0]
    standing.send_signal(signal.SIGSTOP)
    finish(process, project)
    assert outcomes(project) == undisturbed
    reasons = lost_reasons(project)
    assert len(reasons) == 1 and reasons[0].startswith("no heartbeat for 15 s, process ")
    wait_until(lambda: not standing.is_running(), 30)


def test_nodes_without_access_to_the_clone_train_from_shipped_code_and_a_url_store(
    two_nodes: Nodes,
    object_server: ObjectServer,
    small_project: Path,
    small_undisturbed: dict[str, tuple[bytes, bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not two_nodes.hidden:
        pytest.skip("no right to hide folders here (unshare --mount)")
    for name, value in object_server.environment.items():
        monkeypatch.setenv(name, value)
    store = ObjectStore(f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}", small_project / "read")
    output = finish(start(small_project, two_nodes, CLAIMCHECK_STORE=store.address), small_project)
    assert "2 of 2 missing runs trained" in output
    assert outcomes_in(store) == small_undisturbed
    assert [one.end for key in small_undisturbed for one in Leases(store).attempts(key)] == ["published"] * 2, output
    read = {path for node in two_nodes.workers for path in seen_by(node.pid, small_project)}
    assert read == set(), "the project is empty on the nodes"
    brought = [path for path in (two_nodes.cache / "claimcheck" / "packed").iterdir() if not path.name.startswith(".")]
    assert [path.name for path in brought] == [read_info(small_project / "data" / "processed" / "mnist").digest]


def test_local_cluster_is_started_and_stopped_without_an_address(
    small_project: Path, small_undisturbed: dict[str, tuple[bytes, bytes]], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "stages.cli", "run", "--all", "--engine", "ray", "--device", "cpu,cpu"]
    env = {name: value for name, value in environment().items() if not name.startswith("RAY_")}
    env["PYTHONPATH"] += f"{os.pathsep}{without_grammar(tmp_path)}"
    done = subprocess.run(command, cwd=small_project, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "2 of 2 missing runs trained" in done.stdout, done.stdout + done.stderr
    assert outcomes(small_project) == small_undisturbed
    assert [process.cmdline() for process in psutil.process_iter() if is_in(process, small_project)] == []


def test_wrong_cluster_token_is_one_line(two_nodes: Nodes, project: Path) -> None:
    output = finish(start(project, two_nodes, RAY_AUTH_TOKEN="0" * 64), project, code=1)
    said = f"claimcheck run: the Ray cluster {two_nodes.address} wants the token that its nodes were started with"
    assert output.splitlines()[-1].startswith(said), output
    assert "InvalidAuthToken" not in output, "Ray repeats this every second"


def test_node_with_keys_exported_too_late_ends_the_command(
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
    """Return what a process sees in a folder."""
    return os.listdir(f"/proc/{pid}/root{folder.resolve()}") if os.path.exists(f"/proc/{pid}/root{folder}") else []


def is_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.cwd() == os.fspath(folder.resolve())
    except psutil.Error:
        return False


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
    """The cluster plus a node with two GPUs, whose processors would allow several runs at once."""
    nodes.add(1, "--num-cpus=8", "--num-gpus=2", sees_all=True)
    node = nodes.workers[-1]
    yield nodes
    nodes.end_commands()
    nodes.kill(node)


def test_runs_are_limited_to_one_per_gpu(with_two_gpus: Nodes, small_project: Path) -> None:
    shutil.copytree(REPOSITORY / "stages", small_project / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    worker, seen = small_project / "stages" / "worker.py", small_project / "seen"  # the worker isn't in any run key
    source = worker.read_text(encoding="utf-8")
    assert source.count(CHOICE) == 1
    worker.write_text(source.replace(CHOICE, PRETENCE.format(seen=str(seen))), encoding="utf-8")
    output = finish(
        start(small_project, with_two_gpus, device="cuda:2+cuda:3", PYTHONPATH=str(small_project)),
        small_project,
    )
    assert "2 of 2 missing runs trained" in output
    assert seen.read_text(encoding="utf-8").splitlines() == ["began cuda:0+cuda:1 0,1", "ended"] * 2
