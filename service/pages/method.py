"""The text of the method, which /method and the documentation site share, with the tables that rules and words give."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from markupsafe import Markup

from service.pages.legend import BY_WORD, COLOURS, MEANINGS, REASONS
from service.pages.planning import describe_levels, describe_margins
from stages.results import ICONS, Rules

DOCS = Path(__file__).resolve().parents[2] / "docs"
_PLANS = (3, 5, 10)
_SPECIAL = re.compile(r"([\\`*_\[\]<>|])")


def describe_method(rules: Rules, whole: str, later: Iterable[tuple[str, str, str]]) -> str:
    """Return the method as Markdown: `whole` tells which data lack what, `later` what, address and name of a claim."""
    text = fill_tables((DOCS / "verdicts.md").read_text(encoding="utf-8"), rules)
    told = "\n".join(f"- {quote(what)}: [{quote(name)}]({address})" for what, address, name in later)
    return text.replace("<!-- whole -->", quote(whole)).replace("<!-- later -->", told)


def quote(text: str) -> str:
    """Return text that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", text)


def fill_tables(text: str, rules: Rules) -> str:
    """Return the method's Markdown with the tables of words, margins and levels in place of their marks."""
    words = (
        (f"{ICONS[word]} {word}", f"{REASONS[key][0].upper()}{REASONS[key][1:]}. {MEANINGS[key]}", f"`{key}`")
        for word, keys in BY_WORD.items()
        for key in keys
    )
    tables = {
        "words": _table(("verdict", "reason", "in the API"), words),
        "margins": _table(("kind of claim", "counts as the same within", "why"), describe_margins(rules)),
        "levels": _table(
            ("question", *(f"{planned} replicates planned" for planned in _PLANS)), describe_levels(rules, _PLANS)
        ),
    }
    for name, lines in tables.items():
        text = text.replace(f"<!-- {name} -->", "\n".join(lines))
    return text


def add_badges(page: Markup) -> Markup:
    """Return the page with the words of its verdicts as badges."""
    html = str(page)
    for word in BY_WORD:
        html = html.replace(
            f"<td>{ICONS[word]} {word}</td>", f'<td><span class="badge verdict {COLOURS[word]}">{word}</span></td>'
        )
    return Markup(html)


def _table(heading: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    head = list(heading)
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)
