"""A training must not outlive whoever started it.

`kill -9` of `dvc` leaves the stage it started alive, and the next `dvc repro` would train beside it.  So a stage
watches its ancestors up to `dvc` (or `make`, or the engine's parent) and ends when one of them is gone; the resume
state on disk is at most a minute old.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from stages.engine.lease import process_identity

_POLL_SECONDS = 0.5


def ancestors_to_watch() -> list[int]:
    """Pids of the parent and, above it, of the shells and interpreters that lead to `dvc`; at least the parent."""
    chain = [os.getppid()]
    while (parent := _parent(chain[-1])) > 1:
        if "dvc" in _command(chain[-1]):
            return chain
        chain.append(parent)
    return chain[:1]


def end_with_ancestors() -> None:
    """Start a thread that ends this process, without cleaning up, when a watched ancestor is gone."""
    watched = {pid: process_identity(pid) for pid in ancestors_to_watch() if pid > 1}
    if not watched or not Path("/proc/self").exists():
        return

    def watch() -> None:
        while all(process_identity(pid) == identity for pid, identity in watched.items()):
            time.sleep(_POLL_SECONDS)
        print("the process that started this training is gone; stopping (the next run goes on)", file=sys.stderr)
        os._exit(os.EX_TEMPFAIL)

    threading.Thread(target=watch, name="orphan-watch", daemon=True).start()


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError):
        return 0


def _command(pid: int) -> str:
    """The program's own name and first argument, enough to recognise `dvc` however it was started."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    return " ".join(Path(word).name for word in words[:3])
