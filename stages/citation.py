"""Reads `CITATION.cff`: who made a project, and under which licences."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from stages.texts import decode

CITATION = "CITATION.cff"
_NAMES = ("given-names", "name-particle", "family-names", "name-suffix")


class CitationError(ValueError):
    """A file that can't be read, or a field of another type; the message is one line that says what was expected."""


@dataclass(frozen=True)
class Author:
    """A person or an organisation; `address` is its ORCID iD or website, empty if it has none."""

    name: str
    is_organisation: bool
    address: str


@dataclass(frozen=True)
class Citation:
    """Fields of the file, empty if it lacks them.  `license`: SPDX identifiers, of which users may choose one."""

    authors: tuple[Author, ...]
    title: str
    version: str
    license: tuple[str, ...]


def read_about(path: Path) -> Citation:
    """Read the file's fields.

    Raises:
        OSError: it can't be read.
        CitationError: it isn't YAML in UTF-8, or a field has another type.
    """
    try:
        found = yaml.safe_load(decode(path.read_bytes(), path))
    except (ValueError, yaml.YAMLError) as error:  # ValueError: another encoding, or an impossible date
        raise CitationError(f"{path.name} isn't YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise CitationError(f"{path.name} is {found!r}; expected fields, such as authors and title")
    licences, authors = found.get("license") or [], found.get("authors") or []
    if not isinstance(authors, list):
        raise CitationError(f"{path.name}: authors is {authors!r}; expected a list, each author after a dash")
    return Citation(
        authors=tuple(_read_author(author, f"{path.name}: authors.{n}") for n, author in enumerate(authors)),
        title=_text(found, "title", path.name),
        version=_text(found, "version", path.name),
        license=tuple(
            _text({"license": one}, "license", path.name)
            for one in (licences if isinstance(licences, list) else [licences])
        ),
    )


def _read_author(fields: Any, where: str) -> Author:
    if not isinstance(fields, dict):
        raise CitationError(f"{where} is {fields!r}; expected given-names and family-names, or name")
    organisation = _text(fields, "name", where)
    person = " ".join(filter(None, (_text(fields, name, where) for name in _NAMES)))
    name = organisation or person or _text(fields, "alias", where)
    if not name:
        raise CitationError(f"{where} has no name; expected given-names and family-names, name or alias")
    return Author(name, bool(organisation), _text(fields, "orcid", where) or _text(fields, "website", where))


def _text(fields: dict[str, Any], name: str, where: str) -> str:
    """Return a field's text, empty if there is none; a version may be written as a number."""
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int | float | None):
        raise CitationError(f"{where}: {name} is {value!r}; expected a text")
    return "" if value is None else str(value)
