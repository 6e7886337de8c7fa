"""The engine for Ray decides whom it ends, and with what share it tries again: by tasks that tell what is written here.

What real processes of a cluster do to it is in `tests/cluster`.
"""

import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from stages.runs.store import RunStore
from stages.scheduling.engine import ray_engine
from stages.scheduling.engine.groups import EngineError, Event, Group
from stages.scheduling.engine.leases import Leases
from stages.scheduling.engine.ray_bridge import SHORT_OF_MEMORY, Node, Share
from stages.scheduling.engine.ray_engine import Patience
from tests.project import bare_spec

NODE = Node(cpus=2, gpus=1, memory=10**10)


class Script:
    """A cluster of one node.  Each submitted task is placed at once and tells a beat every 20 ms, whoever listens; what
    else `told` says of the group's n-th task; then, asked to stop, that it has stopped.
    """

    name = "of this test"

    def __init__(self, told: dict[str, list[list[tuple[Any, ...]]]], *, takes_steps: bool = True) -> None:
        self._told, self._takes_steps, self._steps = told, takes_steps, 0
        self._arrived: list[tuple[Any, ...]] = []
        self._running: dict[int, Any] = {}
        self._beat = 0.0
        self.shares: list[Share] = []
        self.ended: list[int] = []

    def open(self, groups: list[Group]) -> None:
        self._arrived.append(("ready", [NODE], ""))

    def refuse(self) -> None:
        """As a cluster that was started again with another token."""
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

    def _submit(self, number: int, ask: Any, share: Share) -> None:
        self.shares.append(share)
        self._running[number] = ask
        self._arrived += [(number, "placed", "there", 7), (number, "started", 1, None)]
        for told in self._told[ask.label].pop(0) if self._told.get(ask.label) else []:
            self._arrived.append((number, *told))
            if told[0] == "ended":
                del self._running[number]

    def _cancel(self, number: int, is_forced: bool) -> None:
        ask = self._running.pop(number)
        if is_forced:
            self.ended.append(number)
        else:
            self._arrived.append((number, "stopped", [spec.run_key for spec in ask.specs], "asked to"))
        self._arrived.append((number, "ended", ""))

    def _nodes(self) -> None:
        self._arrived.append(("nodes", [NODE]))


class Trainings:
    """Two groups on such a cluster, by an engine with little patience; `seen` are its events."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        patience = Patience(silent=0.3, stuck=0.4, stopping=5, unreachable=5)
        monkeypatch.setattr(ray_engine, "PATIENCE", patience)
        self.store, self.seen, self.stop = RunStore(folder), list[Event](), threading.Event()
        self.groups = [Group(label=f"a x.{seed}", specs=(bare_spec(seed),), data=folder) for seed in (0, 1)]
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


def test_nobody_is_silent_while_the_engine_waits_for_a_store(
    trainings: Trainings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal, an outcome or a claim may keep it waiting for longer than a task may be silent."""
    cluster = Script({trainings.groups[0].label: [[("progress", {"step": 1})]]})

    def report(event: Event) -> None:
        trainings.seen.append(event)
        if event.kind == "progress":
            time.sleep(0.6)  # a store that is away
            threading.Timer(0.3, trainings.stop.set).start()

    monkeypatch.setattr(trainings, "report", report)
    trainings.run(cluster, ["cpu", "cpu"])
    assert cluster.ended == []
    assert [trainings.ends(number) for number in (0, 1)] == [[("stopped", "asked to")]] * 2


def test_a_task_that_lives_and_takes_no_step_is_ended_and_follows_itself_five_times(trainings: Trainings) -> None:
    """The thread that tells its beats goes on whatever the training does."""
    del trainings.groups[1]
    cluster = Script({}, takes_steps=False)
    trainings.run(cluster, ["cpu"])
    reason = "it took no step for 0 s, process 7 on there"
    assert trainings.ends(0) == [("lost", reason)] * 5 and len(cluster.ended) == 5
    assert [kind for kind in trainings.kinds(0) if kind != "started"] == ["lost"] * 4 + ["failed"]
    assert trainings.seen[-1].message == f"lost 5 times without a new state in between, the last time because {reason}"


def test_want_of_memory_is_noted_and_tried_once_more_with_the_whole_device(trainings: Trainings) -> None:
    short = [("failed", [trainings.keys[0]], "memory", "out of memory (20 GiB)"), ("ended", "")]
    del trainings.groups[1]
    cluster = Script({trainings.groups[0].label: [short, short]})
    trainings.run(cluster, ["cuda", "cuda"])
    assert [share.gpus for share in cluster.shares] == [0.5, 1.0]
    assert trainings.ends(0) == [("memory", "out of memory (20 GiB)")] * 2
    assert trainings.kinds(0) == ["started", "memory", "started", "failed"]


def test_a_task_that_ray_ended_for_want_of_memory_gets_the_whole_node(trainings: Trainings) -> None:
    """It has the memory of all processors, and no neighbour that takes some of it."""
    short = [("ended", SHORT_OF_MEMORY)]
    del trainings.groups[1]
    cluster = Script({trainings.groups[0].label: [short, short]})
    threading.Timer(0.5, trainings.stop.set).start()
    trainings.run(cluster, ["cpu", "cpu"])
    assert [share.cpus for share in cluster.shares] == [1, 2, 2]
    lost = ("lost", f"{SHORT_OF_MEMORY}, process 7 on there")
    assert trainings.ends(0) == [lost, lost, ("stopped", "asked to")]


def test_a_cluster_that_wants_another_token_is_not_asked_again(
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


def test_a_node_that_cant_use_the_store_stops_all_and_is_named(trainings: Trainings) -> None:
    cluster = Script({trainings.groups[1].label: [[("shut_out", "s3://b: access is refused"), ("ended", "")]]})
    with pytest.raises(EngineError, match=r"node there can't use the store: s3://b: access is refused; .*`ray start`"):
        trainings.run(cluster, ["cpu", "cpu"])
    assert [trainings.ends(number) for number in (0, 1)] == [[("stopped", "asked to")], []]


def test_a_run_that_another_process_trains_is_asked_for_as_seldom_as_its_store_says(
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
