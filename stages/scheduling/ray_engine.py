"""Trains groups of runs on a Ray cluster, one task per group; Ray places the tasks, this module watches and retries.

This process holds the leases, keeps the states that nodes save unless they reach the store by URL, and publishes.  Ray
runs each task once.  If a task is lost with its process, its node or the whole cluster, it is submitted again and
resumes from its last state.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from stages.faults import describe_fault
from stages.runs.object_store import ObjectStore
from stages.runs.store import End, RunStore, Store
from stages.scheduling.groups import EngineError, Event, Group, Report, TrainingsKilled
from stages.scheduling.leases import Lease, LeaseLost, Leases, check, claim_group, describe_failure, publish
from stages.scheduling.ray_bridge import LOST, SHORT_OF_MEMORY, Cluster, Resources, Shares
from stages.scheduling.ray_task import TaskRequest

_TICK_SECONDS = 0.1
_MOST_LOSSES = 5
"""Losses in a row, without a newly saved state in between, after which the group counts as failed."""


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Longest time in seconds that a task may send nothing (`silent`) or take no step while it lives (`stuck`), that a
    stop may take (`stopping`), and that the cluster may be out of reach (`unreachable`).

    A task that compiles takes no step, so it may also take 20 times as long as its longest step so far.
    """

    silent: float = 60.0
    stuck: float = 900.0
    stopping: float = 120.0
    unreachable: float = 600.0


TIMEOUTS = Timeouts()


def run_groups(
    groups: Sequence[Group], store: Store, devices: Sequence[str], report: Report, stop: threading.Event
) -> bool:
    """Train all groups on the cluster that `RAY_ADDRESS` names, or on one that is started on this machine.

    `devices` says where on a node: `cpu`, `cuda` or `auto`; a name listed twice means two tasks on each device.
    Devices that train one run together (`cuda:0+cuda:1`) are as many devices of one node, whatever their numbers.

    Returns whether every group has its outcome in the store.
    """
    if groups:
        with Cluster() as cluster:
            _Engine(cluster, store, devices, report, stop, deque(groups)).run()
    return all(group.is_published(store) for group in groups)


@dataclass
class _Task:
    """A group that was submitted; times are monotonic."""

    number: int
    group: Group
    lease: Lease
    lease_lost: threading.Event
    kept_alive: ExitStack
    is_alone: bool
    heard: float = 0.0
    stepped: float = 0.0
    longest_step: float = 0.0
    steps: int = -1
    device: str = ""
    node: str = ""
    process: str = ""
    cancelled: float | None = None
    killed: str = ""


