"""Links to files of the repository: at its public address if one is configured, else on a page here.

Markdown is rendered as a page: raw HTML is escaped, and links stay within the site.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from jinja2 import Environment
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

from service.pages.formats import is_web_address, prose

SHOWN = ("LICENSE", "NOTICE", "CITATION.cff", "README.md", "CHANGELOG.md", "params.yaml", "params/*.yaml")
DOCUMENTS = ("docs/*.md", "docs/*/*.md", "docs/*.png", "data/evidence/equivalences.jsonl")
"""Patterns of the files that pages may show."""
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
    """Link a file by its path below the root; without `text`, the path is shown as code."""
    shown = escape(text) if text else Markup("<code>{}</code>").format(path)
    if repository is not None:
        return Markup('<a href="{}/blob/HEAD/{}">{}</a>').format(repository.rstrip("/"), path, shown)
    if path in files:
        return Markup('<a href="/files/{}">{}</a>').format(path, shown)
    return shown if text else Markup("{} in the repository").format(shown)


def link_named(repository: str | None, files: Mapping[str, Path], text: str) -> Markup:
    """Mark code in a text, and link documents and "decision 0008" if they can be shown."""

    def decision(found: re.Match[str]) -> str:
        linked = str(link_file(repository, files, "docs/decisions.md", found[0]))
        return linked.replace('.md"', f'.md#{found[1]}"') if "<a " in linked else f"{found[0]} of the repository"

    def named(found: re.Match[str]) -> str:
        return str(link_file(repository, files, found[0], found[0])) if found[0] in files else found[0]

    return Markup(_DECISION.sub(decision, _NAMED.sub(named, str(prose(text)))))


def install(environment: Environment, repository: str | None, contact: str | None, files: Mapping[str, Path]) -> None:
    """Register the global `file`, the filter `prose`, which links documents, and the addresses."""
    environment.globals |= {
        "repository": repository,
        "contact": contact,
        "contact_link": contact if contact is None or contact.startswith("http") else f"mailto:{contact}",
        "file": partial(link_file, repository, files),
    }
    environment.filters["prose"] = partial(link_named, repository, files)


_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
_SCROLLING = {  # no text holds these tags, because raw HTML is escaped
    "<pre>": '<pre tabindex="0">',
    "</table>": "</table></div>",
    "&lt;br&gt;": "<br>",  # the only tag that our tables need
}
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


@dataclass(frozen=True)
class Document:
    """A rendered document without its title; `contents` are its sections, as (anchor, heading)."""

    title: str
    body: Markup
    contents: tuple[tuple[str, str], ...]


@lru_cache(64)
def render(path: str, text: str, shown: frozenset[str], repository: str | None) -> Document:
    """Render the document at `path` below the root.

    A relative link leads to one of the `shown` files, else to the `repository`; without either it becomes plain text.
    """
    tokens = _MARKDOWN.parse(_COMMENT.sub("", text))
    title = path
    if len(tokens) > 1 and tokens[0].tag == "h1":
        title, tokens = tokens[1].content.replace("`", ""), tokens[3:]
    contents, known = list[tuple[str, str]](), Counter[str]()
    for token, following in itertools.pairwise(tokens):
        if token.type == "heading_open":  # same anchor as on GitHub
            heading = following.content.replace("`", "")
            anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
            token.attrSet("id", f"{anchor}-{known[anchor]}" if known[anchor] else anchor)
            known[anchor] += 1
            if token.tag == "h2":
                contents.append((str(token.attrs["id"]), heading))
    for token in tokens:
        if "style" in token.attrs:  # the alignment of a cell; pages have no inline style
            token.attrs = {"class": "number"} if "right" in str(token.attrs["style"]) else {}
        _place_links(token.children or (), posixpath.dirname(path), shown, repository)
    html = _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})
    for tag, scrolling in _SCROLLING.items():
        html = html.replace(tag, scrolling)
    numbers, name = itertools.count(1), escape(title)  # regions of one page have names of their own
    region = '<div class="scroll" tabindex="0" role="region" aria-label="{}, table {}"><table class="wrapped">'
    html = re.sub("<table>", lambda _: region.format(name, next(numbers)), html)
    return Document(title, Markup(html), tuple(contents))


def _place_links(tokens: Iterable[Token], folder: str, shown: frozenset[str], repository: str | None) -> None:
    is_plain = False
    for token in tokens:
        if token.type in ("link_open", "image"):
            key = "src" if token.type == "image" else "href"
            address = _address(str(token.attrs[key]), folder, shown, repository)
            is_plain = address is None
            token.attrs = {key: address} if address else {}
        if is_plain and token.type == "image":
            token.type = "text"  # its alternative text
        elif is_plain and token.type in ("link_open", "link_close"):
            token.tag = "span"


def _address(link: str, folder: str, shown: frozenset[str], repository: str | None) -> str | None:
    if is_web_address(link) or link.startswith(("#", "/", "mailto:")):
        return link
    name, mark, anchor = link.partition("#")
    path = posixpath.normpath(posixpath.join(folder, name))
    if path in shown:
        return f"/files/{path}{mark}{anchor}"
    return f"{repository.rstrip('/')}/blob/HEAD/{path}" if repository and not path.startswith("..") else None
