"""The store is unavailable for a minute while two clones, one on a cluster, train into it."""

import shutil
import signal
import time
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from stages.runs.object_store import ObjectStore
from stages.scheduling.leases import Leases
from tests.cluster.nodes import Nodes
from tests.cluster.runs import finish, outcomes_in, start, start_command
from tests.object_server import BUCKET, ObjectServer
from tests.polling import wait_until

pytestmark = [
    pytest.mark.needs(cluster=True),
    pytest.mark.slow(hours=True),
    pytest.mark.timeout(900),
    pytest.mark.skipif(find_spec("ray") is None, reason="no Ray here; `make cluster` adds it"),
]
AWAY_SECONDS = 60.0
"""As long as a lease, and four times the silence that these engines allow a task."""


@pytest.fixture
def server(object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    for name, value in object_server.environment.items():
        monkeypatch.setenv(name, value)
    yield object_server
    object_server.speak()
    object_server.up()


@pytest.mark.parametrize("how", ["refuses", "is silent"])
def test_no_run_is_lost_or_taken_over_while_the_store_is_away(
    two_nodes: Nodes,
    server: ObjectServer,
    project: Path,
    undisturbed: dict[str, tuple[bytes, bytes]],
    tmp_path: Path,
    how: str,
) -> None:
    """Both clones want all runs, and both are training when the store goes down."""
    store = ObjectStore(f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}", project / "read")
    leases, other = Leases(store), Path(shutil.copytree(project, tmp_path / "other"))

    def owners() -> set[str]:
        holders = [leases.holder(run_key) for run_key in undisturbed]
        return {one.owner for one in holders if one is not None}

    here = start_command(other, two_nodes, ["--all", "--device", "cpu"], {"CLAIMCHECK_STORE": store.address})
    wait_until(lambda: [work for work in store.scratch.list_works() if work in undisturbed])
    here.send_signal(signal.SIGSTOP)  # otherwise everything would be trained before Ray is ready
    there = start(project, two_nodes, CLAIMCHECK_STORE=store.address)
    wait_until(lambda: len(owners()) == 2 and two_nodes.trainings())
    here.send_signal(signal.SIGCONT)
    (server.down if how == "refuses" else server.fall_silent)()
    time.sleep(AWAY_SECONDS)
    (server.up if how == "refuses" else server.speak)()
    output = finish(there, project) + finish(here, other)
    assert outcomes_in(store) == undisturbed
    made = [one for run_key in undisturbed for one in leases.attempts(run_key)]
    assert [one.end for one in made] == ["published"] * 4, output
    assert len({one.owner for one in made}) == 2, output
