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

from stages.scheduling.engine.lease import is_running, process_identity

_POLL_SECONDS = 0.5


class OrphanedStage(RuntimeError):
    """A stage whose `dvc` was killed before the stage could begin to watch it."""


def dvc_and_shells() -> list[int]:
    """Pids of the ancestors up to `dvc`, the parent first; none if no ancestor is `dvc`.

    Raises:
        OrphanedStage: DVC's environment variable says that it started this stage, but `dvc` is no longer an ancestor.
    """
    chain = [os.getppid()]
    while chain[-1] > 1:
        if "dvc" in _program(chain[-1]):
            return chain
        chain.append(_parent(chain[-1]))
    if "DVC_STAGE" in os.environ:
        raise OrphanedStage("dvc started this stage and is gone already; nothing was trained")
    return []


def end_with(pids: Iterable[int]) -> None:
    """Start a thread that ends this process, without cleanup, as soon as one of `pids` is gone."""
    watched = [process_identity(pid) for pid in pids]
    if not watched or not Path("/proc/self").exists():
        return

    def watch() -> None:
        while all(is_running(identity) for identity in watched):
            time.sleep(_POLL_SECONDS)
        print("the process that started this training is gone; stopping (the next run goes on)", file=sys.stderr)
        os._exit(os.EX_TEMPFAIL)

    threading.Thread(target=watch, name="orphan-watch", daemon=True).start()


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError):
        return 0


def _program(pid: int) -> list[str]:
    """File names of a command line's first words: `dvc repro`, `python /usr/bin/dvc repro`, `python -m dvc repro`."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []
    return [Path(word).name for word in words[:3]]
