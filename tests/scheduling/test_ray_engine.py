"""The Ray engine's decisions to end and retry tasks, with scripted tasks; `tests/cluster` has real ones."""

import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from stages.runs.store import RunStore
from stages.scheduling import ray_engine
from stages.scheduling.groups import EngineError, Event, Group
from stages.scheduling.leases import Leases
from stages.scheduling.ray_bridge import SHORT_OF_MEMORY, Resources
from stages.scheduling.ray_engine import Timeouts
from tests.project import make_spec

NODE = Resources(cpus=2, gpus=1)


class Script:
    """A cluster of one node that starts tasks at once and sends a heartbeat every 20 ms.

    `messages` lists further messages of the group's n-th task; a task that is asked to stop confirms it.
    """

    name = "of this test"

    def __init__(self, messages: dict[str, list[list[tuple[Any, ...]]]], *, takes_steps: bool = True) -> None:
        self._messages, self._takes_steps, self._steps = messages, takes_steps, 0
        self._arrived: list[tuple[Any, ...]] = []
        self._running: dict[int, Any] = {}
        self._beat = 0.0
        self.shares: list[Resources] = []
        self.ended: list[int] = []

    def open(self, groups: list[Group]) -> None:
        self._arrived.append(("ready", [NODE], ""))

    def refuse(self) -> None:
        """Reject connections, like a cluster restarted with another token."""
        self._arrived.append(("refused",))

    def receive(self, seconds: float) -> list[tuple[Any, ...]]:
        time.sleep(0.01)
        if time.monotonic() - self._beat > 0.02:
            self._beat, self._steps = time.monotonic(), self._steps + self._takes_steps
            self._arrived += [(number, "beat", self._steps) for number in self._running]
        arrived, self._arrived = self._arrived, []
        return arrived

    def send(self, command: str, *arguments: Any) -> None:
        getattr(self, f"_{command}")(*arguments)

    def _submit(self, number: int, request: Any, share: Resources) -> None:
        self.shares.append(share)
        self._running[number] = request
        self._arrived += [(number, "placed", "there", 7), (number, "started", 1)]
        for message in self._messages[request.group.label].pop(0) if self._messages.get(request.group.label) else []:
            self._arrived.append((number, *message))
            if message[0] == "ended":
                del self._running[number]

    def _cancel(self, number: int, is_forced: bool) -> None:
        request = self._running.pop(number)
        if is_forced:
            self.ended.append(number)
        else:
            self._arrived.append((number, "stopped", [spec.run_key for spec in request.group.specs], "asked to"))
        self._arrived.append((number, "ended", ""))

    def _nodes(self) -> None:
        self._arrived.append(("nodes", [NODE]))


class Trainings:
    """Two groups on such a cluster, with short timeouts; `seen` are the engine's events."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        timeouts = Timeouts(silent=0.3, stuck=0.4, stopping=5, unreachable=5)
        monkeypatch.setattr(ray_engine, "TIMEOUTS", timeouts)
        self.store, self.seen, self.stop = RunStore(folder), list[Event](), threading.Event()
        self.groups = [Group(label=f"a x.{seed}", specs=(make_spec(seed=seed),), data=folder) for seed in (0, 1)]
        self.keys = [group.run_keys[0] for group in self.groups]

    def run(self, cluster: Any, devices: list[str]) -> None:
        engine = ray_engine._Engine(cluster, self.store, devices, self.report, self.stop, deque(self.groups))
        engine.run()

    def report(self, event: Event) -> None:
        self.seen.append(event)

    def kinds(self, number: int) -> list[str]:
        return [event.kind for event in self.seen if event.label == self.groups[number].label]

    def ends(self, number: int) -> list[tuple[str | None, str]]:
        return [(one.end, one.reason) for one in Leases(self.store).attempts(self.keys[number])]


@pytest.fixture
def trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trainings:
    return Trainings(tmp_path, monkeypatch)


def test_tasks_are_not_timed_out_while_the_engine_waits_for_a_store(
    trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing the journal, an outcome or a claim may take longer than a task's timeout."""
    cluster = Script({trainings.groups[0].label: [[("progress", {"step": 1})]]})

    def report(event: Event) -> None:
        trainings.seen.append(event)
        if event.kind == "progress":
            time.sleep(0.6)  # an unavailable store
            threading.Timer(0.3, trainings.stop.set).start()

    monkeypatch.setattr(trainings, "report", report)
    trainings.run(cluster, ["cpu", "cpu"])
    assert cluster.ended == []
    assert [trainings.ends(number) for number in (0, 1)] == [[("stopped", "asked to")]] * 2


