"""Ends a stage whose `dvc` was killed, and a training whose parent was."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import psutil

from stages.faults import Mistake

WATCHED = "CLAIMCHECK_WATCHED"
"""Environment variable of a stage that runs for another process (`stages.stage`), which watches `dvc` for it."""
_POLL_SECONDS = 0.5


class OrphanedStage(Mistake, RuntimeError):
    """A stage whose `dvc` was killed before the stage could begin to watch it."""


def dvc_and_shells() -> list[int]:
    """Return the pids of all ancestors up to `dvc`; none if there is no `dvc`, or if another process watches it."""
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


def exit_when_gone(pids: Collection[int]) -> None:
    """Start a thread that ends this process, without cleanup, as soon as one of `pids` is gone."""
    if not pids:
        return
    watched = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            watched.append(psutil.Process(pid))

    def is_alive(process: psutil.Process) -> bool:
        with suppress(psutil.NoSuchProcess):
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return False

    def watch() -> None:
        while len(watched) == len(pids) and all(map(is_alive, watched)):
            time.sleep(_POLL_SECONDS)
        exit_as_orphan()

    threading.Thread(target=watch, name="orphan-watch", daemon=True).start()


def exit_as_orphan() -> NoReturn:
    """End this process at once, without cleanup, and say why."""
    message = "the process that started this training is gone; stopping (the next run resumes)"
    print(message, file=sys.stderr, flush=True)
    os._exit(os.EX_TEMPFAIL)
