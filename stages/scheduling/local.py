"""Trains groups of runs on this machine: one slot in this process, or several slots, each in its own process."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, MutableSequence, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Any

from stages.faults import FAULTS, describe_fault
from stages.params.callables import restored
from stages.runs.store import Store, home
from stages.scheduling.groups import Event, Group, Report, TrainingsKilled, trainings_of
from stages.scheduling.leases import (
    Lease,
    LeaseLost,
    Leases,
    claim_group,
    describe_failure,
    process_identity,
    publish,
)

_WORKER = "stages.worker"
_HINT = " (often because of too little memory: see `dmesg`; fewer slots in the profile help)"


class ParentGone(RuntimeError):
    """The process that started this slot is gone, so nothing reads the slot's reports."""


def run_groups(
    groups: Sequence[Group], store: Store, devices: Sequence[str], report: Report, stop: threading.Event
) -> bool:
    """Train all groups, one at a time on each of `devices`; a failure stops no other group.

    A device that is listed twice trains two groups at once.  Returns whether every group has its outcome in the store.
    """
    if len(devices) == 1:
        Slot(store, devices[0], report, stop.is_set, is_alone=True).train(groups, bytearray(len(groups)))
        return all(group.is_published(store) for group in groups)
    threads = max(1, (os.cpu_count() or 1) // max(1, sum(device in ("cpu", "auto") for device in devices)))
    devices = devices[: len(groups)]  # after the threads: a run that trains again alone needs the same number
    killed, short = _fork_slots(groups, store, devices, threads, report, stop, is_alone=len(devices) == 1)
    again = [group for group in groups if group.label in short and not group.is_published(store)]
    if again and not stop.is_set():
        alone = list(dict.fromkeys(devices))
        killed = _fork_slots(again, store, alone, threads, report, stop, is_alone=True)[0] or killed
    is_complete = all(group.is_published(store) for group in groups)
    if killed and not is_complete:
        raise TrainingsKilled(
            f"{killed}; finished trainings are in the store, and the next dvc repro resumes from there"
        )
    return is_complete


@dataclass(frozen=True)
class Slot:
    """A place on a device where one group trains at a time; `is_alone`: no other slot uses the device."""

    store: Store
    device: str
    report: Report
    should_stop: Callable[[], bool]
    is_alone: bool

    def train(self, groups: Sequence[Group], ended: MutableSequence[int]) -> None:
        """Claim and train groups until none is left; wait for a group that another process holds.

        `ended` is 1 for each group that some slot has trained or failed to train; no group is tried twice.
        """
        leases, holders = Leases(self.store), dict[str, str]()
        waiting = [(index, group) for index, group in enumerate(groups) if not group.is_published(self.store)]
        while waiting and not self.should_stop():
            held_elsewhere = []
            for index, group in waiting:
                if self.should_stop():
                    return
                if ended[index]:
                    continue
                lease = claim_group(group, leases, holders, self.report)
                if lease is None:
                    held_elsewhere.append((index, group))
                    continue
                with leases.kept_alive(lease) as lost:
                    try:
                        if ended[index]:
                            leases.close(lease, None)
                        elif group.is_published(self.store):
                            leases.close(lease, None)
                            self.report(Event(kind="elsewhere", label=group.label))
                        elif self._train_group(group, lost, leases, lease):
                            ended[index] = 1
                        else:
                            held_elsewhere.append((index, group))
                    except ParentGone as gone:
                        leases.close(lease, "lost", str(gone))
                        raise
            waiting = held_elsewhere
            if waiting:
                time.sleep(self.store.poll_seconds)

    def _train_group(self, group: Group, lost: threading.Event, leases: Leases, lease: Lease) -> bool:
        """Train one group; return False if another process took it over, for which the slot then waits.

        If a stack isn't faster on the device, its runs are trained one after another.
        """
        published = [run_key for run_key in group.run_keys if self.store.has(run_key)]
        trainings = trainings_of(group, published, self.device)
        worker = importlib.import_module(_WORKER)
        in_use = self.device
        with suppress(ValueError):  # no such device, which the training will report
            in_use = str(worker.pick_device(self.device))
        event = partial(Event, label=group.label)
        self.report(event(kind="started", runs=max((len(specs) for specs, _ in trainings), default=1), device=in_use))
        for specs, train in trainings:
            if self.should_stop():
                return True
            keys = [spec.run_key for spec in specs]
            try:
                with restored():
                    trained = train(
                        scratch=self.store.scratch,
                        progress=_Reporter(group.label, self.report),
                        should_stop=lambda: self.should_stop() or lost.is_set(),
                    )
                publish(trained.outcomes, trained.work, lease, leases, self.store)
                worker.count_flops(specs[0], group.data, home() / "flops.json")
            except LeaseLost as taken_over:
                self.report(event(kind="elsewhere", message=str(taken_over)))
                return False
            except worker.TrainingStopped as stopped:
                if lost.is_set():
                    self.report(event(kind="elsewhere", message="(taken over)"))
                    return False
                leases.close(lease, "stopped", str(stopped), keys)
                self.report(event(kind="stopped", message=str(stopped)))
            except ParentGone:
                raise
            except (Exception, SystemExit) as error:  # noqa: BLE001  (one run's fault stops no other; it is reported)
                end, message = describe_failure(error)
                leases.close(lease, end, message.strip().splitlines()[-1], keys)
                is_retried = end == "memory" and not self.is_alone
                self.report(event(kind="memory" if is_retried else "failed", message=message))
            else:
                self.report(event(kind="finished"))
        return True


class _Reporter:
    """Reports a training's progress about ten times per second, because a step may be shorter than a report."""

    def __init__(self, label: str, report: Report) -> None:
        self._label, self._report = label, report
        self._next = 0.0

    def __call__(self, progress: Any) -> None:
        is_end_of_epoch = progress.step * progress.epochs % progress.total_steps == 0
        if is_end_of_epoch or time.monotonic() >= self._next:
            self._next = time.monotonic() + 0.1
            self._report(Event(kind="progress", label=self._label, progress=dict(vars(progress))))


def _fork_slots(
    groups: Sequence[Group],
    store: Store,
    devices: Sequence[str],
    threads: int,
    report: Report,
    stop: threading.Event,
    *,
    is_alone: bool,
) -> tuple[str, set[str]]:
    """Train in one process per device.

    Returns a message about processes that a signal ended ("" if there are none), and labels of groups that were short
    of memory.
    """
    context = _forking()
    ended = context.RawArray("b", len(groups))
    slots: dict[Connection, BaseProcess] = {}
    for device in devices:
        # One pipe per slot, because a shared queue would stay locked for ever if a slot were killed while writing.
        reader, writer = context.Pipe(duplex=False)
        arguments = (list(groups), store, device, threads, writer, os.getpid(), ended, is_alone)
        # A daemon may not start the processes that train one run together.
        slots[reader] = context.Process(target=_slot_process, args=arguments, daemon="+" not in device)
        slots[reader].start()
        writer.close()
    processes = list(slots.values())
    siblings = {process_identity(process.pid) for process in processes if process.pid is not None}
    is_stopping = False
    elsewhere: dict[str, Event] = {}  # trained by another slot or another process, which is known only at the end
    ours: set[str] = set()
    short: set[str] = set()
    while slots:
        if stop.is_set() and not is_stopping:
            is_stopping = True
            for process in processes:
                process.terminate()
        for ready in wait(list(slots), timeout=0.2):
            assert isinstance(ready, Connection), "only pipes were waited for"
            try:
                event: Event = ready.recv()
            except (EOFError, OSError):
                del slots[ready]
                continue
            if event.kind == "elsewhere":
                elsewhere[event.label] = event
                continue
            if event.kind == "waiting" and event.owner in siblings:
                continue
            if event.kind == "finished":
                ours.add(event.label)
            if event.kind == "memory":
                short.add(event.label)
            report(event)
    for process in processes:
        process.join()
    signals = Counter(signal.Signals(-code).name for code in (p.exitcode for p in processes) if code and code < 0)
    for label, event in elsewhere.items():
        if label not in ours:
            report(event)
    if not signals:
        return "", short
    killed = " and ".join(f"{number} by {name}" for name, number in signals.items())
    hint = _HINT if "SIGKILL" in signals else ""
    return f"{signals.total()} of {len(processes)} training processes were killed, {killed}{hint}", short


def _forking() -> ForkContext | ForkServerContext:
    """Choose how slots start.

    They are forks of this process if it has loaded torch and has one thread, as in `claimcheck repro`.  Otherwise they
    are forks of a clean process, which loads torch once.
    """
    with suppress(OSError):
        if "torch._dynamo" in sys.modules and len(os.listdir("/proc/self/task")) == 1:
            importlib.import_module(_WORKER)
            return multiprocessing.get_context("fork")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_WORKER, "torch._dynamo"])  # else each optimiser's first step loads the latter
    return context


def _slot_process(
    groups: list[Group],
    store: Store,
    device: str,
    threads: int,
    events: Connection,
    parent: int,
    ended: MutableSequence[int],
    is_alone: bool,
) -> None:
    from stages.scheduling.orphans import exit_as_orphan, exit_when_gone  # needs psutil, which one slot doesn't

    exit_when_gone([parent])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)

    def report(event: Event) -> None:
        try:
            events.send(event)
        except ConnectionError:
            raise ParentGone("the process that started its slot was killed") from None

    try:
        Slot(store, device, report, stop.is_set, is_alone).train(groups, ended)
    except ParentGone:
        exit_as_orphan()
    except FAULTS as error:
        sys.exit(f"train: {describe_fault(error)}")
