"""A machine that knows torch, numpy and safetensors alone, played in a process that has loaded more."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

UNKNOWN = {"yaml", "pydantic", "sqlalchemy", "dvc", "fastapi", "rich", "scipy", "PIL"}


class _Nothing(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] in UNKNOWN:
            raise ModuleNotFoundError(f"this machine has no {name}")
        return None


def know_torch_alone() -> None:
    """From now on importing anything else fails, whether it was loaded or not."""
    for name in [name for name in sys.modules if name.partition(".")[0] in UNKNOWN]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Nothing())
