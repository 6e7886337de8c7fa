"""A problem as a page: what isn't there, in plain words, and where to look instead."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from fastapi import Request

from stages.results import UnknownName

_NOUNS = {"dataset": "data set", "arm": "model"}
_TITLES: Mapping[int, str] = {
    400: "This request can’t be understood",
    401: "A key is needed here",
    404: "No such page",
    405: "Nothing to see here",
    408: "That took too long",
    409: "This can’t be told apart",
    413: "This is too large",
    415: "This kind of file isn’t read here",
    422: "This can’t be answered as asked",
    429: "Too many requests; please wait a little",
    500: "Something went wrong here",
    503: "Not available at the moment",
}
_PAGES = {"paper": "/papers/{}", "dataset": "/?dataset={}", "experiment": "/experiments/{}"}
"""Where a thing of a kind has its page."""
MOST_OFFERED = 24


@dataclass(frozen=True)
class Explained:
    """`offers` are (address, name) of what may have been meant, the likeliest first; `asked` fills the search."""

    title: str
    lead: str
    asked: str
    offers: Sequence[tuple[str, str]]


def explain(status: int, detail: str, error: Exception | None, request: Request) -> Explained:
    """What a browser is told in place of `detail`, which is for programs."""
    path = request.scope["path"]
    if isinstance(error, UnknownName):
        noun = _NOUNS.get(error.kind, error.kind)
        lead = f"There is no {noun} with the name “{error.name[:80]}”. The address may have a typo, or be an old one."
        near = [error.nearest] if error.nearest else difflib.get_close_matches(error.name, error.known, n=3)
        names = [*near, *(name for name in error.known if name not in near)][:MOST_OFFERED]
        offers = [(_address(error.kind, name, request), name) for name in names]
        return Explained(f"No such {noun}", lead, _words(error.name), [pair for pair in offers if pair[0]])
    if status == 404:
        lead = "Nothing is at this address. It may have a typo, or be an old one."
        return Explained(_TITLES[404], lead, _words(path.rpartition("/")[2]), [])
    return Explained(_TITLES.get(status, "This didn’t work"), f"{detail[:1].upper()}{detail[1:]}", "", [])


def _address(kind: str, name: str, request: Request) -> str:
    """The page of a thing; of a choice on a page, this page with the other choice."""
    if kind == "claim":
        return f"/claims/{quote(name)}"
    if kind in _PAGES:
        return _PAGES[kind].format(quote(name))
    if kind not in request.query_params:
        return ""
    query = request.url.include_query_params(**{kind: name}).query
    return f"{quote(request.scope['path'])}?{query}"


def _words(name: str) -> str:
    """An identifier as words to search for."""
    return " ".join(re.findall(r"[^\W_]+", name))[:100]
