"""A machine that knows torch, numpy and safetensors alone, played in a process that has loaded more."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

UNKNOWN = {"yaml", "pydantic", "sqlalchemy", "dvc", "fastapi", "rich", "scipy", "PIL"}
QUESTIONS = 3  # whether a slice is over: before its group, and after each step


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


def know_torch_alone_and_be_ended() -> None:
    """`know_torch_alone`, on a machine that is taken back (SIGTERM) at the second step of its first training."""
    know_torch_alone()
    from benchmarks.campaign_run import Slice

    is_over, asked = Slice.is_over, 0

    def is_over_soon(piece: Slice) -> bool:
        nonlocal asked
        asked += 1
        if asked == QUESTIONS:
            signal.raise_signal(signal.SIGTERM)
        return is_over(piece)

    Slice.is_over = is_over_soon  # type: ignore[method-assign]
