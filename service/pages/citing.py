"""Citations of claims, papers and results: BibTeX, SVG badges, and JSON-LD for search engines.

JSON-LD is in the terms of schema.org, and of Croissant for tables of results.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from service.pages.opening import holds_in_its_order_only
from service.pages.wording import address_of, is_part, key_of, meaning_of, name_with_value, verdict_in_words
from stages.citation import CITATION, CitationError, read_about
from stages.results import (
    AGAINST_THE_PAPER,
    FOR_THE_PAPER,
    ClaimRecord,
    Dataset,
    ExperimentComparison,
    ExperimentRow,
    Paper,
    Result,
    Tally,
    Word,
)

DIGITS = 12  # of a digest on pages
RATINGS = {"for": 5, "open": 3, "against": 1}
"""Ratings of decided claims; a claim that depends on its reading lies between."""
COLOURS = {"for": "#1f6b3a", "against": "#a11d2b", "open": "#2c4d86", "waiting": "#5d6361"}
_LETTER, _MARGIN, _HEIGHT = 6.6, 12, 22  # pixels
TEXT, NUMBER, COUNT = "sc:Text", "sc:Float", "sc:Integer"
COMPARED = {
    **dict.fromkeys(("experiment", "arm", "title", "role", "metric.name", "metric.unit", "profile", "label"), TEXT),
    **dict.fromkeys(("ours.value", "ours.low", "ours.high", "printed.value"), NUMBER),
    "ours.n": COUNT,
}
RUNS = {
    **dict.fromkeys(("run_key", "arm", "profile", "provenance", "status", "label"), TEXT),
    "replicate": COUNT,
    **dict.fromkeys(("accuracy", "loss", "mse"), NUMBER),
}
"""Columns of the described tables, with the types of their values."""
_TERMS = (
    *("arrayShape", "citeAs", "column", "containedIn", "equivalentProperty", "extract", "field", "fileObject"),
    *("fileProperty", "fileSet", "format", "includes", "isArray", "isLiveDataset", "jsonPath", "key", "md5"),
    *("parentField", "path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate", "separator"),
    *("source", "subField", "transform"),
)
CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: {"@container": "@language"} for term in ("name", "description")},
    **{term: f"cr:{term}" for term in _TERMS},
}


def published_on(results: Iterable[Result]) -> str | None:
    """Return the day on which the newest of these results was published, as 2026-11-23."""
    days = [str(result.origin["published"])[:10] for result in results if result.origin]
    return max(days, default=None)


@dataclass(frozen=True)
class Project:
    """Authors and licences of the project that is served, empty where its files don't say."""

    authors: str = ""
    licence: str = ""
    has_notice: bool = False


def read_project(files: Mapping[str, Path]) -> Project:
    """Read `CITATION.cff` among the files that pages may show; one that can't be read says nothing."""
    try:
        about = read_about(files[CITATION])
    except (KeyError, OSError, CitationError):
        return Project(has_notice="NOTICE" in files)
    return Project(" and ".join(author.name for author in about.authors), " or ".join(about.license), "NOTICE" in files)


def bibtex(record: ClaimRecord, name: str, paper: Paper, address: str | None, project: Project) -> str:
    """Return an entry with the claim, its verdict, and the digest that shows whether either was changed.

    `address` is the permanent one of the service, if any.  The entry's URL contains the digest (`cited=`), so that the
    page can say whether it is still current.
    """
    digest = record.verdict.digest[:DIGITS]
    note = f"Claim {record.claim.id} of “{paper.title}”, {record.claim.place}; verdict {digest}"
    title = f"{name}: {verdict_in_words(record)}"
    url = address and f"{address.rstrip('/')}/claims/{quote(record.claim.id)}?cited={digest}"
    return _entry(record.claim.id, title, note, url, dated(record), project)


