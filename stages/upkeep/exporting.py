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


def read_citation(root: Path) -> dict[str, Any]:
    """Read `CITATION.cff`, which names the authors of what is exported."""
    try:
        found: dict[str, Any] = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ExportError("needs the file CITATION.cff with authors, title, version and license") from None
    return found


def name_author(author: Mapping[str, str]) -> str:
    """Return the name of an author in `CITATION.cff`, a person or an organisation."""
    return author.get("name") or f"{author['given-names']} {author['family-names']}"


def sampling_error(share: float, n: int) -> float:
    """Return the standard error of a share of `n` test samples: how it would vary over other samples of their kind."""
    return math.sqrt(share * (1 - share) / n)
