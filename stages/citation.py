"""Reads `CITATION.cff`: who made a project, and under which licences."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

CITATION = "CITATION.cff"


def read_about(path: Path) -> dict[str, Any]:
    """Read the file's fields; none if it isn't a mapping.

    Raises:
        OSError, UnicodeError, yaml.YAMLError: it can't be read.
    """
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}


def read_licences(about: Mapping[str, Any]) -> list[str]:
    """Return the SPDX identifiers, of which users may choose one; none if there is no `license`."""
    licences = about.get("license") or []
    return [licences] if isinstance(licences, str) else list(licences)


def name_author(author: Mapping[str, str]) -> str:
    """Return the name of an author, a person or an organisation."""
    parts = ("given-names", "name-particle", "family-names", "name-suffix")
    return author.get("name") or " ".join(author[part] for part in parts if part in author) or author.get("alias", "")
