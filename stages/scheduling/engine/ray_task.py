"""One group's training on a node of a Ray cluster: what the engine asks, and what the node tells it meanwhile.

A node sees neither the run store's folder nor the clone.  It gets packed data by their digest, resume states with what
it is asked or from the store by URL, and the code from a copy of `stages/`, which it compares with the run key first.
It publishes nothing: outcomes go to the process that asked, which holds the lease.

Either way the content is read and its digest compared before anything trains on it.
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
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from stages.datasets.packed import PackedDataError, digest_packed, read_info
from stages.faults import on_signal
from stages.run import RunSpec
from stages.runs.fingerprint import changed_modules
from stages.runs.object_store import ObjectStore, StoreFault
from stages.runs.store import FolderScratch, Scratch, locked
from stages.scheduling.engine.leases import describe_failure

_WORKER = "stages.worker"
_BEAT_SECONDS = 5.0
_UNHEARD_SECONDS = 60.0
"""As long as a lease lives: who can't be told for longer may have a successor."""
_PROGRESS_SECONDS = 0.5

Tell = Callable[..., None]
"""Sends `(kind, *payload)` to the submitter, and returns when it was received.

Raises:
    Unheard: it can't be reached.
"""


class Unheard(RuntimeError):
    """Whoever asked for the training is gone, or out of reach for longer than its lease lives."""


@dataclass(frozen=True, kw_only=True)
class TaskRequest:
    """A group to train.

    `published`: run keys of the group that have an outcome.  `store`: the store by URL, or None; then `states` has the
    files of the scratch, and saved ones are told.
    """

    label: str
    specs: tuple[RunSpec, ...]
    is_stack: bool
    published: frozenset[str]
    data: Path
    device: str
    threads: int
    store: ObjectStore | None
    states: Mapping[str, bytes]


def train_group(ask: TaskRequest, tell: Tell, packed: Packed | None) -> None:
    """Train what `ask` names, in this process's main thread; tells its start, progress, outcomes and end.

    A KeyboardInterrupt, which is how Ray cancels, is a wish to stop: the state is saved first.
    """
    stop = threading.Event()
    told = _Progress(tell)
    with on_signal(signal.SIGINT, stop.set), _beating(tell, told, stop):
        try:
            _train(ask, tell, told, packed, stop)
        except Unheard:
            raise
        except Exception as error:  # noqa: BLE001  (it is told, and the engine decides)
            end, message = describe_failure(error)
            tell("failed", [spec.run_key for spec in ask.specs], end, message)


def _train(ask: TaskRequest, tell: Tell, told: _Progress, packed: Packed | None, stop: threading.Event) -> None:
    tell("placed", socket.gethostname(), os.getpid())
    if ask.store is not None:
        try:
            ask.store.bucket.check()
        except StoreFault as fault:
            tell("shut_out", str(fault))
            return
    for spec in ask.specs:
        refuse_other_code(spec)
    data = place(ask.data, ask.specs[0].data_digest, packed)
    torch = importlib.import_module("torch")
    torch.set_num_threads(ask.threads)
    worker = importlib.import_module(_WORKER)
    is_stack = ask.is_stack and worker.can_stack(ask.device)
    has_gpu = ask.device.startswith("cuda") and torch.cuda.is_available()
    on_device = torch.cuda.get_device_properties(0).total_memory if has_gpu else None
    tell("started", len(ask.specs) if is_stack else 1, on_device)
    missing = [spec for spec in ask.specs if spec.run_key not in ask.published]
    for specs in [ask.specs] if is_stack else [(spec,) for spec in missing]:
        jobs = [worker.Job(spec=spec, data=data, device=ask.device) for spec in specs]
        keys = [spec.run_key for spec in specs]
        try:
            with _scratch(ask, told) as scratch:
                if is_stack:
                    trained = worker.train_stack(
                        jobs, scratch, published=ask.published, progress=told, should_stop=stop.is_set
                    )
                else:
                    trained = worker.train_run(*jobs, scratch, progress=told, should_stop=stop.is_set)
        except worker.TrainingStopped as stopped:
            tell("stopped", keys, str(stopped))
            return
        except Unheard:
            raise
        except Exception as error:  # noqa: BLE001  (one run's fault must not hold up the rest)
            tell("failed", keys, *describe_failure(error))
        else:
            tell("trained", trained.outcomes, trained.work)  # as plain values: who takes them in has no torch


