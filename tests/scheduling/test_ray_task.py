"""Training of a group on a node, without Ray: its messages and rejections."""

import dataclasses
import math
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from stages.datasets.packed import PackedDataError
from stages.params.experiment import load_params
from stages.runs.object_store import ObjectStore
from stages.runs.store import RunStore, find_fault
from stages.scheduling.groups import EngineError, Group
from stages.scheduling.ray_bridge import Inbox, Resources, Shares, copy_code
from stages.scheduling.ray_task import TaskRequest, pack_files, place, train_group
from stages.scheduling.runner import compare, find_experiment
from tests.object_server import BUCKET, ObjectServer
from tests.project import EXPERIMENT, edit, make_project
from tests.test_evaluate import GUEST

pytestmark = pytest.mark.slow


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(make_project(tmp_path / "project", epochs=3))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "project"


def group_of(project: Path) -> Group:
    params = load_params()
    found = compare(find_experiment(params, EXPERIMENT), params, project / "data", RunStore(project / "data" / "store"))
    return found.groups[0]


def ask_for(group: Group, **changes: Any) -> TaskRequest:
    request = TaskRequest(group=group, published=frozenset(), device="cpu", threads=1, store=None, states={})
    return dataclasses.replace(request, **changes)


def events_of(ask: TaskRequest, packed: Any = None) -> list[tuple[Any, ...]]:
    events: list[tuple[Any, ...]] = []
    train_group(ask, lambda *event: events.append(event), packed)
    return events


def kinds(events: list[tuple[Any, ...]]) -> list[str]:
    return list(dict.fromkeys(event[0] for event in events if event[0] not in ("progress", "beat")))


def test_node_reports_start_states_and_a_complete_outcome(project: Path) -> None:
    group = group_of(project)
    events = events_of(ask_for(group))
    assert kinds(events) == ["placed", "started", "saved", "trained"]
    (outcomes,) = (event[1] for event in events if event[0] == "trained")
    assert {key: find_fault(files, key) for key, files in outcomes.items()} == {group.run_keys[0]: None}


def test_node_resumes_from_a_reported_state_to_the_same_outcome(project: Path) -> None:
    group = group_of(project)
    whole = events_of(ask_for(group))
    states = {event[1]: event[2] for event in whole if event[0] == "saved"}
    resumed = events_of(ask_for(group, states=states))
    assert len([event for event in resumed if event[0] == "progress"]) < len(
        [event for event in whole if event[0] == "progress"]
    )
    (first,), (second,) = ([e[1] for e in events if e[0] == "trained"] for events in (whole, resumed))
    key = group.run_keys[0]
    assert first[key]["weights.safetensors"] == second[key]["weights.safetensors"]


def test_what_a_network_changes_in_the_process_of_a_task_is_undone(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "guest_net.py").write_text(GUEST, encoding="utf-8")
    monkeypatch.syspath_prepend(project)
    arm = {"role": "proposed", "title": "guest", "model": {"name": "guest_net:Net"}}
    edit(project / "params" / f"{EXPERIMENT}.yaml", lambda experiment: experiment.update(arms={"guest": arm}))
    variables = dict(os.environ)
    assert kinds(events_of(ask_for(group_of(project))))[-1] == "trained"
    assert (Path.cwd(), dict(os.environ)) == (project, variables)


def test_several_devices_train_one_run_and_report_its_states(project: Path) -> None:
    """Devices are separate processes: the task reports their states, and the next task resumes from them."""

    def without_dropout(content: Any) -> None:
        for arm in content["arms"].values():
            arm["model"]["dropout"] = 0.0  # several devices reject it

    edit(project / "params" / f"{EXPERIMENT}.yaml", without_dropout)
    group = group_of(project)
    whole = events_of(ask_for(group, device="cpu+cpu"))
    assert kinds(whole) == ["placed", "started", "saved", "trained"]
    (name,) = {event[1] for event in whole if event[0] == "saved"}
    last = next(event[2] for event in reversed(whole) if event[0] == "saved")
    resumed = events_of(ask_for(group, device="cpu+cpu", states={name: last}))
    steps = [sum(event[0] == "progress" for event in events) for events in (whole, resumed)]
    assert name == f"{group.run_keys[0]}/resume.pt" and steps[1] < steps[0]
    (first,), (second,) = ([e[1] for e in events if e[0] == "trained"] for events in (whole, resumed))
    assert find_fault(first[group.run_keys[0]], group.run_keys[0]) is None
    assert [files["weights.safetensors"] for files in first.values()] == [
        files["weights.safetensors"] for files in second.values()
    ]


def test_interrupt_saves_the_state_and_stops(project: Path) -> None:
    """Ray cancels a task by an interrupt of its main thread."""
    assert threading.current_thread() is threading.main_thread()
    group, events, before = group_of(project), list[tuple[Any, ...]](), signal.getsignal(signal.SIGINT)

    def tell(*event: Any) -> None:
        events.append(event)
        if event[0] == "progress":
            os.kill(os.getpid(), signal.SIGINT)

    train_group(ask_for(group), tell, None)
    assert kinds(events) == ["placed", "started", "saved", "stopped"]
    assert signal.getsignal(signal.SIGINT) is before


