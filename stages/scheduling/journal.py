"""Progress of an engine's trainings, readable from another process or machine.

Each process that trains writes one small document to the scratch of its store, at most every few seconds and once at
the end.  It has the engine's last events.  Whether a group is still training, only its lease shows (`watch`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from statistics import fmean
from types import TracebackType
from typing import Literal

from stages.faults import FAULTS, describe_fault
from stages.runs.store import Scratch, Store
from stages.scheduling.groups import Event, Group
from stages.scheduling.leases import EXPIRY_SECONDS, Leases, is_gone, process_identity

PREFIX = "progress-"
_FILE = "progress.json"
_EVERY_SECONDS = 5.0
_KEPT = 20
"""Number of documents kept of processes that have ended."""

State = Literal["waiting", "running", "done", "failed", "stopped", "lost"]
_AFTER: Mapping[str, State] = {
    "lost": "waiting",
    "memory": "waiting",
    "started": "running",
    "progress": "running",
    "finished": "done",
    "elsewhere": "done",
    "stopped": "stopped",
    "failed": "failed",
}
"""State of a group after an event.  An engine trains a lost group again; without an engine, it stays lost."""


@dataclass(kw_only=True)
class GroupState:
    """A group after its engine's last event; times are in seconds since 1970.

    `runs` has the labels `<experiment>.<arm>.<replicate>`.  `share` is the part of its steps that is done; if its runs
    train one after another, it is that of the current run.
    """

    label: str
    experiment: str
    runs: list[str]
    run_keys: list[str]
    state: State = "waiting"
    node: str = ""
    device: str = ""
    share: float = 0.0
    epoch: int = 0
    epochs: int = 0
    samples_per_second: float = 0.0
    began: float | None = None
    ended: float | None = None
    message: str = ""


@dataclass(kw_only=True)
class TrainerStatus:
    """A process that trains; `ended` is None until it ends.

    `held` counts the wanted runs of each experiment that already had an outcome.
    """

    owner: str
    node: str
    engine: str
    profile: str
    slots: int
    began: float
    updated: float
    held: dict[str, int]
    groups: list[GroupState]
    ended: float | None = None
    dashboard: str = ""


def read_sessions(scratch: Scratch) -> Iterator[tuple[str, TrainerStatus]]:
    """Yield every document with its name in the scratch, except those of other versions."""
    for work in scratch.list_works(PREFIX):
        content = scratch.load(f"{work}/{_FILE}")
        with suppress(ValueError, TypeError, KeyError):
            fields = json.loads(content or b"")
            yield work, TrainerStatus(**fields | {"groups": [GroupState(**group) for group in fields["groups"]]})


class Journal:
    """Context manager; call `report` with every event of the engine."""

    def __init__(
        self,
        store: Store,
        groups: Sequence[Group],
        names: Mapping[str, str],
        *,
        engine: str,
        profile: str,
        slots: int,
        held: Mapping[str, int],
    ) -> None:
        """`names` has the label `<experiment>.<arm>.<replicate>` of each wanted run, by its key."""
        now, owner = time.time(), process_identity(os.getpid())
        self._scratch, self._next, self._fault = store.scratch, 0.0, ""
        self._work = f"{PREFIX}{owner.replace(':', '-').replace('/', '-')}-{time.monotonic_ns()}"
        self._groups = dict[str, GroupState]()
        for group in groups:
            experiment, keys = group.label.partition(" ")[0], list(group.run_keys)
            runs = [names.get(run_key, run_key[:12]) for run_key in keys]
            self._groups[group.label] = GroupState(label=group.label, experiment=experiment, runs=runs, run_keys=keys)
        self.session = TrainerStatus(
            owner=owner,
            node=socket.gethostname(),
            engine=engine,
            profile=profile,
            slots=slots,
            began=now,
            updated=now,
            held=dict(held),
            groups=list(self._groups.values()),
        )

    def __enter__(self) -> Journal:
        if self._groups:
            with suppress(*FAULTS):
                ended = [(session.updated, work) for work, session in read_sessions(self._scratch) if session.ended]
                for _, work in sorted(ended)[:-_KEPT]:
                    self._scratch.drop(work)
            self._write()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.session.ended = time.time()
        if self._groups:
            self._write()
        if self._fault and error is None:  # otherwise, the exception explains it
            print(f"progress couldn't be written for `claimcheck status`: {self._fault}", file=sys.stderr)

    def report(self, event: Event) -> None:
        """Record an event; progress is written at most every few seconds, everything else at once."""
        group = self._groups.get(event.label)
        if group is None:
            return
        if event.kind == "waiting":
            group.message = f"waits for {event.message}"
        elif event.kind in _AFTER:
            group.state, group.message = _AFTER[event.kind], event.message.strip().rpartition("\n")[2]
            group.node = event.node or group.node
            self.session.dashboard = event.dashboard or self.session.dashboard
            if event.kind == "started":
                group.began, group.device = time.time(), event.device
            elif event.progress is not None:
                progress = event.progress
                group.share = progress["step"] / progress["total_steps"]
                group.epoch, group.epochs = progress["epoch"], progress["epochs"]
                group.samples_per_second = progress["samples_per_second"]
                group.ended = None
            else:
                group.ended = time.time()
        if time.monotonic() >= self._next or event.kind not in ("waiting", "progress"):
            self._write()

    def _write(self) -> None:
        """Write the document; a store that fails doesn't stop the training."""
        self._next, self.session.updated = time.monotonic() + _EVERY_SECONDS, time.time()
        try:
            self._scratch.save(f"{self._work}/{_FILE}", json.dumps(asdict(self.session)).encode())
        except FAULTS as error:
            self._fault = describe_fault(error)


