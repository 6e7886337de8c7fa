"""What engines take and tell: groups of runs, and events of their training.

A group is an ordered list of runs that train together; it is leased, resumed and recorded as one.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from stages.faults import Mistake
from stages.run import RunSpec
from stages.runs.store import Store


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that train together, with a name for display; a stack is one model, even with one run."""

    label: str
    specs: tuple[RunSpec, ...]
    data: Path
    is_stack: bool = False

    @property
    def run_keys(self) -> tuple[str, ...]:
        return tuple(spec.run_key for spec in self.specs)

    @property
    def stacked(self) -> int:
        """Number of runs that share a step."""
        return len(self.specs) if self.is_stack else 1

    def is_published(self, store: Store) -> bool:
        return all(store.has(run_key) for run_key in self.run_keys)


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event of a group; `progress` is the worker's `Progress` as a dict, `owner` the lease's owner.

    `runs`: how many train at once.  `device`: what they train on, said as they start; `node`: the machine, "" for this;
    `dashboard`: where the cluster shows itself, "" where it doesn't.  `memory`: there wasn't enough, it will be tried
    once more, alone on its device.  `lost`: its process or machine is gone, and it is trained again.
    """

    kind: Literal["started", "progress", "finished", "waiting", "elsewhere", "stopped", "memory", "lost", "failed"]
    label: str
    runs: int = 1
    progress: dict[str, Any] | None = None
    message: str = ""
    owner: str = ""
    device: str = ""
    node: str = ""
    dashboard: str = ""


Report = Callable[[Event], None]


class TrainingsKilled(Mistake, RuntimeError):
    """Something outside killed processes that trained; the message says what is known of it."""


class RunGroups(Protocol):
    """An engine: trains all groups on the given devices; a failure stops no other group.

    Returns whether every group has its outcome in the store.

    Raises:
        TrainingsKilled: an outcome is missing because something killed the processes that trained.
    """

    def __call__(
        self, groups: Sequence[Group], store: Store, devices: Sequence[str], report: Report, stop: threading.Event
    ) -> bool: ...


ENGINE = "CLAIMCHECK_ENGINE"
"""The environment's name for it; `--engine` goes before."""
DEFAULT = "local"
# name -> module with `run_groups`, and the package that it needs besides
ENGINES = {"local": ("stages.scheduling.engine.local", None), "ray": ("stages.scheduling.engine.ray_engine", "ray")}


class EngineError(Mistake, ValueError):
    """No such engine, or one that can't be used as things are."""


def default_engine() -> str:
    return os.environ.get(ENGINE) or DEFAULT


def find_engine(name: str) -> RunGroups:
    """The engine called `name`.

    Raises:
        EngineError: there is none, or its package is missing.
    """
    if name not in ENGINES:
        raise EngineError(f"no engine {name!r}; known: {', '.join(sorted(ENGINES))} (--engine or {ENGINE} names it)")
    module, package = ENGINES[name]
    if package is not None and importlib.util.find_spec(package) is None:
        raise EngineError(f"engine {name} needs the package {package}, which isn't installed: `make cluster` adds it")
    engine: RunGroups = importlib.import_module(module).run_groups
    return engine