def test_rejected_store_keys_are_reported_before_training(
    project: Path, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in object_server.environment.items():
        monkeypatch.setenv(name, value)
    group = dataclasses.replace(group_of(project), data=Path("nowhere"))
    ask = ask_for(group, store=ObjectStore(f"s3://{BUCKET}/keys", project / "read"))
    object_server.refuse_keys()
    try:
        events = events_of(ask)
    finally:
        object_server.refuse_keys(after=math.inf)
    assert kinds(events) == ["placed", "store_refused"] and "access is refused" in events[-1][1]


def test_code_that_differs_from_the_run_key_is_rejected_by_name(project: Path) -> None:
    group = group_of(project)
    code = dict(group.specs[0].code) | {"stages.training.loop": "0" * 16}
    events = events_of(ask_for(dataclasses.replace(group, specs=(dataclasses.replace(group.specs[0], code=code),))))
    kind, _, end, message = events[-1]
    assert (kind, end) == ("failed", "failed")
    assert "asks for other code than" in message and "(stages.training.loop): nothing is trained" in message


def test_data_are_transferred_once_and_verified(project: Path) -> None:
    group = group_of(project)
    digest, brought = group.specs[0].data_digest, list[int]()

    def packed() -> Any:
        brought.append(1)
        return pack_files(group.data)

    elsewhere = project / "not" / "here"
    assert place(group.data, digest, packed) == group.data
    kept = place(elsewhere, digest, packed)
    assert kept.name == digest and place(elsewhere, digest, packed) == kept and len(brought) == 1
    (kept / "train.safetensors").write_bytes((kept / "train.safetensors").read_bytes()[:-1])
    assert place(elsewhere, digest, packed) == kept and len(brought) == 2, "a damaged copy is fetched again"


def test_data_that_differ_from_the_run_key_are_not_trained_on(project: Path) -> None:
    group = group_of(project)
    with pytest.raises(PackedDataError, match="no packed data with digest ffffffffffff on this machine"):
        place(group.data, "f" * 64, None)
    with pytest.raises(PackedDataError, match="sent as packed data ffffffffffff has another content"):
        place(project / "nowhere", "f" * 64, lambda: pack_files(group.data))


def test_node_gets_our_code_and_the_modules_of_the_run_key(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = group_of(project).specs[0]
    copy_code([spec], tmp_path / "code")
    assert (tmp_path / "code" / "stages" / "worker.py").is_file()
    assert not list((tmp_path / "code").rglob("__pycache__"))
    monkeypatch.setattr("stages.scheduling.ray_bridge.MOST_BYTES", 1000)
    with pytest.raises(EngineError, match="MiB, but Ray uploads at most 0; the largest file is stages/"):
        copy_code([spec], tmp_path / "again")


NODES = [Resources(cpus=0, gpus=0), Resources(cpus=8, gpus=2), Resources(cpus=6, gpus=2)]


def test_all_nodes_use_the_thread_count_of_the_smallest() -> None:
    share, device, threads = Shares(["cpu", "cpu"]).of(NODES, is_alone=False)
    assert (share.cpus, device, threads) == (3, "cpu", 3)
    assert Shares(["cpu", "cpu"]).room(NODES) == 4 + 2


def test_tasks_share_a_gpu_equally_unless_memory_ran_out() -> None:
    shares = Shares(["auto", "auto"])
    assert shares.of(NODES, is_alone=False)[0].gpus == 0.5
    assert shares.of(NODES, is_alone=True)[0].gpus == 1.0


def test_gpus_that_share_a_run_are_whole_and_on_one_node() -> None:
    """Ray assigns GPUs of one node to a task and numbers them from 0."""
    shares = Shares(["cuda:2+cuda:3"] * 2)
    assert shares.of(NODES, is_alone=False) == (Resources(cpus=2, gpus=2), "cuda:0+cuda:1", 2)
    assert shares.room(NODES) == 2 + 2, "one group on each of two nodes, and two waiting"
    assert shares.lack(NODES) == ""
    asked = "a run takes 3 GPUs of one node, and no node of the cluster has more than 2: it waits for one"
    assert Shares(["cuda+cuda+cuda"]).lack(NODES) == asked
    assert "takes a GPU of one node" in Shares(["cuda"]).lack(NODES[:1]) and not Shares(["cpu"]).lack(NODES[:1])
    assert Shares(["auto+auto"]).of(NODES, is_alone=False)[1] == "cuda:0+cuda:1"
    share, device, threads = Shares(["cpu+cpu"]).of(NODES, is_alone=False)
    assert (share.cpus, device, threads) == (6, "cpu+cpu", 6), "divided between the two processes"


def test_inbox_keeps_the_newest_state_and_the_order_of_other_messages() -> None:
    inbox = Inbox()
    inbox.put(1, "saved", "a/resume.pt", b"1")
    inbox.put(2, "saved", "b/resume.pt", b"1")
    inbox.put(1, "progress", {"step": 1})
    inbox.put(1, "saved", "a/resume.pt", b"2")
    inbox.put(1, "failed", ["a"], "failed", "one")
    inbox.put(1, "failed", ["b"], "failed", "another")
    assert inbox.take() == [
        (2, "saved", "b/resume.pt", b"1"),
        (1, "progress", {"step": 1}),
        (1, "saved", "a/resume.pt", b"2"),
        (1, "failed", ["a"], "failed", "one"),
        (1, "failed", ["b"], "failed", "another"),
    ]
    assert inbox.take() == []
