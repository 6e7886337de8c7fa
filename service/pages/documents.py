"""Markdown documents of the repository as pages: raw HTML is escaped, and links stay within the site."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

from service.pages.formats import is_web_address

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

    A relative link leads to one of the `shown` files here, else into the `repository`, else it is plain text.
    """
    tokens = _MARKDOWN.parse(_COMMENT.sub("", text))
    title = path
    if len(tokens) > 1 and tokens[0].tag == "h1":
        title, tokens = tokens[1].content.replace("`", ""), tokens[3:]
    contents, known = list[tuple[str, str]](), Counter[str]()
    for token, following in itertools.pairwise(tokens):
        if token.type == "heading_open":  # gets the anchor that GitHub gives it
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
            token.type = "text"  # what the picture shows
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
