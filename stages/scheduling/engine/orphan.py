"""Ends a training when the `dvc` that started it is gone.

`kill -9` of `dvc` leaves its stage alive, and the next `dvc repro` would train beside it.  So a stage watches `dvc` and
the shells in between, and ends when one of them is gone; the resume state on disk is at most a minute old.  A stage
that a person started by hand watches nobody.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import psutil

WATCHED = "CLAIMCHECK_WATCHED"
"""Environment variable of a stage that another process runs (`stages.stage`): that one watches `dvc` for it."""
_POLL_SECONDS = 0.5


class OrphanedStage(RuntimeError):
    """A stage whose `dvc` was killed before the stage could begin to watch it."""


def dvc_and_shells() -> list[int]:
    """Pids of the ancestors up to `dvc`, the parent first; none if there is no `dvc`, or another process watches it.

    Raises:
        OrphanedStage: DVC's environment variable says that it started this stage, but `dvc` is no longer an ancestor.
    """
    if WATCHED in os.environ:
        return []
    chain = []
    for process in psutil.Process().parents():
        chain.append(process.pid)
        if "dvc" in _program(process):
            return chain
    if "DVC_STAGE" in os.environ:
        raise OrphanedStage("dvc started this stage and is gone already; nothing was trained")
    return []


def end_with(pids: Iterable[int]) -> None:
    """Start a thread that ends this process, without cleanup, as soon as one of `pids` is gone."""
    watched = [_find(pid) for pid in pids]
    if not watched:
        return

    def watch() -> None:
        while all(process is not None and _runs(process) for process in watched):
            time.sleep(_POLL_SECONDS)
        end_as_orphan()

    threading.Thread(target=watch, name="orphan-watch", daemon=True).start()


def end_as_orphan() -> NoReturn:
    """End this process at once, without cleanup, and say why."""
    print(
        "the process that started this training is gone; stopping (the next run resumes)", file=sys.stderr, flush=True
    )
    os._exit(os.EX_TEMPFAIL)


def _find(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _program(process: psutil.Process) -> list[str]:
    """File names of a command line's first words: `dvc repro`, `python /usr/bin/dvc repro`, `python -m dvc repro`."""
    try:
        return [Path(word).name for word in process.cmdline()[:3]]
    except psutil.Error:
        return []
