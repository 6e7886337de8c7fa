"""The engine's connection to a Ray cluster: a process that speaks with it, and is replaced when it ends."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from stages.run import RunSpec
from stages.runs.fingerprint import PACKAGE_ROOT, source_path
from stages.scheduling.engine.groups import EngineError, Group, network_of
from stages.scheduling.engine.ray_bridge import ADDRESS, Node, Share, bridge

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
        handed = {name: os.environ[name] for name in ("ATEN_CPU_CAPABILITY",) if name in os.environ}
        self._process = context.Process(
            target=bridge,
            args=(theirs, self.address, self._code, handed | {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONUTF8": "1"}),
        )
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


_MARGIN = 1.25
_CONTEXT_BYTES = 2**30
"""What CUDA itself takes of a device for each process."""
_PARTS = 8
"""A GPU is shared in eighths: many processes of small networks wait for each other."""


class Shares:
    """Shares of the nodes for trainings on `devices`; learns what networks take from outcomes as they come in."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._kinds = [name.partition(":")[0] for name in devices[0].split("+")]
        self._together = len(devices)
        self._peaks: dict[str, int] = {}
        self._device_bytes = 0

    def of(self, group: Group, nodes: Sequence[Node], *, is_alone: bool) -> tuple[Share, str, int]:
        """The share, the device, and the number of threads: it decides last digits, so it is the same on every node.

        Several GPUs that train one run together are whole ones of one node; which, Ray decides.
        """
        peak = self._peaks.get(network_of(group.specs[0]), 0)
        if (ranks := len(self._kinds)) > 1 and self.device(nodes) == "cuda":
            return Share(cpus=ranks, gpus=ranks), self._ranks(nodes), ranks
        if self.device(nodes) == "cuda":
            return Share(cpus=1, gpus=1.0 if is_alone else self._part(peak)), "cuda", 1
        threads = self._threads(nodes)
        cpus = self._fewest_cpus(nodes) if is_alone else threads
        memory = min([math.ceil(_MARGIN * peak), *(node.memory for node in nodes if node.cpus >= 1)])
        return Share(cpus=cpus, memory=memory), self._ranks(nodes), threads

    def room(self, nodes: Sequence[Node]) -> int:
        """How many groups to keep submitted: all that the cluster can train at once, and some that wait."""
        if self.device(nodes) == "cuda" and (ranks := len(self._kinds)) > 1:
            places = sum(int(node.gpus) // ranks for node in nodes)
        elif self.device(nodes) == "cuda":
            places = sum(int(node.gpus) for node in nodes) * self._together
        else:
            places = sum(int(node.cpus) // self._threads(nodes) for node in nodes)
        return places + max(2, places // 4)

    def learn(self, group: Group, outcomes: Mapping[str, Mapping[str, bytes]]) -> None:
        """Remember what a group's training took."""
        self._peaks[network_of(group.specs[0])] = max(
            json.loads(files["result.json"])["peak_memory_bytes"] for files in outcomes.values()
        )

    def learn_device(self, size: int | None) -> None:
        """Remember the memory of a GPU, bytes, the smallest of all."""
        if size:
            self._device_bytes = min(size, self._device_bytes or size)

    def lack(self, nodes: Sequence[Node]) -> str:
        """Why no node can take a group, "" if one can; a cluster may grow, so the group waits."""
        ranks = len(self._kinds)
        if self.device(nodes) != "cuda" or any(node.gpus >= ranks for node in nodes):
            return ""
        most = max((int(node.gpus) for node in nodes), default=0)
        asked = f"{ranks} GPUs" if ranks > 1 else "a GPU"
        return f"a run takes {asked} of one node, and no node of the cluster has more than {most}: it waits for one"

    def device(self, nodes: Sequence[Node]) -> str:
        """`cpu` or `cuda`; `auto` is `cuda` where any node has one."""
        kind = self._kinds[0]
        if kind == "auto":
            return "cuda" if any(node.gpus for node in nodes) else "cpu"
        return kind

    def _ranks(self, nodes: Sequence[Node]) -> str:
        """The devices of one run, as a node calls those that Ray gives it: `cpu`, `cpu+cpu`, `cuda:0+cuda:1`."""
        kinds = [self.device(nodes) if kind == "auto" else kind for kind in self._kinds]
        return "+".join(f"{kind}:{number}" if kind == "cuda" else kind for number, kind in enumerate(kinds))

    def _threads(self, nodes: Sequence[Node]) -> int:
        return max(1, self._fewest_cpus(nodes) // self._together)

    def _fewest_cpus(self, nodes: Sequence[Node]) -> int:
        return int(min((node.cpus for node in nodes if node.cpus >= 1), default=1))

    def _part(self, peak: int) -> float:
        """Part of a GPU: by measured memory where both are known, else the devices' names say how many share one."""
        if not peak or not self._device_bytes:
            return 1 / self._together
        return min(_PARTS, math.ceil(_PARTS * (_MARGIN * peak + _CONTEXT_BYTES) / self._device_bytes)) / _PARTS
