"""Trains groups of runs on this machine: a single slot in this process, several slots in one process each."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, MutableSequence, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

import psutil

from stages.faults import FAULTS, describe_fault
from stages.runs.store import Store, home
from stages.scheduling.engine.groups import Event, Group, Report, TrainingsKilled
from stages.scheduling.engine.leases import Lease, LeaseLost, Leases, describe_failure, process_identity, publish

WATCHED = "CLAIMCHECK_WATCHED"
"""Environment variable of a stage that another process runs (`stages.stage`): that one watches `dvc` for it."""
_POLL_SECONDS = 0.5


class OrphanedStage(RuntimeError):
    """A stage whose `dvc` was killed before the stage could begin to watch it."""


def dvc_and_shells() -> list[int]:
    """Pids of the ancestors up to `dvc`, the parent first; none if there is no `dvc`, or another process watches it."""
    if WATCHED in os.environ:
        return []
    chain = []
    for process in psutil.Process().parents():
        chain.append(process.pid)
        # `dvc repro`, `python /usr/bin/dvc repro`, `python -m dvc repro`
        with suppress(psutil.Error):
            if "dvc" in [Path(word).name for word in process.cmdline()[:3]]:
                return chain
    if "DVC_STAGE" in os.environ:
        raise OrphanedStage("dvc started this stage and is gone already; nothing was trained")
    return []


def end_with(pids: Iterable[int]) -> None:
    """Start a thread that ends this process, without cleanup, as soon as one of `pids` is gone."""
    if not (pids := list(pids)):
        return
    watched = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            watched.append(psutil.Process(pid))

    def watch() -> None:
        while len(watched) == len(pids) and all(map(_runs, watched)):
            time.sleep(_POLL_SECONDS)
        end_as_orphan()

    threading.Thread(target=watch, name="orphan-watch", daemon=True).start()


def end_as_orphan() -> NoReturn:
    """End this process at once, without cleanup, and say why."""
    print(
        "the process that started this training is gone; stopping (the next run resumes)", file=sys.stderr, flush=True
    )
    os._exit(os.EX_TEMPFAIL)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


_WORKER = "stages.worker"
_HINT = " (often for want of memory: `dmesg` tells, fewer slots in the profile help)"


class ParentGone(RuntimeError):
    """The process that started this slot is gone, and with it the reader of its reports."""


def run_groups(
    groups: Sequence[Group], store: Store, devices: Sequence[str], report: Report, stop: threading.Event
) -> bool:
    """Train all groups, one at a time on each of `devices` (a name twice: two at once); a failure stops no other.

    Returns whether every group has its outcome in the store.
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

        `ended`: 1 for each group that some slot has trained or failed to; none is tried twice.
        """
        leases = Leases(self.store)
        waiting = [(index, group) for index, group in enumerate(groups) if not group.is_published(self.store)]
        told: dict[str, str] = {}
        while waiting and not self.should_stop():
            held_elsewhere = []
            for index, group in waiting:
                if self.should_stop():
                    return
                if ended[index]:
                    continue
                lease = leases.claim(*group.run_keys)
                if lease is None:
                    held_elsewhere.append((index, group))
                    holder = leases.holder(*group.run_keys)
                    if holder is not None and told.get(group.label) != holder.owner:
                        told[group.label] = holder.owner
                        self.report(Event(kind="waiting", label=group.label, message=str(holder), owner=holder.owner))
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
        """Train one group; False if another process took it over, which is then waited for as if it had been first.

        Where a stack isn't faster, its runs are trained one after another.
        """
        worker = importlib.import_module(_WORKER)  # brings torch, which a parent with nothing to train never needs
        published = [run_key for run_key in group.run_keys if self.store.has(run_key)]
        missing = [spec for spec in group.specs if spec.run_key not in published]
        is_stack = group.is_stack and worker.can_stack(self.device)
        in_use = self.device
        with suppress(ValueError):  # no such device, which the training will say
            in_use = str(worker.pick_device(self.device))
        tell = partial(Event, label=group.label)
        self.report(tell(kind="started", runs=len(group.specs) if is_stack else 1, device=in_use))
        for specs in [group.specs] if is_stack else [(spec,) for spec in missing]:
            if self.should_stop():
                return True
            jobs = [worker.Job(spec=spec, data=group.data, device=self.device) for spec in specs]
            train = (
                partial(worker.train_stack, jobs, published=published) if is_stack else partial(worker.train_run, *jobs)
            )
            keys = [spec.run_key for spec in specs]
            try:
                trained = train(
                    scratch=self.store.scratch,
                    progress=_Reporter(group.label, self.report),
                    should_stop=lambda: self.should_stop() or lost.is_set(),
                )
                publish(trained.outcomes, trained.work, lease, leases, self.store)
                worker.count_flops(specs[0], group.data, home() / "flops.json")
            except LeaseLost as taken_over:
                self.report(tell(kind="elsewhere", message=str(taken_over)))
                return False
            except worker.TrainingStopped as stopped:
                if lost.is_set():
                    self.report(tell(kind="elsewhere", message="(taken over)"))
                    return False
                leases.close(lease, "stopped", str(stopped), keys)
                self.report(tell(kind="stopped", message=str(stopped)))
            except ParentGone:
                raise
            except Exception as error:  # noqa: BLE001  (one run's fault must not hold up the rest; the report tells it)
                end, message = describe_failure(error)
                leases.close(lease, end, message.strip().splitlines()[-1], keys)
                is_tried_again = end == "memory" and not self.is_alone
                self.report(tell(kind="memory" if is_tried_again else "failed", message=message))
            else:
                self.report(tell(kind="finished"))
        return True


class _Reporter:
    """Passes on a training's progress, about ten times per second: a step may be shorter than reporting it."""

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
    is_alone: bool = False,
) -> tuple[str, set[str]]:
    """Train in one process per device; returns which of them a signal ended, "" if none, and labels short of memory."""
    context = _forking()
    ended = context.RawArray("b", len(groups))
    slots: dict[Connection, BaseProcess] = {}
    for device in devices:
        # One pipe per slot: a shared queue's lock would stay locked for ever when a slot is killed while it writes.
        reader, writer = context.Pipe(duplex=False)
        arguments = (list(groups), store, device, threads, writer, os.getpid(), ended, is_alone)
        # Only others than daemons may start the processes that train one run together.
        slots[reader] = context.Process(target=_slot_process, args=arguments, daemon="+" not in device)
        slots[reader].start()
        writer.close()
    processes = list(slots.values())
    siblings = {process_identity(process.pid) for process in processes if process.pid is not None}
    told = False
    elsewhere: dict[str, Event] = {}  # by another slot, or by another process: that is known at the end
    ours: set[str] = set()
    short: set[str] = set()
    while slots:
        if stop.is_set() and not told:
            told = True
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
                continue  # one slot trains what the other one checked
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
    """Choose how slots start: forks of this process if it has loaded torch and has one thread, as under `repro`.

    Otherwise of a clean process, which loads torch once.
    """
    with suppress(OSError):
        if "torch._dynamo" in sys.modules and len(os.listdir("/proc/self/task")) == 1:
            importlib.import_module(_WORKER)
            return multiprocessing.get_context("fork")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_WORKER, "torch._dynamo"])  # the optimiser's first step would load the latter
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
    end_with([parent])
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
        end_as_orphan()
    except FAULTS as error:
        sys.exit(f"train: {describe_fault(error)}")
