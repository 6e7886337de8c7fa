"""Trains groups of runs on a Ray cluster: one task a group, placed by Ray, watched and counted here.

This process holds the leases, keeps the states that nodes save unless they reach the store by URL, and publishes.  Ray
is told to run each task once.  What is lost with its process, its node or the whole cluster is submitted again and goes
on from its last state.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from stages.faults import describe_fault
from stages.runs.object_store import ObjectStore
from stages.runs.store import STATE, RunStore, Store, stack_id
from stages.scheduling.engine.groups import EngineError, Event, Group, Report, TrainingsKilled
from stages.scheduling.engine.leases import End, Lease, LeaseLost, Leases, describe_failure, publish
from stages.scheduling.engine.ray_bridge import LOST, SHORT_OF_MEMORY, Cluster, Node, Shares
from stages.scheduling.engine.ray_task import TaskRequest

_TICK_SECONDS = 0.1
_MOST_LOSSES = 5
"""In a row, without a newly saved state in between: it isn't the cluster then."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Longest time that a task may send nothing (`silent`), or take no step while it lives (`stuck`: one may compile;
    at least 20 times the longest so far), how long a stop may take, and how long the cluster may be out of reach.
    """

    silent: float = 60.0
    stuck: float = 900.0
    stopping: float = 120.0
    unreachable: float = 600.0


PATIENCE = Patience()


def run_groups(
    groups: Sequence[Group], store: Store, devices: Sequence[str], report: Report, stop: threading.Event
) -> bool:
    """Train all groups on the cluster that `RAY_ADDRESS` names, else on one that is started on this machine.

    `devices` says where on a node: `cpu`, `cuda`, or `auto`; a name twice, two tasks on each.  Several that train one
    run together (`cuda:0+cuda:1`) are as many of a node, whatever their numbers.

    Returns whether every group has its outcome in the store.
    """
    if groups:
        with Cluster() as cluster:
            _Engine(cluster, store, devices, report, stop, deque(groups)).run()
    return all(group.is_published(store) for group in groups)


@dataclass
class _Flight:
    """A group that was submitted."""

    group: Group
    lease: Lease
    lost: threading.Event
    kept: ExitStack
    is_alone: bool
    submitted: float
    heard: float = 0.0
    stepped: float = 0.0
    longest: float = 0.0
    steps: int = -1
    device: str = ""
    node: str = ""
    host: str = ""
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
        self.flying: dict[int, _Flight] = {}
        self.losses: dict[str, int] = {}
        self.alone: set[str] = set()
        self.told: dict[str, str] = {}
        self.number = 0
        self.reached = time.monotonic()
        self.nodes: list[Node] | None = None
        self.dashboard, self.said, self.shut_out = "", "", ""
        self.asked, self.listened, self.claims_from = 0.0, time.monotonic(), 0.0

    def run(self) -> None:
        self.cluster.open([*self.waiting])
        pause = 1.0
        try:
            while self.flying or (self.waiting and not self.is_stopping):
                try:
                    self._turn()
                    pause = 1.0 if self.nodes is not None else pause
                except ConnectionError as error:
                    self._lose_all(f"{error} ({self.cluster.name})")
                    self._say_once(f"{error}; it is tried for up to {PATIENCE.unreachable:.0f} s")
                    if time.monotonic() - self.reached > PATIENCE.unreachable:
                        raise TrainingsKilled(
                            f"the Ray cluster {self.cluster.name} can't be reached for {PATIENCE.unreachable:.0f} s "
                            f"({error}); finished trainings are in the store, and the next run resumes from there"
                        ) from None
                    self.stop.wait(pause)
                    pause = min(30.0, 2 * pause)
                    self.cluster.open([*self.waiting])
        finally:
            for flight in self.flying.values():
                flight.kept.close()
        if self.shut_out:
            raise EngineError(self.shut_out)

    @property
    def is_stopping(self) -> bool:
        return self.stop.is_set() or bool(self.shut_out)

    def _say_once(self, message: str) -> None:
        if message != self.said:
            self.said = message
            print(message, file=sys.stderr)

    def _turn(self) -> None:
        """Take in what was told, submit what there is room for, look who has to be cancelled."""
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
            elif flight := self.flying.get(message[0]):
                flight.heard = time.monotonic()
                number, kind, *payload = message
                getattr(self, f"_on_{kind}")(number, flight, *payload)
        if self.nodes is not None:
            self._submit_more()
            now = time.monotonic()
            for flight in self.flying.values():  # not silent while this process didn't listen, as a store kept it busy
                flight.heard = min(now, flight.heard + now - self.listened)
                flight.stepped = min(now, flight.stepped + now - self.listened)
            self._watch()

    def _submit_more(self) -> None:
        assert self.nodes is not None, "the caller has looked"
        if time.monotonic() < self.claims_from:
            return
        if self.waiting and (lack := self.shares.lack(self.nodes)):
            self._say_once(lack)
        elsewhere = []
        while self.waiting and not self.is_stopping and len(self.flying) < self.shares.room(self.nodes):
            group = self.waiting.popleft()
            if not self._submit(group):
                elsewhere.append(group)
        if elsewhere:
            self.waiting.extend(elsewhere)
            self.claims_from = time.monotonic() + self.store.poll_seconds

    def _submit(self, group: Group) -> bool:
        """Claim a group and submit it; False if another process holds it."""
        if group.is_published(self.store):
            self.report(Event(kind="elsewhere", label=group.label))
            return True
        lease = self.leases.claim(*group.run_keys)
        if lease is None:
            holder = self.leases.holder(*group.run_keys)
            if holder is not None and self.told.get(group.label) != holder.owner:
                self.told[group.label] = holder.owner
                self.report(Event(kind="waiting", label=group.label, message=str(holder), owner=holder.owner))
            return False
        kept = ExitStack()
        lost = kept.enter_context(self.leases.kept_alive(lease))
        self.number += 1
        published = frozenset(key for key in group.run_keys if self.store.has(key))
        is_alone = group.label in self.alone
        flight = _Flight(group, lease, lost, kept, is_alone, time.monotonic())
        self.flying[self.number] = flight
        share, flight.device, threads = self.shares.of(group, self.nodes or [], is_alone=is_alone)
        works = [*group.run_keys, *([stack_id(group.specs)] if group.is_stack else [])]
        names = [f"{work}/{STATE}" for work in works] if isinstance(self.store, RunStore) else []
        states = {name: self.store.scratch.load(name) for name in names}
        ask = TaskRequest(
            label=group.label,
            specs=group.specs,
            is_stack=group.is_stack,
            published=published,
            data=group.data.absolute(),
            device=flight.device,
            threads=threads,
            store=self.store if isinstance(self.store, ObjectStore) else None,
            states={name: content for name, content in states.items() if content is not None},
        )
        self.cluster.send("submit", self.number, ask, share)
        return True

    def _on_placed(self, number: int, flight: _Flight, host: str, pid: int) -> None:
        flight.node, flight.host = host, f"process {pid} on {host}"
        flight.stepped = flight.heard

    def _on_shut_out(self, number: int, flight: _Flight, message: str) -> None:
        """Stop all trainings: every group that Ray places on this node would fail there."""
        self.leases.close(flight.lease, None)
        self.shut_out = (
            f"node {flight.node} can't use the store: {message}; a node has the environment of its `ray start`: export "
            f"the keys on {flight.node}, then `ray stop` and `ray start` there again"
        )

    def _on_started(self, number: int, flight: _Flight, runs: int, device_bytes: int | None) -> None:
        self.shares.learn_device(device_bytes)
        self.report(
            Event(
                kind="started",
                label=flight.group.label,
                runs=runs,
                device=flight.device,
                node=flight.node,
                dashboard=self.dashboard,
            )
        )

    def _on_beat(self, number: int, flight: _Flight, steps: int) -> None:
        if steps != flight.steps:
            flight.longest = max(flight.longest, flight.heard - flight.stepped)
            flight.steps, flight.stepped = steps, flight.heard

    def _on_progress(self, number: int, flight: _Flight, progress: dict[str, Any]) -> None:
        flight.stepped = flight.heard
        self.report(Event(kind="progress", label=flight.group.label, progress=progress))

    def _on_saved(self, number: int, flight: _Flight, name: str, content: bytes) -> None:
        if flight.lost.is_set():
            return
        try:
            self.store.scratch.save(name, content)
        except OSError as error:  # a full disk: it trains on, and a later state may find room
            print(f"{flight.group.label}: its state isn't kept now ({describe_fault(error)})", file=sys.stderr)
        else:
            self.losses.pop(flight.group.label, None)

    def _on_dropped(self, number: int, flight: _Flight, work: str) -> None:
        self.store.scratch.drop(work)

    def _on_trained(self, number: int, flight: _Flight, outcomes: Mapping[str, Mapping[str, bytes]], work: str) -> None:
        label = flight.group.label
        try:
            publish(outcomes, work, flight.lease, self.leases, self.store)
        except LeaseLost as taken_over:
            self.report(Event(kind="elsewhere", label=label, message=str(taken_over)))
        except Exception as error:  # noqa: BLE001  (one run's fault must not hold up the rest; the report tells it)
            self._fail(flight, [*outcomes], *describe_failure(error))
        else:
            self.shares.learn(flight.group, outcomes)
            self.report(Event(kind="finished", label=label))

    def _on_stopped(self, number: int, flight: _Flight, keys: list[str], message: str) -> None:
        if flight.lost.is_set():
            self.report(Event(kind="elsewhere", label=flight.group.label, message="(taken over)"))
        else:
            self.leases.close(flight.lease, "stopped", message, keys)
            self.report(Event(kind="stopped", label=flight.group.label, message=message))

    def _on_failed(self, number: int, flight: _Flight, keys: list[str], end: End, message: str) -> None:
        if end == "memory" and not flight.is_alone:
            self.alone.add(flight.group.label)
            self.leases.close(flight.lease, end, message, keys)
            self.report(Event(kind="memory", label=flight.group.label, message=message))
        else:
            self._fail(flight, keys, end, message)

    def _fail(self, flight: _Flight, keys: Sequence[str], end: End, message: str) -> None:
        self.leases.close(flight.lease, end, message.strip().splitlines()[-1], keys)
        self.report(Event(kind="failed", label=flight.group.label, message=message))

    def _on_ended(self, number: int, flight: _Flight, reason: str) -> None:
        """The task is over: by itself, or with its process."""
        if reason == SHORT_OF_MEMORY:
            self.alone.add(flight.group.label)
        if flight.killed or (reason and flight.cancelled is None):
            self._lose(number, flight, flight.killed or reason)
            return
        if not flight.host:
            self.leases.close(flight.lease, None)  # it never began
        self._land(number, flight)
        if flight.lost.is_set() or (flight.group.label in self.alone and not flight.is_alone):
            self.waiting.appendleft(flight.group)

    def _lose(self, number: int, flight: _Flight, reason: str) -> None:
        group, where = flight.group, f", {flight.host}" if flight.host else ""
        if group.is_published(self.store):  # it had told all
            self._land(number, flight)
            return
        self.leases.close(flight.lease, "lost" if flight.host else None, f"{reason}{where}")
        self._land(number, flight)
        self.losses[group.label] = self.losses.get(group.label, 0) + 1
        if self.losses[group.label] >= _MOST_LOSSES:
            message = f"lost {_MOST_LOSSES} times without a new state in between, the last time because {reason}{where}"
            self.report(Event(kind="failed", label=group.label, message=message))
        else:
            self.report(Event(kind="lost", label=group.label, message=f"{reason}{where}"))
            self.waiting.appendleft(group)

    def _lose_all(self, reason: str) -> None:
        for number, flight in [*self.flying.items()]:
            self.losses.pop(flight.group.label, None)  # no fault of the group
            self._lose(number, flight, reason)
        self.nodes = None

    def _land(self, number: int, flight: _Flight) -> None:
        del self.flying[number]
        flight.kept.close()

    def _watch(self) -> None:
        now = time.monotonic()
        if now - self.asked > 5.0:
            self.asked = now
            self.cluster.send("nodes")
        for number, flight in [*self.flying.items()]:
            if (self.is_stopping or flight.lost.is_set()) and flight.cancelled is None:
                flight.cancelled = now
                self.cluster.send("cancel", number, False)
            if flight.killed or not flight.host:
                continue
            if flight.cancelled is not None and now - flight.cancelled > PATIENCE.stopping:
                self._kill(number, flight, f"it didn't stop within {PATIENCE.stopping:.0f} s")
            elif now - flight.heard > PATIENCE.silent:
                self._kill(number, flight, f"no sign of life for {PATIENCE.silent:.0f} s")
            elif now - flight.stepped > (limit := max(PATIENCE.stuck, 20 * flight.longest)):
                self._kill(number, flight, f"it took no step for {limit:.0f} s")

    def _kill(self, number: int, flight: _Flight, reason: str) -> None:
        flight.killed = reason
        self.cluster.send("cancel", number, True)
