"""A claim or a paper for others to cite: BibTeX, JSON-LD (schema.org), and a badge as SVG."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Any

from service.pages.legend import address_of, is_part, key_of, meaning_of
from service.pages.opening import holds_in_its_order_only
from service.pages.wording import say_claim, verdict_in_words
from stages.results import AGAINST_THE_PAPER, FOR_THE_PAPER, ClaimRecord, ExperimentComparison, Paper, Result, Tally

DIGITS = 12  # of a digest, as pages show it
RATINGS = {"for": 5, "open": 3, "against": 1}
"""Of a claim that something decided; what depends on how it is read lies between."""
COLOURS = {
    "for": "#1f6b3a",
    "against": "#a11d2b",
    "open": "#2c4d86",
    "waiting": "#5d6361",
}
_LETTER, _MARGIN, _HEIGHT = 6.6, 12, 22  # pixels


def published_on(results: Iterable[Result]) -> str | None:
    """The day on which the newest of these results was published, as 2026-11-23."""
    days = [str(result.origin["published"])[:10] for result in results if result.origin]
    return max(days, default=None)


def bibtex(record: ClaimRecord, name: str, paper: Paper, address: str) -> str:
    """An entry that names the claim, its verdict, and the digest by which one sees whether either was changed.

    Its address holds the digest, too (`cited=`): the page says whether it still stands.
    """
    digest = record.verdict.digest[:DIGITS]
    note = f"Claim {record.claim.id} of “{paper.title}”, {record.claim.place}; verdict {digest}"
    title = f"{name}: {verdict_in_words(record)}"
    return _entry(record.claim.id, title, note, f"{address}?cited={digest}", dated(record))


def dated(record: ClaimRecord) -> str | None:
    """The day of the newest result behind the verdict; without any, of the last change of the claim or its judging."""
    return published_on(_results(record)) or max((change.date for change in record.changes), default=None)


def bibtex_table(comparison: ExperimentComparison, paper: Paper, address: str, content: str) -> str:
    """An entry of an experiment's table beside the paper's, with the digest of all results that the database holds."""
    note = f"Results beside those of “{paper.title}”: {comparison.label}; results {content[:DIGITS]}"
    return _entry(comparison.experiment, comparison.title, note, address, None)


def _entry(key: str, title: str, note: str, address: str, day: str | None) -> str:
    fields = {
        "title": f"{{{_tex(title)}}}",
        "author": "{The Claimcheck authors}",
        **({"year": day[:4]} if day else {}),
        "note": _tex(note),
        "url": address,
    }
    lines = ",\n".join(f"  {field} = {{{text}}}" for field, text in fields.items())
    return f"@misc{{claimcheck-{re.sub('[^a-z0-9]+', '-', key.lower())},\n{lines}\n}}"


def times_reproduced(record: ClaimRecord) -> str | None:
    """How often the claim was tried, as "145 trainings in 1 environment"; None of a claim without runs."""
    results = _results(record)
    if not results:
        return None
    runs, places = (len({getattr(result, name) for result in results}) for name in ("run_key", "machine_digest"))
    return f"{runs} training{'s' if runs != 1 else ''} in {places} environment{'s' if places != 1 else ''}"


def _results(record: ClaimRecord) -> list[Result]:
    return [run.result for run in record.runs]


def _tex(text: str) -> str:
    return re.sub(r"([&%$#_{}])", r"\\\1", text)


def json_ld(record: ClaimRecord, name: str, paper: Paper, address: str, side: str) -> dict[str, Any]:
    """A ClaimReview where something decided the claim, else the Claim alone.

    Full marks are for a claim that holds whole: of an order whose size isn't as printed, or open, and of a part of what
    the claim is about it is one less.
    """
    article = {"@type": "ScholarlyArticle", "name": paper.title}
    if link := address_of(paper):
        article["url"] = link
    said = say_claim(name, record.claim)
    claim = {"@type": "Claim", "name": said, "appearance": article}
    if record.verdict.status not in (*FOR_THE_PAPER, *AGAINST_THE_PAPER):
        return {"@context": "https://schema.org", **claim, "url": address}
    day = dated(record)
    is_whole = not (holds_in_its_order_only(record.verdict) or is_part(record.verdict))
    value = RATINGS[side] - (side == "for" and not is_whole)
    rating = {"@type": "Rating", "ratingValue": value, "bestRating": 5, "worstRating": 1}
    return {
        "@context": "https://schema.org",
        "@type": "ClaimReview",
        "url": address,
        "claimReviewed": said,
        "itemReviewed": claim,
        "author": {"@type": "Organization", "name": "Claimcheck"},
        "reviewRating": {
            **rating,
            "alternateName": verdict_in_words(record),
            "ratingExplanation": meaning_of(key_of(record)),
        },
        "reviewBody": record.verdict.explanation,
        **({"datePublished": day} if day else {}),
    }


def claim_badge(record: ClaimRecord, side: str) -> str:
    """As "order supported, size open, n = 5, 2026-11"."""
    day = published_on(_results(record))
    parts = [
        verdict_in_words(record),
        f"n = {record.verdict.n}" if record.verdict.n else "",
        day[:7] if day else "",
    ]
    return badge("claim", ", ".join(part for part in parts if part), COLOURS[side])


def paper_badge(tally: Tally | None) -> str:
    """As "5 of 126 by training, 34 of 37 by computing, 3 against, 3 in one reading only"; facts of data don't count."""
    grounds = [(tally.trained, "training"), (tally.computed, "computing")] if tally else []
    known = [(counts, how) for counts, how in grounds if counts.decidable]
    if not known:
        return badge("claims", "none can be decided here", COLOURS["waiting"])
    decided, against, plainly, read = (
        sum(getattr(counts, name) for counts, _ in known) for name in ("decided", "against", "plainly", "under_reading")
    )
    parts = [f"{counts.decided} of {counts.decidable} by {how}" for counts, how in known]
    parts += [f"{against} against"] if decided else []
    parts += [f"{read} in one reading only"] if read else []
    colour = "against" if against else "for" if plainly else "reading" if read else "waiting"
    return badge("claims decided", ", ".join(parts), COLOURS[colour])


def badge(label: str, text: str, colour: str) -> str:
    """Two fields side by side, readable on any background."""
    left, right = (round(_LETTER * len(part) + 2 * _MARGIN) for part in (label, text))
    name, width = escape(f"{label}: {text}"), left + right
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_HEIGHT}" role="img" aria-label="{name}">'
        f"<title>{name}</title>"
        f'<rect width="{width}" height="{_HEIGHT}" rx="4" fill="{colour}"/>'
        f'<path d="M4 0h{left - 4}v{_HEIGHT}H4a4 4 0 0 1-4-4V4a4 4 0 0 1 4-4z" fill="#1d1f1e"/>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{left / 2}" y="15">{escape(label)}</text>'
        f'<text x="{left + right / 2}" y="15">{escape(text)}</text></g></svg>'
    )
