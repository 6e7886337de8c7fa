"""Parts that exports share: their folder, their authors, what they report, and the sampling error of an accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from stages.citation import CITATION, read_about
from stages.faults import Mistake


class ExportError(Mistake, ValueError):
    """Nothing is exported; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Summary of an export below `folder`: numbers by name, and sentences for the user."""

    folder: Path
    counts: Mapping[str, int]
    notes: Sequence[str] = field(default_factory=tuple)


def require_new(folder: Path) -> None:
    if folder.exists():
        raise ExportError(f"{folder} exists already; name a new folder")


def require_package(name: str) -> ModuleType:
    """Import a package of the extra `export`."""
    try:
        return import_module(name)
    except ImportError:
        raise ExportError(f"needs a package that isn't installed: pip install {name.partition('.')[0]}") from None


def read_citation(root: Path, *needed: str) -> dict[str, Any]:
    """Read `CITATION.cff`, which describes the project whose results are exported.

    Raises:
        ExportError: there is no such file, or it has no authors or lacks one of the `needed` fields.
    """
    try:
        about = read_about(root / CITATION)
    except FileNotFoundError:
        raise ExportError(f"needs the file {CITATION} with authors, title, version and license") from None
    except yaml.YAMLError as error:
        raise ExportError(f"{CITATION} isn't YAML: {error}") from None
    if missing := [name for name in ("authors", *needed) if not about.get(name)]:
        raise ExportError(f"{CITATION} lacks {', '.join(missing)}; add {'it' if len(missing) == 1 else 'them'}")
    return about


def sampling_error(share: float, n: int) -> float:
    """Return the standard error of a share of `n` test samples: how it would vary over other samples of their kind."""
    return math.sqrt(share * (1 - share) / n)
