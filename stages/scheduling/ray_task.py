"""Trains one group on a node of a Ray cluster, and sends messages to the engine that submitted it.

A node sees neither the run store's folder nor the clone.  It gets packed data by their digest, resume states with the
request or from the store by URL, and the code as a copy of `stages/`, which it first compares with the run key.
It publishes nothing: outcomes go to the submitter, which holds the lease.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from stages.datasets.packed import PackedDataError, digest_packed, read_info
from stages.faults import on_signal
from stages.params.callables import restored
from stages.runs.fingerprint import changed_modules
from stages.runs.object_store import ObjectStore, StoreFault
from stages.runs.store import FolderScratch, Scratch, locked
from stages.scheduling.groups import Group, trainings_of
from stages.scheduling.leases import describe_failure

_WORKER = "stages.worker"
_BEAT_SECONDS = 5.0
_UNREACHABLE_SECONDS = 60.0
"""Lifetime of a lease: after that, another process may have taken over from a submitter that is out of reach."""
_PROGRESS_SECONDS = 0.5

Send = Callable[..., None]
"""Sends `(kind, *payload)` to the submitter, and returns when it was received.

Raises:
    SubmitterGone: it can't be reached.
"""


class SubmitterGone(RuntimeError):
    """The submitter is gone, or out of reach for longer than its lease lives."""


@dataclass(frozen=True, kw_only=True)
class TaskRequest:
    """A group to train.

    `published` has the group's run keys that already have an outcome.  `store` is the store by URL.  If it is None,
    `states` has the files of the scratch, and the node sends new states back.
    """

    group: Group
    published: frozenset[str]
    device: str
    threads: int
    store: ObjectStore | None
    states: Mapping[str, bytes]


def train_group(request: TaskRequest, send: Send, packed: Packed | None) -> None:
    """Train the group in this process's main thread, and send its start, progress, outcomes and end.

    Ray cancels a task by a KeyboardInterrupt; the training then saves its state and stops.
    """
    stop = threading.Event()
    progress = _Progress(send)
    with on_signal(signal.SIGINT, stop.set), _beating(send, progress, stop):
        try:
            _train(request, send, progress, packed, stop)
        except SubmitterGone:
            raise
        except Exception as error:  # noqa: BLE001  (it is sent, and the engine decides)
            send("failed", request.group.run_keys, *describe_failure(error))


def _train(request: TaskRequest, send: Send, progress: _Progress, packed: Packed | None, stop: threading.Event) -> None:
    send("placed", socket.gethostname(), os.getpid())
    if request.store is not None:
        try:
            request.store.bucket.check()
        except StoreFault as fault:
            send("store_refused", str(fault))
            return
    group, device = request.group, request.device
    for spec in group.specs:
        if changed := changed_modules(spec.to_dict()):
            raise ValueError(
                f"run {spec.run_key[:12]} asks for other code than {socket.gethostname()} has ({', '.join(changed)}): "
                "nothing is trained; if it was edited meanwhile, the next dvc repro trains it"
            )
    data = place(group.data, group.specs[0].data_digest, packed)
    torch = importlib.import_module("torch")
    torch.set_num_threads(request.threads)
    trainings = trainings_of(replace(group, data=data), request.published, device)
    send("started", max((len(specs) for specs, _ in trainings), default=1))
    stopped_by = importlib.import_module(_WORKER).TrainingStopped
    for specs, train in trainings:
        keys = [spec.run_key for spec in specs]
        try:
            with restored(), _scratch(request, progress) as scratch:
                trained = train(scratch=scratch, progress=progress, should_stop=stop.is_set)
        except stopped_by as stopped:
            send("stopped", keys, str(stopped))
            return
        except SubmitterGone:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001  (one run's fault must not stop the others)
            send("failed", keys, *describe_failure(error))
        else:
            send("trained", trained.outcomes, trained.work)  # plain values, because the receiver has no torch


@contextmanager
def _scratch(request: TaskRequest, progress: _Progress) -> Iterator[Scratch]:
    """Yield the store's scratch, or a folder of this node from which `progress` sends the states."""
    if request.store is not None:
        yield request.store.scratch
        return
    with TemporaryDirectory(prefix="claimcheck-states-") as folder:
        scratch = FolderScratch(Path(folder))
        for name, content in request.states.items():
            scratch.save(name, content)
        progress.watch(scratch)
        try:
            yield scratch
        finally:
            progress.send_states()