def bibtex_paper(paper: Paper, tally: Tally, address: str | None, content: str, project: Project) -> str:
    """Return an entry for all verdicts on a paper, with their counts and the digest of all results."""
    counts = f"{tally.plainly} hold, {tally.against} fail, {tally.waiting} are not tested yet"
    url = address and f"{address.rstrip('/')}/papers/{paper.name}"
    return _entry(paper.name, f"Claims of “{paper.title}”", f"{counts}; results {content[:DIGITS]}", url, None, project)


def dated(record: ClaimRecord) -> str | None:
    """Return the day of the newest result behind the verdict, else of the last change of the claim or its judging."""
    return published_on(_results(record)) or max((change.date for change in record.changes), default=None)


def bibtex_table(
    comparison: ExperimentComparison, paper: Paper, address: str | None, content: str, project: Project
) -> str:
    """Return an entry for an experiment's results, with the digest of all results in the database."""
    note = f"Results next to those of “{paper.title}”: {comparison.label}; results {content[:DIGITS]}"
    url = address and f"{address.rstrip('/')}/experiments/{quote(comparison.experiment)}"
    return _entry(comparison.experiment, comparison.title, note, url, None, project)


def _entry(key: str, title: str, note: str, address: str | None, day: str | None, project: Project) -> str:
    fields = {
        "title": f"{{{_tex(title)}}}",
        **({"author": f"{{{_tex(project.authors)}}}"} if project.authors else {}),
        **({"year": day[:4]} if day else {}),
        "note": _tex(note),
        **({"url": address} if address else {}),
    }
    lines = ",\n".join(f"  {field} = {{{text}}}" for field, text in fields.items())
    return f"@misc{{claimcheck-{re.sub('[^a-z0-9]+', '-', key.lower())},\n{lines}\n}}"


def times_reproduced(record: ClaimRecord) -> str | None:
    """Count the claim's trials, as "145 trainings in 1 environment"; None for a claim without runs."""
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
    """Return a ClaimReview of a decided claim, or the Claim alone.

    A claim that holds as a whole gets 5; one that holds only in its order, or for a part of its grid, gets 4.
    """
    article = {"@type": "ScholarlyArticle", "name": paper.title}
    if link := address_of(paper):
        article["url"] = link
    said = name_with_value(name, record.claim)
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


def article_of(paper: Paper, page: str) -> dict[str, Any]:
    """Describe the paper, with our page as a page about it."""
    link = address_of(paper)
    return {
        "@context": "https://schema.org",
        "@type": "ScholarlyArticle",
        "name": paper.title,
        "headline": paper.title[:110],
        **({"url": link, "sameAs": link} if link else {}),
        "subjectOf": {"@type": "WebPage", "name": f"Do the numbers of “{paper.title}” hold?", "url": page},
    }


def results_on(dataset: Dataset, at: str, day: str | None, project: Project) -> dict[str, Any]:
    """Describe our results on a data set."""
    based_on = {"@type": "Dataset", "name": dataset.title, "url": dataset.homepage, "license": dataset.licence}
    about = (
        f"The {dataset.title} data set, as {dataset.train_images:,} training and {dataset.test_images:,} test samples."
    )
    return _croissant(
        f"results-{dataset.name}",
        f"Results of machine-learning models on {dataset.title}: the papers’ printed numbers and ours, with intervals",
        f"{at}/?dataset={dataset.name}",
        {"compared": (f"{at}/compare?dataset={dataset.name}&format=csv", COMPARED)},
        {"isBasedOn": {**based_on, "description": about}, **_licence(at, project)},
        day,
        project,
    )


def results_of(experiment: ExperimentRow, paper: Paper, at: str, day: str | None, project: Project) -> dict[str, Any]:
    """Describe the runs of an experiment, which repeats a table of a paper."""
    return _croissant(
        experiment.name,
        f"{experiment.title}: each run of each model, with its measured numbers",
        f"{at}/experiments/{experiment.name}",
        {"runs": (f"{at}/api/v1/runs?experiment={experiment.name}&format=csv", RUNS)},
        {"isBasedOn": {"@type": "ScholarlyArticle", "name": paper.title}, **_licence(at, project)},
        day,
        project,
    )


