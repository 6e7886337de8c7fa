"""Papers, data sets and experiments for search engines: schema.org, and Croissant for tables of results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.pages.legend import address_of
from stages.results import Dataset, ExperimentRow, Paper

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


def results_on(dataset: Dataset, at: str, day: str | None) -> dict[str, Any]:
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
        {"isBasedOn": {**based_on, "description": about}, "license": f"{at}/files/NOTICE"},
        day,
    )


def results_of(experiment: ExperimentRow, paper: Paper, at: str, day: str | None) -> dict[str, Any]:
    """Describe the runs of an experiment, which repeats a table of a paper."""
    return _croissant(
        experiment.name,
        f"{experiment.title}: each run of each model, with its measured numbers",
        f"{at}/experiments/{experiment.name}",
        {"runs": (f"{at}/api/v1/runs?experiment={experiment.name}&format=csv", RUNS)},
        {"isBasedOn": {"@type": "ScholarlyArticle", "name": paper.title}, "license": f"{at}/files/NOTICE"},
        day,
    )


def _croissant(
    name: str,
    description: str,
    page: str,
    tables: Mapping[str, tuple[str, Mapping[str, str]]],
    more: Mapping[str, Any],
    day: str | None,
) -> dict[str, Any]:
    """Describe a live data set in Croissant 1.1; its tables change with every result, so they have no digest."""
    return {
        "@context": CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": name,
        "description": description,
        "url": page,
        "creator": {"@type": "Organization", "name": "The Claimcheck authors"},
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