class _Progress:
    """Sends a training's progress and changed states at the ends of epochs and twice a second; counts every step.

    Other processes of this node may save states, too, so changes are looked for in their folder.
    """

    def __init__(self, send: Send) -> None:
        self._send, self._next = send, 0.0
        self._scratch: FolderScratch | None = None
        self._known: dict[str, tuple[int, int]] = {}
        self.steps = 0

    def __call__(self, progress: Any) -> None:
        self.steps += 1
        is_end_of_epoch = progress.step * progress.epochs % progress.total_steps == 0
        if is_end_of_epoch or time.monotonic() >= self._next:
            self._next = time.monotonic() + _PROGRESS_SECONDS
            with suppress(SubmitterGone):
                self._send("progress", dict(vars(progress)))
            self.send_states()

    def watch(self, scratch: FolderScratch) -> None:
        """Send what changes in `scratch` from now on."""
        self._scratch, self._known = scratch, _files_in(scratch)

    def send_states(self) -> None:
        """Send what was saved or dropped since the last call."""
        if self._scratch is None:
            return
        found = _files_in(self._scratch)
        with suppress(SubmitterGone):  # a later state may arrive
            for name in [name for name, change in found.items() if self._known.get(name) != change]:
                self._send("saved", name, self._scratch.load(name))
            for work in {name.partition("/")[0] for name in self._known.keys() - found.keys()}:
                self._send("dropped", work)
        self._known = found


def _files_in(scratch: FolderScratch) -> dict[str, tuple[int, int]]:
    """Return inode and time of each file by its name in the scratch, except of files that are being written."""
    files = {f"{path.parent.name}/{path.name}": path.stat() for path in scratch.root.glob("*/[!.]*")}
    return {name: (file.st_ino, file.st_mtime_ns) for name, file in files.items()}


@contextmanager
def _beating(send: Send, progress: _Progress, stop: threading.Event) -> Iterator[None]:
    """Send a heartbeat with the number of steps from a thread; stop the training if none arrives.

    A dead process sends nothing; one whose training hangs repeats the same number.
    """
    finished = threading.Event()

    def beat() -> None:
        heard = time.monotonic()
        while not finished.wait(_BEAT_SECONDS):
            try:
                send("beat", progress.steps)
                heard = time.monotonic()
            except SubmitterGone:
                if time.monotonic() - heard > _UNREACHABLE_SECONDS:
                    stop.set()

    thread = threading.Thread(target=beat, name="beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


Packed = Callable[[], Mapping[str, np.ndarray]]
"""Brings the files of a packed set to this node: their bytes, uint8 [N], by name."""


def pack_files(folder: Path) -> dict[str, np.ndarray]:
    """Return the files of a packed set as `Packed` brings them; mapped, because one may be as large as memory."""
    return {path.name: np.memmap(path, np.uint8, "r") for path in sorted(folder.iterdir()) if path.is_file()}


def place(folder: Path, digest: str, packed: Packed | None) -> Path:
    """Return a folder of this machine with the packed data of that digest: `folder`, or a copy that `packed` brings.

    All content is read and its digest compared.

    Raises:
        PackedDataError: the data are neither here nor sent, or other data were sent.
    """
    if _has(folder, digest):
        return folder
    if packed is None:
        raise PackedDataError(f"{folder}: no packed data with digest {digest[:12]} on this machine, and none were sent")
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "claimcheck" / "packed" / digest
    with locked(kept.with_name(f".{kept.name}.lock")):
        if not _has(kept, digest):
            staged = Path(tempfile.mkdtemp(prefix=f".{kept.name[:12]}.", dir=kept.parent))
            try:
                for name, content in packed().items():
                    (staged / name).write_bytes(content.data)
                if not _has(staged, digest):
                    raise PackedDataError(
                        f"what was sent as packed data {digest[:12]} has another content; nothing is trained"
                    )
                shutil.rmtree(kept, ignore_errors=True)  # damaged or incomplete
                os.rename(staged, kept)
            finally:
                shutil.rmtree(staged, ignore_errors=True)
    return kept


def _has(folder: Path, digest: str) -> bool:
    if not (folder / "dataset.json").is_file():
        return False
    stamp = tuple((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(folder.iterdir()))
    return _digest_of(folder, stamp) == digest


@cache
def _digest_of(folder: Path, stamp: tuple[tuple[str, int, int], ...]) -> str | None:
    """Return the digest of the content as it was at `stamp`, so that a process reads it only once."""
    try:
        info = read_info(folder)
        return info.digest if digest_packed(folder, info) == info.digest else None
    except PackedDataError:
        return None