def _licence(at: str, project: Project) -> dict[str, str]:
    return {"license": f"{at}/files/NOTICE"} if project.has_notice else {}


def _croissant(
    name: str,
    description: str,
    page: str,
    tables: Mapping[str, tuple[str, Mapping[str, str]]],
    more: Mapping[str, Any],
    day: str | None,
    project: Project,
) -> dict[str, Any]:
    """Describe a live data set in Croissant 1.1; its tables change with every result, so they have no digest."""
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": name,
        "description": description,
        "url": page,
        **({"creator": {"@type": "Organization", "name": project.authors}} if project.authors else {}),
        "isLiveDataset": True,
        **({"datePublished": day[:10]} if day else {}),
        **more,
        "distribution": [
            {
                "@type": "cr:FileObject",
                "@id": f"{table}.csv",
                "name": f"{table}.csv",
                "contentUrl": address,
                "encodingFormat": "text/csv",
            }
            for table, (address, _) in tables.items()
        ],
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": table,
                "name": table,
                "field": [
                    {
                        "@type": "cr:Field",
                        "@id": f"{table}/{column}",
                        "name": column,
                        "dataType": kind,
                        "source": {"fileObject": {"@id": f"{table}.csv"}, "extract": {"column": column}},
                    }
                    for column, kind in columns.items()
                ],
            }
            for table, (_, columns) in tables.items()
        ],
    }


def claim_badge(record: ClaimRecord, side: str) -> str:
    """Summarise the verdict, as "order supported, size open, n = 5, 2026-11"."""
    day = published_on(_results(record))
    parts = (verdict_in_words(record), f"n = {record.verdict.n}" if record.verdict.n else "", day and day[:7])
    return badge("claim", [(", ".join(filter(None, parts)), COLOURS[side])])


def paper_badge(tally: Tally) -> str:
    """Count verdicts as the front page does, as "36 hold, 2 fail, 15 open, 121 not tested", each in its colour."""
    words = {
        Word.HOLDS: ("hold", "holds", "for"),
        Word.FAILS: ("fail", "fails", "against"),
        Word.OPEN: ("open", "open", "open"),
        Word.NOT_TESTED: ("not tested", "not tested", "waiting"),
    }
    parts = [
        (f"{number} {words[word][number == 1]}", COLOURS[words[word][2]])
        for word, number in tally.by_word.items()
        if number
    ]
    return badge("claims", parts or [("none can be decided here", COLOURS["waiting"])])


def badge(label: str, parts: Sequence[tuple[str, str]]) -> str:
    """Draw fields next to each other, legible on any background."""
    texts = [label, *(text for text, _ in parts)]
    widths = [round(_LETTER * len(text) + 2 * _MARGIN) for text in texts]
    starts = [sum(widths[:number]) for number in range(len(widths))]
    name, whole = escape(f"{label}: {', '.join(texts[1:])}"), sum(widths)
    colours = ["#1d1f1e", *(colour for _, colour in parts)]
    fields = "".join(
        f'<rect x="{start}" width="{width}" height="{_HEIGHT}" fill="{colour}"/>'
        for start, width, colour in zip(starts, widths, colours, strict=True)
    )
    labels = "".join(
        f'<text x="{start + width / 2}" y="15">{escape(text)}</text>'
        for start, width, text in zip(starts, widths, texts, strict=True)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{whole}" height="{_HEIGHT}" role="img" aria-label="{name}">'
        f'<title>{name}</title><clipPath id="r"><rect width="{whole}" height="{_HEIGHT}" rx="4"/></clipPath>'
        f'<g clip-path="url(#r)">{fields}</g>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f"{labels}</g></svg>"
    )