class _Engine:
    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        devices: Sequence[str],
        report: Report,
        stop: threading.Event,
        waiting: deque[Group],
    ) -> None:
        self.cluster, self.store, self.report, self.stop = cluster, store, report, stop
        self.waiting, self.leases = waiting, Leases(store)
        self.shares = Shares(devices)
        self.tasks: dict[int, _Task] = {}
        self.losses: dict[str, int] = {}
        self.alone: set[str] = set()  # labels of groups that train again, alone on their device
        self.holders: dict[str, str] = {}
        self.number = 0
        self.nodes: list[Resources] | None = None
        self.dashboard, self.printed, self.store_refused = "", "", ""
        self.reached = self.listened = time.monotonic()
        self.nodes_requested = self.claims_from = 0.0

    def run(self) -> None:
        self.cluster.open([*self.waiting])
        pause = 1.0
        try:
            while self.tasks or (self.waiting and not self.is_stopping):
                try:
                    self._step()
                    pause = 1.0 if self.nodes is not None else pause
                except ConnectionError as error:
                    self._lose_all(f"{error} ({self.cluster.name})")
                    self._print_once(f"{error}; retrying for up to {TIMEOUTS.unreachable:.0f} s")
                    if time.monotonic() - self.reached > TIMEOUTS.unreachable:
                        raise TrainingsKilled(
                            f"the Ray cluster {self.cluster.name} can't be reached for {TIMEOUTS.unreachable:.0f} s "
                            f"({error}); finished trainings are in the store, and the next run resumes from there"
                        ) from None
                    self.stop.wait(pause)
                    pause = min(30.0, 2 * pause)
                    self.cluster.open([*self.waiting])
        finally:
            for task in self.tasks.values():
                task.kept_alive.close()
        if self.store_refused:
            raise EngineError(self.store_refused)

    @property
    def is_stopping(self) -> bool:
        return self.stop.is_set() or bool(self.store_refused)

    def _print_once(self, message: str) -> None:
        if message != self.printed:
            self.printed = message
            print(message, file=sys.stderr)

    def _report(self, task: _Task, kind: Any, message: str = "", **details: Any) -> None:
        self.report(Event(kind=kind, label=task.group.label, message=message, **details))

    def _step(self) -> None:
        """Handle received messages, submit groups if there is room, and cancel tasks that have to end."""
        messages = self.cluster.receive(_TICK_SECONDS)
        self.listened = time.monotonic()
        for message in messages:
            if message[0] == "refused":
                self._lose_all("the cluster refused the token")
                raise EngineError(
                    f"the Ray cluster {self.cluster.name} wants the token that its nodes were started with, in "
                    "RAY_AUTH_TOKEN or ~/.ray/auth_token, and RAY_AUTH_MODE=token"
                )
            if message[0] == "lost":
                raise ConnectionError(f"{LOST}: {message[1]}")
            self.reached = time.monotonic()
            if message[0] == "ready":
                _, self.nodes, self.dashboard = message
            elif message[0] == "nodes":
                self.nodes = message[1]
            elif task := self.tasks.get(message[0]):
                task.heard = time.monotonic()
                _, kind, *payload = message
                getattr(self, f"_on_{kind}")(task, *payload)
        if self.nodes is not None:
            self._submit_more(self.nodes)
            now = time.monotonic()
            for task in self.tasks.values():  # not silent while this process didn't listen because of a slow store
                task.heard = min(now, task.heard + now - self.listened)
                task.stepped = min(now, task.stepped + now - self.listened)
            self._watch()

    def _submit_more(self, nodes: Sequence[Resources]) -> None:
        if time.monotonic() < self.claims_from:
            return
        if self.waiting and (lack := self.shares.lack(nodes)):
            self._print_once(lack)
        elsewhere = []
        while self.waiting and not self.is_stopping and len(self.tasks) < self.shares.room(nodes):
            group = self.waiting.popleft()
            if not self._submit(group, nodes):
                elsewhere.append(group)
        if elsewhere:
            self.waiting.extend(elsewhere)
            self.claims_from = time.monotonic() + self.store.poll_seconds

    def _submit(self, group: Group, nodes: Sequence[Resources]) -> bool:
        """Claim a group and submit it; return False if another process holds it."""
        if group.is_published(self.store):
            self.report(Event(kind="elsewhere", label=group.label))
            return True
        lease = claim_group(group, self.leases, self.holders, self.report)
        if lease is None:
            return False
        kept_alive = ExitStack()
        lease_lost = kept_alive.enter_context(self.leases.kept_alive(lease))
        self.number += 1
        task = _Task(self.number, group, lease, lease_lost, kept_alive, group.label in self.alone)
        self.tasks[task.number] = task
        share, task.device, threads = self.shares.of(nodes, is_alone=task.is_alone)
        names = group.states if isinstance(self.store, RunStore) else []
        states = {name: self.store.scratch.load(name) for name in names}
        request = TaskRequest(
            group=replace(group, data=group.data.absolute()),
            published=frozenset(key for key in group.run_keys if self.store.has(key)),
            device=task.device,
            threads=threads,
            store=self.store if isinstance(self.store, ObjectStore) else None,
            states={name: content for name, content in states.items() if content is not None},
        )
        self.cluster.send("submit", task.number, request, share)
        return True

    def _on_placed(self, task: _Task, host: str, pid: int) -> None:
        task.node, task.process = host, f"process {pid} on {host}"
        task.stepped = task.heard

    def _on_store_refused(self, task: _Task, message: str) -> None:
        """Stop all trainings: every group that Ray places on this node would fail there."""
        self.leases.close(task.lease, None)
        self.store_refused = (
            f"node {task.node} can't use the store: {message}; a node has the environment of its `ray start`: export "
            f"the keys on {task.node}, then `ray stop` and `ray start` there again"
        )

    def _on_started(self, task: _Task, runs: int) -> None:
        self._report(task, "started", runs=runs, device=task.device, node=task.node, dashboard=self.dashboard)

    def _on_beat(self, task: _Task, steps: int) -> None:
        if steps != task.steps:
            task.longest_step = max(task.longest_step, task.heard - task.stepped)
            task.steps, task.stepped = steps, task.heard

    def _on_progress(self, task: _Task, progress: dict[str, Any]) -> None:
        task.stepped = task.heard
        self._report(task, "progress", progress=progress)

    def _on_saved(self, task: _Task, name: str, content: bytes) -> None:
        if task.lease_lost.is_set():
            return
        try:
            self.store.scratch.save(name, content)
        except OSError as error:  # a full disk: training continues, and a later state may be saved
            print(f"{task.group.label}: its state can't be saved now ({describe_fault(error)})", file=sys.stderr)
        else:
            self.losses.pop(task.group.label, None)

    def _on_dropped(self, task: _Task, work: str) -> None:
        self.store.scratch.drop(work)

    def _on_trained(self, task: _Task, outcomes: Mapping[str, Mapping[str, bytes]], work: str) -> None:
        try:
            check(outcomes, task.lease)
            publish(outcomes, work, task.lease, self.leases, self.store)
        except LeaseLost as taken_over:
            self._report(task, "elsewhere", str(taken_over))
        except Exception as error:  # noqa: BLE001  (one run's fault must not stop the others; it is reported)
            self._fail(task, [*outcomes], *describe_failure(error))
        else:
            self._report(task, "finished")

    def _on_stopped(self, task: _Task, keys: list[str], message: str) -> None:
        if task.lease_lost.is_set():
            self._report(task, "elsewhere", "(taken over)")
        else:
            self.leases.close(task.lease, "stopped", message, keys)
            self._report(task, "stopped", message)

    def _on_failed(self, task: _Task, keys: list[str], end: End, message: str) -> None:
        if end == "memory" and not task.is_alone:
            self.alone.add(task.group.label)
            self.leases.close(task.lease, end, message, keys)
            self._report(task, "memory", message)
        else:
            self._fail(task, keys, end, message)

    def _fail(self, task: _Task, keys: Sequence[str], end: End, message: str) -> None:
        self.leases.close(task.lease, end, message.strip().splitlines()[-1], keys)
        self._report(task, "failed", message)

    def _on_ended(self, task: _Task, reason: str) -> None:
        """Handle the end of a task, which returned or whose process is gone."""
        if reason == SHORT_OF_MEMORY:
            self.alone.add(task.group.label)
        if task.killed or (reason and task.cancelled is None):
            self._lose(task, task.killed or reason)
            return
        if not task.process:
            self.leases.close(task.lease, None)  # it never began
        self._forget(task)
        if task.lease_lost.is_set() or (task.group.label in self.alone and not task.is_alone):
            self.waiting.appendleft(task.group)

    def _lose(self, task: _Task, reason: str) -> None:
        group, where = task.group, f", {task.process}" if task.process else ""
        if group.is_published(self.store):  # it had sent everything
            self._forget(task)
            return
        self.leases.close(task.lease, "lost" if task.process else None, f"{reason}{where}")
        self._forget(task)
        self.losses[group.label] = self.losses.get(group.label, 0) + 1
        if self.losses[group.label] >= _MOST_LOSSES:
            message = f"lost {_MOST_LOSSES} times without a new state in between, the last time because {reason}{where}"
            self._report(task, "failed", message)
        else:
            self._report(task, "lost", f"{reason}{where}")
            self.waiting.appendleft(group)

    def _lose_all(self, reason: str) -> None:
        for task in [*self.tasks.values()]:
            self.losses.pop(task.group.label, None)  # not the group's fault
            self._lose(task, reason)
        self.nodes = None

    def _forget(self, task: _Task) -> None:
        del self.tasks[task.number]
        task.kept_alive.close()

    def _watch(self) -> None:
        now = time.monotonic()
        if now - self.nodes_requested > 5.0:
            self.nodes_requested = now
            self.cluster.send("nodes")
        for task in [*self.tasks.values()]:
            if (self.is_stopping or task.lease_lost.is_set()) and task.cancelled is None:
                task.cancelled = now
                self.cluster.send("cancel", task.number, False)
            if task.killed or not task.process:
                continue
            if task.cancelled is not None and now - task.cancelled > TIMEOUTS.stopping:
                task.killed = f"it didn't stop within {TIMEOUTS.stopping:.0f} s"
            elif now - task.heard > TIMEOUTS.silent:
                task.killed = f"no heartbeat for {TIMEOUTS.silent:.0f} s"
            elif now - task.stepped > (limit := max(TIMEOUTS.stuck, 20 * task.longest_step)):
                task.killed = f"it took no step for {limit:.0f} s"
            if task.killed:
                self.cluster.send("cancel", task.number, True)
