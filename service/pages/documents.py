"""Documents of the repository as HTML, and the method's text with the tables that rules and words give."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markupsafe import Markup

from service.pages.legend import BY_WORD, COLOURS, MEANINGS, REASONS
from service.pages.planning import tell_levels, tell_margins
from stages.rules import Rules

DOCS = Path(__file__).resolve().parents[2] / "docs"
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_LINK = re.compile(r'<a href="(?!https?:|#|/)([^"#]*)(#[^"]*)?">(.*?)</a>', re.DOTALL)
_SCROLLED = '<div class="scroll" tabindex="0" role="region" aria-label="Table">'
_PLANS = (3, 5, 10)


def render(text: str, path: str, files: Mapping[str, Path] | None = None) -> Markup:
    """Return Markdown as HTML; links from `path` lead to those of `files` that are shown, others become plain text."""
    shown = files or {}

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), found[1]))
        return f'<a href="/files/{target}{found[2] or ""}">{found[3]}</a>' if target in shown else found[3]

    html = str(MarkdownIt("commonmark", {"html": True}).enable("table").render(_COMMENT.sub("", text)))
    html = re.sub(r"<h3>(\d{4})</h3>", r'<h3 id="\1">\1</h3>', html)
    html = html.replace("<table>", f'{_SCROLLED}<table class="rows wrapped">').replace("</table>", "</table></div>")
    return Markup(_LINK.sub(link, html))


@cache
def read_method() -> tuple[str, str]:
    """Return the text of the method without its heading and its simulated error rates, and the table of terms."""
    method, terms = ((DOCS / name).read_text(encoding="utf-8") for name in ("verdicts.md", "glossary.md"))
    body = method.partition("\n\n")[2]
    return body.partition("\n## How often a judge errs")[0], terms.partition("\n\n")[2]


def fill_tables(text: str, rules: Rules) -> str:
    """Return the method's Markdown with the tables of words, margins and levels in place of their marks."""
    words = (
        (
            f'<span class="badge verdict {COLOURS[word]}">{word}</span>',
            f"{REASONS[key][0].upper()}{REASONS[key][1:]}. {MEANINGS[key]}",
            f"`{key}`",
        )
        for word, keys in BY_WORD.items()
        for key in keys
    )
    margins = ((row.kind, row.margin, row.why) for row in tell_margins(rules))
    levels = ((row.question, *(row.plans[planned] for planned in _PLANS)) for row in tell_levels(rules, _PLANS))
    tables = {
        "words": _table(("verdict", "reason", "in the API"), words),
        "margins": _table(("kind of claim", "counts as the same within", "why"), margins),
        "levels": _table(("question", *(f"{planned} replicates planned" for planned in _PLANS)), levels),
    }
    for name, lines in tables.items():
        text = text.replace(f"<!-- {name} -->", "\n".join(lines))
    return text


def _table(heading: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    head = list(heading)
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)
