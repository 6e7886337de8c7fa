"""Simulate a machine that has only torch, numpy and safetensors installed."""

import re
import signal
import sys
from collections.abc import Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from types import ModuleType

KNOWN = ("torch", "numpy", "safetensors")
OURS = "claimcheck"


def _in_one_spelling(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _with_requirements(distributions: Sequence[str]) -> set[str]:
    """Return the distributions and everything they require."""
    found, left = set[str](), [*distributions]
    while left:
        if (name := _in_one_spelling(left.pop())) in found:
            continue
        found.add(name)
        try:
            needed = requires(name) or []
        except PackageNotFoundError:  # a requirement of another platform
            continue
        left += [re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in needed if "extra ==" not in text]
    return found


@cache
def hidden_modules() -> frozenset[str]:
    """Names of installed modules that the simulated machine lacks."""
    there = _with_requirements(KNOWN) | {OURS}
    return frozenset(
        module
        for module, distributions in packages_distributions().items()
        if not there & {_in_one_spelling(name) for name in distributions}
    )


class _HiddenModules(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] in hidden_modules():
            raise ModuleNotFoundError(f"this machine has no {name}")
        return None


def hide_other_packages() -> None:
    """Make importing any other module fail, even if it is loaded already."""
    for name in [name for name in sys.modules if name.partition(".")[0] in hidden_modules()]:
        del sys.modules[name]
    sys.meta_path.insert(0, _HiddenModules())


def hide_other_packages_and_interrupt() -> None:
    """Also send SIGTERM to this process when its first training saves its first state."""
    hide_other_packages()
    from stages.runs.store import FolderScratch

    save = FolderScratch.save

    def save_and_stop(scratch: FolderScratch, name: str, content: bytes) -> None:
        save(scratch, name, content)
        signal.raise_signal(signal.SIGTERM)

    FolderScratch.save = save_and_stop  # type: ignore[method-assign]
