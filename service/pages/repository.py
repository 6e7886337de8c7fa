"""Files of the repository on pages: linked where an operator says where it is, else shown here; else named."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from jinja2 import Environment
from markupsafe import Markup, escape

from service.pages.formats import prose

SHOWN = ("LICENSE", "NOTICE", "CITATION.cff", "README.md", "CHANGELOG.md", "params.yaml", "params/*.yaml")
DOCUMENTS = ("docs/*.md", "docs/*/*.md", "docs/*.png", "data/evidence/equivalences.jsonl")
"""Patterns of the files that pages speak of; none else is shown."""
_NAMED = re.compile(r"\bdocs/[\w/.-]+\.md\b|\bparams(?:/[\w-]+)?\.yaml\b")
_DECISION = re.compile(r"\bdecisions? (\d{4})\b")


def files_below(root: Path) -> dict[str, Path]:
    """`{path: file}` of the files that pages may show, by their paths below `root`."""
    return {
        found.relative_to(root).as_posix(): found
        for pattern in (*SHOWN, *DOCUMENTS)
        for found in sorted(root.glob(pattern))
        if found.is_file()
    }


def link_file(repository: str | None, files: Mapping[str, Path], path: str, text: str | None = None) -> Markup:
    """A file below the root of the repository, as code unless it has a `text`."""
    shown = escape(text) if text else Markup("<code>{}</code>").format(path)
    if repository is not None:
        return Markup('<a href="{}/blob/HEAD/{}">{}</a>').format(repository.rstrip("/"), path, shown)
    if path in files:
        return Markup('<a href="/files/{}">{}</a>').format(path, shown)
    return shown if text else Markup("{} in the repository").format(shown)


def link_named(repository: str | None, files: Mapping[str, Path], text: str) -> Markup:
    """A text with its code marked, and documents and "decision 0008" as links where they can be."""

    def decision(found: re.Match[str]) -> str:
        linked = str(link_file(repository, files, "docs/decisions.md", found[0]))
        return linked.replace('.md"', f'.md#{found[1]}"') if "<a " in linked else f"{found[0]} of the repository"

    def named(found: re.Match[str]) -> str:
        return str(link_file(repository, files, found[0], found[0])) if found[0] in files else found[0]

    return Markup(_DECISION.sub(decision, _NAMED.sub(named, str(prose(text)))))


def install(environment: Environment, repository: str | None, contact: str | None, files: Mapping[str, Path]) -> None:
    """Register the global `file`, the filter `prose` that links documents, and the addresses themselves."""
    environment.globals |= {
        "repository": repository,
        "contact": contact,
        "contact_link": contact if contact is None or contact.startswith("http") else f"mailto:{contact}",
        "file": partial(link_file, repository, files),
    }
    environment.filters["prose"] = partial(link_named, repository, files)