RECENT_SECONDS = 3600.0
"""Trainings that ended longer ago are shown only if there are no later ones."""
_STATES: tuple[State, ...] = ("waiting", "running", "done", "failed", "stopped", "lost")


@dataclass(kw_only=True)
class ProgressRow:
    """Number of runs of one experiment on one node ("": not placed yet), by state.

    `seconds` is the device time spent, `left_seconds` the time expected for the rest, judged by the other groups.
    `usd` and `left_usd` are their price.  A number is None if the duration or the device's price is unknown.
    """

    experiment: str
    node: str
    runs: dict[State, int] = field(default_factory=lambda: dict.fromkeys(_STATES, 0))
    samples_per_second: float = 0.0
    seconds: float = 0.0
    left_seconds: float | None = 0.0
    usd: float | None = 0.0
    left_usd: float | None = 0.0


@dataclass(frozen=True, kw_only=True)
class Watched:
    """The `sessions` that train, or trained last, and their `rows`.

    `finished` has the labels of the runs that they trained, and `failed` the groups that failed or were lost and have
    not been trained since.  `left_seconds` is the time until all sessions end, None if it is unknown.
    """

    sessions: Sequence[TrainerStatus]
    rows: Sequence[ProgressRow]
    finished: Sequence[str]
    left_seconds: float | None
    failed: Sequence[GroupState] = ()

    @property
    def is_live(self) -> bool:
        return any(session.ended is None for session in self.sessions)


def watch(store: Store, usd_per_hour: Mapping[str, float], now: float, experiments: Sequence[str] = ()) -> Watched:
    """Read the store's journals of these experiments, or of all, at `now` (seconds since 1970).

    `usd_per_hour` has the price by kind of device.
    """
    written = [session for _, session in read_sessions(store.scratch)]
    if not written:
        return Watched(sessions=(), rows=(), finished=(), left_seconds=None)
    leases = Leases(store)
    confirmed = sorted((_confirm(session, leases, now) for session in written), key=lambda session: session.began)
    recent = [session for session in confirmed if session.ended is None or now - session.ended < RECENT_SECONDS]
    sessions = recent or confirmed[-1:]
    for session in sessions:
        session.groups = [one for one in session.groups if not experiments or one.experiment in experiments]
    # If several processes had the same group, a running one counts, then a finished one, then the latest.
    latest: dict[frozenset[str], tuple[tuple[bool, bool, float], TrainerStatus, GroupState]] = {}
    for session in sessions:
        for group in session.groups:
            key, rank = frozenset(group.run_keys), (group.state == "running", group.state == "done", session.began)
            if key not in latest or rank >= latest[key][0]:
                latest[key] = rank, session, group
    current = [(session, group) for _, session, group in latest.values()]
    means = _group_seconds([group for _, group in current], now)
    rows: dict[tuple[str, str], ProgressRow] = {}
    for session, group in current:
        node = group.node or (session.node if session.engine == "local" else "")
        row = rows.setdefault((group.experiment, node), ProgressRow(experiment=group.experiment, node=node))
        # A waiting group will train on the same kind of device as the others of its process.
        device = group.device or next((one.device for one in session.groups if one.device), "")
        price = usd_per_hour.get(device.partition(":")[0])
        spent, left = _spent(group, now), _left_of(group, means.get(group.experiment), now)
        row.runs[group.state] += len(group.runs)
        row.seconds += spent
        row.left_seconds = _plus(row.left_seconds, left)
        row.usd = _plus(row.usd, _usd(spent, price))
        row.left_usd = _plus(row.left_usd, _usd(left, price))
        if group.state == "running":
            row.samples_per_second += group.samples_per_second
    return Watched(
        sessions=sessions,
        rows=[rows[key] for key in sorted(rows)],
        finished=[run for _, group in current if group.state == "done" for run in group.runs],
        left_seconds=_left(sessions, means, now),
        failed=[group for _, group in current if group.state in ("failed", "lost")],
    )