def test_task_that_takes_no_step_is_ended_and_retried_five_times(trainings: Trainings) -> None:
    """Its heartbeat thread continues regardless of the training."""
    del trainings.groups[1]
    cluster = Script({}, takes_steps=False)
    trainings.run(cluster, ["cpu"])
    reason = "it took no step for 0 s, process 7 on there"
    assert trainings.ends(0) == [("lost", reason)] * 5 and len(cluster.ended) == 5
    assert [kind for kind in trainings.kinds(0) if kind != "started"] == ["lost"] * 4 + ["failed"]
    assert trainings.seen[-1].message == f"lost 5 times without a new state in between, the last time because {reason}"


def test_out_of_memory_is_recorded_and_retried_once_with_the_whole_device(trainings: Trainings) -> None:
    short = [("failed", [trainings.keys[0]], "memory", "out of memory (20 GiB)"), ("ended", "")]
    del trainings.groups[1]
    cluster = Script({trainings.groups[0].label: [short, short]})
    trainings.run(cluster, ["cuda", "cuda"])
    assert [share.gpus for share in cluster.shares] == [0.5, 1.0]
    assert trainings.ends(0) == [("memory", "out of memory (20 GiB)")] * 2
    assert trainings.kinds(0) == ["started", "memory", "started", "failed"]


def test_task_killed_by_ray_for_memory_gets_the_whole_node(trainings: Trainings) -> None:
    """It then has the memory of all processors and no neighbours."""
    short = [("ended", SHORT_OF_MEMORY)]
    del trainings.groups[1]
    cluster = Script({trainings.groups[0].label: [short, short]})
    threading.Timer(0.5, trainings.stop.set).start()
    trainings.run(cluster, ["cpu", "cpu"])
    assert [share.cpus for share in cluster.shares] == [1, 2, 2]
    lost = ("lost", f"{SHORT_OF_MEMORY}, process 7 on there")
    assert trainings.ends(0) == [lost, lost, ("stopped", "asked to")]


def test_cluster_with_another_token_is_not_contacted_again(
    trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Script({})

    def report(event: Event) -> None:
        trainings.seen.append(event)
        if trainings.kinds(0) == trainings.kinds(1) == ["started"]:
            cluster.refuse()

    monkeypatch.setattr(trainings, "report", report)
    with pytest.raises(EngineError, match="the Ray cluster of this test wants the token that its nodes were started"):
        trainings.run(cluster, ["cpu", "cpu"])
    lost = ("lost", "the cluster refused the token, process 7 on there")
    assert [trainings.ends(number) for number in (0, 1)] == [[lost], [lost]]


def test_node_without_access_to_the_store_stops_everything_by_name(trainings: Trainings) -> None:
    cluster = Script({trainings.groups[1].label: [[("store_refused", "s3://b: access is refused"), ("ended", "")]]})
    with pytest.raises(EngineError, match=r"node there can't use the store: s3://b: access is refused; .*`ray start`"):
        trainings.run(cluster, ["cpu", "cpu"])
    assert [trainings.ends(number) for number in (0, 1)] == [[("stopped", "asked to")], []]


def test_run_held_by_another_process_is_polled_at_the_stores_interval(
    trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    del trainings.groups[1]
    elsewhere = Leases(trainings.store, "another-host:boot:1:2:3")
    assert elsewhere.claim(*trainings.keys[:1]) is not None
    threading.Timer(0.5, trainings.stop.set).start()
    claims, leases = [], Leases(trainings.store)
    claim = type(leases).claim

    def counted(self: Any, *run_keys: str) -> Any:
        claims.append(run_keys)
        return claim(self, *run_keys)

    monkeypatch.setattr(type(leases), "claim", counted)
    trainings.run(Script({}), ["cpu"])
    assert 1 <= len(claims) <= 1 + 0.5 / trainings.store.poll_seconds
    assert trainings.kinds(0) == ["waiting"]
