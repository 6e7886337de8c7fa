"""Nodes are killed, heads restarted, processes stand still: every result is there once, bit for bit as undisturbed.

Real processes of a Ray cluster on this machine, and `claimcheck run --all --engine ray` as a person calls it.
"""

import signal
import socket
import time
import uuid
from importlib.util import find_spec
from pathlib import Path

import pytest

from stages.runs.object_store import ObjectStore
from stages.runs.store import RunStore
from stages.scheduling.engine.object_leases import open_leases
from stages.scheduling.journal import read_sessions
from tests.cluster.nodes import Nodes, wait_for
from tests.cluster.runs import attempts, finish, lost_reasons, outcomes_in, saved_states, start
from tests.object_server import BUCKET, ObjectServer
from tests.project import outcomes

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("ray") is None, reason="no Ray here; `make cluster` adds it"),
]


def test_a_killed_node_loses_no_result(
    two_nodes: Nodes, project: Path, undisturbed: dict[str, tuple[bytes, bytes]]
) -> None:
    process = start(project, two_nodes)
    wait_for(lambda: saved_states(project) and two_nodes.trainings())
    two_nodes.kill(two_nodes.training_node())
    output = finish(process, project)
    assert outcomes(project) == undisturbed
    assert output.count("lost, its node is gone") == 1
    reasons = lost_reasons(project)
    assert len(reasons) == 1 and reasons[0].startswith("its node is gone, process ")
    assert not saved_states(project) and not two_nodes.trainings()
    ((_, session),) = read_sessions(RunStore(project / "data" / "store").scratch)
    assert {(group.node, group.device) for group in session.groups} == {(socket.gethostname(), "cpu")}


def test_a_process_that_stands_still_is_ended_and_followed(
    two_nodes: Nodes, project: Path, undisturbed: dict[str, tuple[bytes, bytes]]
) -> None:
    process = start(project, two_nodes)
    wait_for(lambda: saved_states(project) and two_nodes.trainings())
    standing = two_nodes.trainings()[0]
    standing.send_signal(signal.SIGSTOP)
    finish(process, project)
    assert outcomes(project) == undisturbed
    reasons = lost_reasons(project)
    assert len(reasons) == 1 and reasons[0].startswith("no sign of life for 15 s, process ")
    wait_for(lambda: not standing.is_running(), 30)


@pytest.mark.slow
def test_asked_to_stop_the_nodes_save_and_end_and_another_run_goes_on(
    two_nodes: Nodes, project: Path, undisturbed: dict[str, tuple[bytes, bytes]]
) -> None:
    process = start(project, two_nodes)
    wait_for(lambda: saved_states(project) and two_nodes.trainings())
    process.send_signal(signal.SIGTERM)
    output = finish(process, project, code=1)
    assert "the next dvc repro goes on from here" in output
    assert saved_states(project)
    wait_for(lambda: not two_nodes.trainings(), 30)
    finish(start(project, two_nodes), project)
    assert outcomes(project) == undisturbed
    ends = {tuple(one.end for one in of_run) for of_run in attempts(project).values()}
    assert ends == {("published",), ("stopped", "published")}


@pytest.mark.slow
def test_killed_itself_it_leaves_nothing_training(
    two_nodes: Nodes, project: Path, undisturbed: dict[str, tuple[bytes, bytes]]
) -> None:
    process = start(project, two_nodes)
    wait_for(lambda: saved_states(project) and two_nodes.trainings())
    process.kill()
    process.wait()
    wait_for(lambda: not two_nodes.trainings(), 60)
    finish(start(project, two_nodes), project)
    assert outcomes(project) == undisturbed


@pytest.mark.slow  # 40 s, and `test_store_away.py` does it for longer
def test_a_store_out_of_reach_for_a_while_loses_nothing(
    two_nodes: Nodes,
    object_server: ObjectServer,
    project: Path,
    undisturbed: dict[str, tuple[bytes, bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nodes see the store by URL alone; states go there from them, outcomes from the engine.

    It is away for longer than a task may be silent.
    """
    for name, value in object_server.environment.items():
        monkeypatch.setenv(name, value)
    store = ObjectStore(f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}", project / "read")
    process = start(project, two_nodes, CLAIMCHECK_STORE=store.address)
    wait_for(lambda: [*store.scratch.list_works()])
    object_server.down()
    time.sleep(20)
    object_server.up()
    output = finish(process, project)
    assert outcomes_in(store) == undisturbed
    assert [one.end for key in undisturbed for one in open_leases(store).attempts(key)] == ["published"] * 4, output


@pytest.mark.slow
def test_a_restarted_cluster_is_found_again(
    two_nodes: Nodes, project: Path, undisturbed: dict[str, tuple[bytes, bytes]]
) -> None:
    process = start(project, two_nodes)
    wait_for(lambda: saved_states(project) and two_nodes.trainings())
    two_nodes.restart(workers=2)
    output = finish(process, project)
    assert outcomes(project) == undisturbed
    assert "lost, the connection to the cluster is lost" in output
    assert all(reason.startswith("the connection to the cluster is lost") for reason in lost_reasons(project))