def left_to_train(store: Store, experiment: str, since: float) -> tuple[int, float | None] | None:
    """Return the number of the experiment's unfinished runs and the seconds that they will take, by the last journal.

    None if no process has begun to train any of them after `since` (seconds since 1970).
    """
    begun = [one for _, one in read_sessions(store.scratch) if one.began >= since and experiment in one.held]
    if not begun:
        return None
    session, now = max(begun, key=lambda one: one.began), time.time()
    left = sum(len(group.runs) for group in session.groups if group.state != "done")
    return left, _left([session], _group_seconds(session.groups, now), now)


def _confirm(session: TrainerStatus, leases: Leases, now: float) -> TrainerStatus:
    """Correct the session by its leases."""
    is_over = session.ended is not None
    is_dead = not is_over and (is_gone(session.owner) or now - session.updated > EXPIRY_SECONDS)
    for group in session.groups:
        holder = leases.holder(*group.run_keys) if group.state == "running" else None
        is_held = holder is not None and not is_gone(holder.owner)
        if group.state == "running" and (is_over or is_dead or not is_held):
            group.state, group.message = "lost", group.message or "its process is gone"
            group.ended = session.updated
        elif group.state == "waiting" and (is_over or is_dead):
            group.state = "stopped"
    return dataclasses.replace(session, ended=session.updated) if is_dead else session


def _spent(group: GroupState, now: float) -> float:
    return 0.0 if group.began is None else max(0.0, (group.ended or now) - group.began)


def _group_seconds(groups: Sequence[GroupState], now: float) -> dict[str, float]:
    """Return the mean seconds of a group by experiment, from groups that are done or running."""
    found = defaultdict(list)
    for group in groups:
        if group.state == "done" and group.began is not None:
            found[group.experiment].append(_spent(group, now))
        elif group.state == "running" and group.share > 0:
            found[group.experiment].append(_spent(group, now) / group.share)
    return {experiment: fmean(seconds) for experiment, seconds in found.items()}


def _left_of(group: GroupState, mean: float | None, now: float) -> float | None:
    """Return the seconds until the group ends; None if they are unknown."""
    if group.state not in ("running", "waiting"):
        return 0.0
    if group.state == "running" and group.share > 0:
        return _spent(group, now) * (1 - group.share) / group.share
    return None if mean is None else max(0.0, mean - _spent(group, now))


def _plus(total: float | None, part: float | None) -> float | None:
    """Return the sum; None if a part is unknown."""
    return None if total is None or part is None else total + part


def _usd(seconds: float | None, usd_per_hour: float | None) -> float | None:
    """Return the price; no time costs nothing, whatever the device."""
    if seconds == 0:
        return 0.0
    return None if seconds is None or usd_per_hour is None else seconds / 3600 * usd_per_hour


def _left(sessions: Sequence[TrainerStatus], means: Mapping[str, float], now: float) -> float | None:
    """Return the seconds until the last running session ends; None if they are unknown."""
    longest = 0.0
    for session in sessions:
        if session.ended is not None:
            continue
        parts = [_left_of(group, means.get(group.experiment), now) for group in session.groups]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        longest = max(longest, max(known, default=0.0), sum(known) / max(1, session.slots))
    return longest
