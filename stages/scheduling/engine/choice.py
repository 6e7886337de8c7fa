"""Which engine trains: chosen by name, here and nowhere else."""

from __future__ import annotations

import importlib
import importlib.util
import os

from stages.faults import Mistake
from stages.scheduling.engine.groups import RunGroups

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
