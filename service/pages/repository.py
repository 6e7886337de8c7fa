"""Files of the repository on pages: linked where an operator says where it is, else named."""

from __future__ import annotations

import re
from functools import partial

from jinja2 import Environment
from markupsafe import Markup, escape

from service.pages.formats import prose

_DECISIONS = "docs/decisions/README.md"


def link_file(repository: str | None, path: str, text: str | None = None) -> Markup:
    """A file below the root of the repository, as code unless it has a `text`."""
    shown = escape(text) if text else Markup("<code>{}</code>").format(path)
    if repository is None:
        return shown if text else Markup("{} in the repository").format(shown)
    return Markup('<a href="{}/blob/HEAD/{}">{}</a>').format(repository.rstrip("/"), path, shown)


def link_decisions(repository: str | None, text: str) -> Markup:
    """A text with its code marked, and "decision 0008" as a link where it can be one."""
    marked = prose(text)
    if repository is None:
        return Markup(re.sub(r"\b(decisions? \d{4})\b", r"\1 of the repository", str(marked)))
    link = link_file(repository, _DECISIONS, "X").replace("X", r"\1")
    return Markup(re.sub(r"\b(decisions? \d{4})\b", link, str(marked)))


def install(environment: Environment, repository: str | None) -> None:
    """Register the global `file`, the filter `prose` that links decisions, and the address itself."""
    environment.globals["repository"] = repository
    environment.globals["file"] = partial(link_file, repository)
    environment.filters["prose"] = partial(link_decisions, repository)