@contextmanager
def _scratch(ask: TaskRequest, told: _Progress) -> Iterator[Scratch]:
    """The group's states: in the store, or in a folder of this node from which `told` passes them on."""
    if ask.store is not None:
        yield ask.store.scratch
        return
    with TemporaryDirectory(prefix="claimcheck-states-") as folder:
        scratch = FolderScratch(Path(folder))
        for name, content in ask.states.items():
            scratch.save(name, content)
        told.watch(scratch)
        try:
            yield scratch
        finally:
            told.pass_on_states()


def refuse_other_code(spec: RunSpec) -> None:
    """Refuse to train with other code on this node than the run's key names.

    Raises:
        ValueError: a module differs, is missing or is one too many.
    """
    if changed := changed_modules(spec.to_dict()):
        raise ValueError(
            f"run {spec.run_key[:12]} asks for other code than {socket.gethostname()} has ({', '.join(changed)}): "
            "nothing is trained; if it was edited meanwhile, the next dvc repro trains it"
        )


class _Progress:
    """Passes on a training's progress and changed states, at the ends of epochs and twice a second; counts every step.

    Other processes of this node may have saved the states, so their folder is looked through.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell, self._next = tell, 0.0
        self._scratch: FolderScratch | None = None
        self._known: dict[str, tuple[int, int]] = {}
        self.steps = 0

    def __call__(self, progress: Any) -> None:
        self.steps += 1
        is_end_of_epoch = progress.step * progress.epochs % progress.total_steps == 0
        if is_end_of_epoch or time.monotonic() >= self._next:
            self._next = time.monotonic() + _PROGRESS_SECONDS
            with suppress(Unheard):
                self._tell("progress", dict(vars(progress)))
            self.pass_on_states()

    def watch(self, scratch: FolderScratch) -> None:
        """Pass on what changes in `scratch` from now on."""
        self._scratch, self._known = scratch, _files_in(scratch)

    def pass_on_states(self) -> None:
        """Tell what was saved or dropped since the last call."""
        if self._scratch is None:
            return
        found = _files_in(self._scratch)
        with suppress(Unheard):  # a later one may arrive
            for name in [name for name, change in found.items() if self._known.get(name) != change]:
                self._tell("saved", name, self._scratch.load(name))
            for work in {name.partition("/")[0] for name in self._known.keys() - found.keys()}:
                self._tell("dropped", work)
        self._known = found


def _files_in(scratch: FolderScratch) -> dict[str, tuple[int, int]]:
    """Identity and time of each file by its name in the scratch; a dot begins one that is being written."""
    files = {f"{path.parent.name}/{path.name}": path.stat() for path in scratch.root.glob("*/[!.]*")}
    return {name: (file.st_ino, file.st_mtime_ns) for name, file in files.items()}


@contextmanager
def _beating(tell: Tell, told: _Progress, stop: threading.Event) -> Iterator[None]:
    """Report from a thread that this process lives and how many steps it took; stop the training if no report arrives.

    A stopped process reports nothing; one whose training hangs repeats the same number.
    """
    finished = threading.Event()

    def beat() -> None:
        heard = time.monotonic()
        while not finished.wait(_BEAT_SECONDS):
            try:
                tell("beat", told.steps)
                heard = time.monotonic()
            except Unheard:
                if time.monotonic() - heard > _UNHEARD_SECONDS:
                    stop.set()

    thread = threading.Thread(target=beat, name="beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


Packed = Callable[[], Mapping[str, np.ndarray]]
"""Brings the files of a packed set to this node: bytes, uint8 [N], by name."""


def pack_files(folder: Path) -> dict[str, np.ndarray]:
    """The files of a packed set as `Packed` brings them; mapped, so that one as large as memory can be passed on."""
    return {path.name: np.memmap(path, np.uint8, "r") for path in sorted(folder.iterdir()) if path.is_file()}


def place(folder: Path, digest: str, packed: Packed | None) -> Path:
    """A folder of this machine with the packed data of that digest: `folder` itself, or a copy of what `packed` brings.

    Raises:
        PackedDataError: they are neither here nor brought, or what was brought is something else.
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
                shutil.rmtree(kept, ignore_errors=True)  # damaged, or half of it
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
    """The digest of the content as it was at `stamp`: one process reads it once."""
    try:
        info = read_info(folder)
        return info.digest if digest_packed(folder, info) == info.digest else None
    except PackedDataError:
        return None
