"""The engine's connection to a Ray cluster: a process that speaks with it, and is replaced when it ends."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from stages.run import RunSpec
from stages.runs.fingerprint import PACKAGE_ROOT, source_path
from stages.scheduling.engine.choice import EngineError
from stages.scheduling.engine.groups import Group
from stages.scheduling.engine.ray_bridge import ADDRESS, bridge

LOST = "the connection to the cluster is lost"


class Cluster:
    """The connection to the cluster, by a process that is replaced when it ends."""

    def __init__(self) -> None:
        self.address = os.environ.get(ADDRESS)
        self.name = self.address or "of this machine"
        self._process: Any = None
        self._pipe: Connection | None = None
        self._code: Path | None = None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        if self._code is not None:
            shutil.rmtree(self._code, ignore_errors=True)

    def open(self, groups: Sequence[Group]) -> None:
        """Start the process; it sends `("ready", nodes, dashboard)` once it is connected.

        The code goes with it as it is now.
        """
        self.close()
        if self._code is None:
            self._code = Path(tempfile.mkdtemp(prefix="claimcheck-code-"))
            copy_code([spec for group in groups for spec in group.specs], self._code)
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(target=bridge, args=(theirs, self.address, self._code, _environment()))
        self._process.start()
        theirs.close()
        self._pipe = ours

    def close(self) -> None:
        """End the process, and with it what it submitted."""
        if self._pipe is not None:
            self._pipe.close()
            self._process.join(30)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            self._pipe = None

    def send(self, *command: Any) -> None:
        """Raises ConnectionError if the process is gone."""
        assert self._pipe is not None, "open comes first"
        try:
            self._pipe.send(command)
        except ConnectionError:
            raise ConnectionError(LOST) from None

    def receive(self, seconds: float) -> list[tuple[Any, ...]]:
        """What has arrived within that time.

        Raises:
            ConnectionError: the process is gone.
        """
        assert self._pipe is not None, "open comes first"
        received: list[tuple[Any, ...]] = []
        try:
            while self._pipe.poll(0 if received else seconds):
                received.append(self._pipe.recv())
        except (EOFError, ConnectionError):
            if not received:
                raise ConnectionError(LOST) from None
        return received


def _environment() -> dict[str, str]:
    """What trainings on nodes inherit from here, and not from the nodes."""
    handed = {name: os.environ[name] for name in ("ATEN_CPU_CAPABILITY",) if name in os.environ}
    return handed | {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONUTF8": "1"}


MOST_BYTES = 100 * 2**20
"""What Ray takes in a working directory without trouble."""


class TooMuchCode(EngineError):
    """More than Ray takes."""


def copy_code(specs: Iterable[RunSpec], folder: Path) -> None:
    """Copy what these runs need into `folder`.

    Raises:
        TooMuchCode: it is larger than Ray takes.
    """
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(PACKAGE_ROOT / "stages", folder / "stages", ignore=ignored)
    for top in sorted({module.partition(".")[0] for spec in specs for module in spec.code} - {"stages"}):
        path = source_path(top)
        if path is None:  # a package without a file of its own
            continue
        if path.name == "__init__.py":
            shutil.copytree(path.parent, folder / top, ignore=ignored)
        else:
            shutil.copy(path, folder / path.name)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > MOST_BYTES:
        largest = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
        raise TooMuchCode(
            f"the code to bring to the nodes has {size / 2**20:.0f} MiB, Ray takes {MOST_BYTES / 2**20:.0f}; the "
            f"largest file is {largest.relative_to(folder)}: keep data out of packages"
        )
