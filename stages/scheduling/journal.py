"""What an engine's trainings are doing, for whoever watches them from another process or machine.

One small document a process that trains, in the scratch of its store, written at most every few seconds and once at the
end.  It says what its engine told last and proves nothing: whether a group still trains is for its lease to say
(`stages.scheduling.watching`, `claimcheck status`).
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Literal

from stages.faults import FAULTS, describe_fault
from stages.runs.store import Scratch, Store
from stages.scheduling.engine.groups import Event, Group
from stages.scheduling.engine.owner import process_identity

PREFIX = "progress-"
_FILE = "progress.json"
_EVERY_SECONDS = 5.0
_KEPT = 20
"""Documents of processes that have ended, the latest."""

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
"""The state of a group after an event.  An engine trains again what it lost; what nobody does, a watcher calls lost."""


@dataclass(kw_only=True)
class GroupState:
    """A group as its engine told last.  `runs`: labels `<experiment>.<arm>.<replicate>`; times in seconds since 1970.

    `share`: of its steps that are done, of the run that trains where they train one after another.
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
class Session:
    """One process that trains; `ended` is None until it says so.  `held`: runs wanted that had an outcome before."""

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


def read_sessions(scratch: Scratch) -> Iterator[tuple[str, Session]]:
    """Every document with its name in the scratch; one that is no longer there, or of another version, is left out."""
    for work in scratch.list_works(PREFIX):
        content = scratch.load(f"{work}/{_FILE}")
        with suppress(ValueError, TypeError, KeyError):
            told = json.loads(content or b"")
            yield work, Session(**told | {"groups": [GroupState(**group) for group in told["groups"]]})


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
        """`names`: the label `<experiment>.<arm>.<replicate>` of each wanted run, by its key."""
        now, owner = time.time(), process_identity(os.getpid())
        self._scratch, self._next, self._fault = store.scratch, 0.0, ""
        self._work = f"{PREFIX}{owner.replace(':', '-').replace('/', '-')}-{time.monotonic_ns()}"
        self._groups = {
            group.label: GroupState(
                label=group.label,
                experiment=group.label.partition(" ")[0],
                runs=[names.get(run_key, run_key[:12]) for run_key in group.run_keys],
                run_keys=list(group.run_keys),
            )
            for group in groups
        }
        self.session = Session(
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
            self._forget_old()
            self._write()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.session.ended = time.time()
        if self._groups:
            self._write()
        if self._fault and error is None:  # else what ended the training says it
            print(f"progress couldn't be written for `claimcheck status`: {self._fault}", file=sys.stderr)

    def report(self, event: Event) -> None:
        """Take in an event, and write at most every few seconds."""
        group = self._groups.get(event.label)
        if group is None:
            return
        if event.kind == "waiting":
            group.message = f"waits for {event.message}"
        elif event.kind in _AFTER:
            self._take(group, event)
        if time.monotonic() >= self._next:
            self._write()

    def _take(self, group: GroupState, event: Event) -> None:
        now = time.time()
        group.state, group.message = _AFTER[event.kind], event.message.strip().rpartition("\n")[2]
        group.node = event.node or group.node
        self.session.dashboard = event.dashboard or self.session.dashboard
        if event.kind == "started":
            group.began, group.device = now, event.device
        elif event.progress is not None:
            told = event.progress
            group.share = told["step"] / told["total_steps"]
            group.epoch, group.epochs = told["epoch"], told["epochs"]
            group.samples_per_second = told["samples_per_second"]
            group.ended = None
        else:
            group.ended = now

    def _write(self) -> None:
        """Write the document; a store that can't take it stops no training."""
        self._next, self.session.updated = time.monotonic() + _EVERY_SECONDS, time.time()
        try:
            self._scratch.save(f"{self._work}/{_FILE}", json.dumps(asdict(self.session)).encode())
        except FAULTS as error:
            self._fault = describe_fault(error)

    def _forget_old(self) -> None:
        with suppress(*FAULTS):
            ended = [(session.updated, work) for work, session in read_sessions(self._scratch) if session.ended]
            for _, work in sorted(ended)[:-_KEPT]:
                self._scratch.drop(work)
