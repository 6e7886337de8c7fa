"""Interface of engines, which train groups of runs and report events.

A group is an ordered list of runs that train together.  It is leased, resumed and recorded as one.
A stacked network has the weights of its run except for rounding, so the run key is the same.  Standard library only.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import math
import os
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from stages.faults import Mistake
from stages.run import Replicate, RunSpec, steps_per_epoch, training_counts
from stages.runs.store import STATE, Specs, Store, begun_stacks, stack_id


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that train together, with a label for display; a stack is one model, even of a single run."""

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

    @property
    def states(self) -> list[str]:
        """Names in the scratch of the states from which its trainings resume."""
        stack = [stack_id(self.specs)] if self.is_stack else []
        return [f"{work}/{STATE}" for work in (*self.run_keys, *stack)]

    def is_published(self, store: Store) -> bool:
        return all(store.has(run_key) for run_key in self.run_keys)


@dataclass(frozen=True, kw_only=True)
class Event:
    """An event in the training of a group; `progress` is the worker's `Progress` as a dict, `owner` the lease's owner.

    `runs` is the number of runs that train at once.  `device` is given at the start; `node` is the machine ("" for this
    one), `dashboard` the URL of the cluster's, if it has one.  Two kinds need an explanation.  `memory`: there wasn't
    enough, so the group will train once more, alone on its device.  `lost`: its process or machine is gone, so it
    trains again.
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
_WORKER = "stages.worker"


def trainings_of(group: Group, published: Collection[str], device: str) -> list[tuple[Specs, Callable[..., Any]]]:
    """Return the runs and the function of each training that a group needs, and load torch.

    It is one of the whole stack or, if a stack isn't faster on the device, one for each run that isn't `published`.
    """
    worker = importlib.import_module(_WORKER)  # a parent with nothing to train never needs it
    jobs = [worker.Job(spec=spec, data=group.data, device=device) for spec in group.specs]
    if group.is_stack and worker.can_stack(device):
        return [(group.specs, partial(worker.train_stack, jobs, published=published))]
    return [((job.spec,), partial(worker.train_run, job)) for job in jobs if job.spec.run_key not in published]


class TrainingsKilled(Mistake, RuntimeError):
    """Something outside killed processes that trained; the message says what is known about it."""


RunGroups = Callable[[Sequence[Group], Store, Sequence[str], Report, threading.Event], bool]
"""An engine, which trains all groups on the given devices; a failure stops no other group.

Returns whether every group has its outcome in the store.

Raises:
    TrainingsKilled: an outcome is missing because something killed the processes that trained.
"""

ENGINE = "CLAIMCHECK_ENGINE"
"""Environment variable with the engine's name; `--engine` has priority."""
DEFAULT = "local"
# name -> module with `run_groups`, and the additional package that it needs
ENGINES = {"local": ("stages.scheduling.local", None), "ray": ("stages.scheduling.ray_engine", "ray")}


class EngineError(Mistake, ValueError):
    """No such engine, or one that can't be used now."""


def default_engine() -> str:
    return os.environ.get(ENGINE) or DEFAULT


def find_engine(name: str) -> RunGroups:
    """Return the engine called `name`."""
    if name not in ENGINES:
        raise EngineError(f"no engine {name!r}; known: {', '.join(sorted(ENGINES))} (--engine or {ENGINE} names it)")
    module, package = ENGINES[name]
    if package is not None and importlib.util.find_spec(package) is None:
        raise EngineError(f"engine {name} needs the package {package}, which isn't installed: `make cluster` adds it")
    engine: RunGroups = importlib.import_module(module).run_groups
    return engine


# Networks with a `Stack`, which is faster than training one after another (bench_stacking, up to 200 units).
STACKED = ("stages.papers.dac.mlp:MLP", "stages.papers.dac.mlp:DACMLP")
WIDEST = 256
MAX_MODELS = 16
MIN_STEPS = 10_000  # an unstacked step takes 6 to 40 ms; compiling takes up to 20 s, and again if a stack shrinks


def network_of(spec: RunSpec) -> str:
    """Return a digest of what the replicates of a training have in common."""
    return dataclasses.replace(spec, replicate=Replicate(seed=0)).run_key


def is_worth_stacking(spec: RunSpec, rows: int) -> bool:
    """Return True if the run is faster in a stack, even alone in it; `rows` is the number of training rows."""
    protocol = spec.protocol
    is_plain = protocol.precision in ("float32", "tf32") and not (protocol.compile or protocol.has_options or spec.task)
    has_known_parts = protocol.optimizer.name in ("adam", "adamw") and protocol.split.kind != "folds"
    is_narrow = spec.model.path in STACKED and spec.model.arguments.get("width", math.inf) <= WIDEST
    if not (is_plain and has_known_parts and is_narrow):
        return False
    stop, epochs = protocol.early_stop, protocol.epochs
    fewest = epochs if stop is None else min(epochs, stop.from_epoch + stop.patience)
    return fewest * steps_per_epoch(training_counts(rows, protocol, spec.replicate)[0], protocol) >= MIN_STEPS


def form_groups(specs: Sequence[RunSpec], rows: int, store: Store) -> list[tuple[Specs, bool]]:
    """Return groups in the order of their first run, each with whether it is a stack; other runs are groups of one.

    A stack has all wanted replicates of its network.  An interrupted stack is resumed as it was, including runs that
    are published already, unless that would train a run that isn't wanted.
    """
    wanted = {spec.run_key: spec for spec in specs}
    groups: dict[str, tuple[Specs, bool]] = {}  # by the key of each wanted member
    for begun in begun_stacks(store.scratch):
        members = [spec.run_key for spec in begun if not store.has(spec.run_key)]
        if members and all(key in wanted and key not in groups for key in members):
            groups |= dict.fromkeys(members, (begun, True))
    alike: dict[str, list[RunSpec]] = {}
    for key, spec in wanted.items():
        if key in groups:
            continue
        if is_worth_stacking(spec, rows):
            alike.setdefault(network_of(spec), []).append(spec)
        else:
            groups[key] = (spec,), False
    for replicates in alike.values():
        for start in range(0, len(replicates), MAX_MODELS):
            part = tuple(replicates[start : start + MAX_MODELS])
            groups |= dict.fromkeys((spec.run_key for spec in part), (part, True))
    return list({id(group): group for group in (groups[key] for key in wanted)}.values())
