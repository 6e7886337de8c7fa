"""A whole reproduction as a Process Run Crate 0.5: what ran, with what, on what, what came out, and what follows.

Evidence comes from many executions, on several machines and at several revisions, so there is no single execution of a
workflow that the larger profiles of Workflow Run RO-Crate describe (decision 0046).  Each training is a `CreateAction`;
each verdict a `ClaimReview` of a `Claim` of a paper, based on the outcomes of trainings.

A program's revision is named by its Software Heritage identifier, which is git's own digest of it.  The same files give
the same bytes.  When a training ran isn't known, only when its result was published, so an action
has no times.
"""

from __future__ import annotations

import datetime
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from sqlalchemy import select

from stages.faults import Mistake
from stages.recording import record
from stages.results import ClaimFilter, Dataset, ExperimentRow, JudgedClaim, Paper, Result, list_judged, open_results
from stages.run import canonical_json
from stages.runs.evidence import LABS

PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
_TERMS = {"environment": "https://w3id.org/ro/terms/workflow-run#environment"}
"""Of Workflow Run RO-Crate, which RO-Crate's own context lacks."""
_VERSION = "1.1"
"""Of RO-Crate: the one that the profile builds on."""
_FILES = (
    *("CITATION.cff", "LICENSE", "NOTICE", "dvc.yaml", "params.yaml", "params/*.yaml", "pyproject.toml"),
    *("requirements/*.lock", "data/claims.csv", "data/claims-history.jsonl", "data/evidence/**/*.jsonl"),
    *("data/registrations/*.json", "data/results/*.jsonl", "data/findings.jsonl"),
)
_CODE = "stages"
_HERE = "#claimcheck"
_FORMATS = {
    ".cff": "application/yaml",
    ".csv": "text/csv",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".toml": "application/toml",
    ".yaml": "application/yaml",
}
Entity = dict[str, Any]


class CrateError(Mistake, ValueError):
    """The crate can't be written; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """The folder of a crate, and how many trainings and verdicts it tells of."""

    folder: Path
    trainings: int
    verdicts: int


def write_crate(root: Path, folder: Path) -> Written:
    """Write the crate of the clone in `root`: published results, and local ones where there are any."""
    if folder.exists():
        raise CrateError(f"{folder} is there already; name a folder that isn't")
    with tempfile.TemporaryDirectory(prefix="claimcheck-") as scratch:
        database = str(Path(scratch) / "results.db")
        record(root.resolve(), database)
        with open_results(database)() as session:
            judged = list_judged(session, ClaimFilter())
            results = list(session.scalars(select(Result).order_by(Result.id)))
            experiments = {row.name: row for row in session.scalars(select(ExperimentRow))}
            entities = [
                *(
                    {
                        "@id": f"#paper-{paper.name}",
                        "@type": "ScholarlyArticle",
                        "name": paper.title,
                        "abstract": paper.summary,
                    }
                    for paper in session.scalars(select(Paper).order_by(Paper.position))
                ),
                *(  # each packed data set by its digest
                    {
                        "@id": key,
                        "@type": "CreativeWork",
                        "name": f"{row.title}, packed",
                        "description": f"{result.provenance} data: {result.train_images} to train, "
                        f"{result.test_images} to test",
                        "identifier": result.data_digest,
                        "license": row.licence,
                        "url": row.homepage,
                    }
                    for key, result in {_data_id(result, experiments): result for result in results}.items()
                    for row in [session.get_one(Dataset, experiments[result.experiment].dataset)]
                ),
                *(
                    {
                        "@id": f"#environment-{digest}",
                        "@type": "PropertyValue",
                        "name": "environment",
                        "propertyID": digest,
                        "value": canonical_json(result.environment),
                    }
                    for digest, result in {result.environment_digest: result for result in results}.items()
                ),
                *_programs(root, results),
                *(entity for result in results for entity in _training(result, experiments)),
                *(entity for one in judged for entity in _verdict(one)),
                {
                    "@id": "#judging",
                    "@type": "CreateAction",
                    "name": "Judging the claims",
                    "description": "By rules that were fixed before the data: `verdicts` of params.yaml",
                    "instrument": _id(_HERE),
                    "agent": _id("#authors"),
                    "object": _ids(["params.yaml", "data/claims.csv", *map(_file_of, results)]),
                    "result": _ids(f"#verdict-{one.claim.id}" for one in judged),
                    "actionStatus": "http://schema.org/CompletedActionStatus",
                },
            ]
            published = max(
                (str((result.origin or {})["published"])[:10] for result in results if result.origin), default=None
            )
    _write(root, folder, entities, published or datetime.date.today().isoformat())
    return Written(folder=folder, trainings=len(results), verdicts=len(judged))


def _id(entity: str) -> dict[str, str]:
    return {"@id": entity}


def _ids(entities: Iterable[str]) -> Any:
    """References, a single one by itself, as RO-Crate 1.1 recommends."""
    found = [_id(entity) for entity in dict.fromkeys(entities)]
    return found[0] if len(found) == 1 else found


def _data_id(result: Result, experiments: Mapping[str, ExperimentRow]) -> str:
    return f"#data-{experiments[result.experiment].dataset}-{result.data_digest[:16]}"


def _program_id(result: Result) -> str:
    return f"swh:1:rev:{result.origin['revision']}" if result.origin else _HERE


def _programs(root: Path, results: Iterable[Result]) -> Iterator[Entity]:
    """The program as it is here, and at each revision that published results."""
    about = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    shared = {
        "@type": "SoftwareApplication",
        "license": _id(_licence_id(about)),
        "author": _id("#authors"),
    }
    yield {
        "@id": _HERE,
        "name": "Claimcheck",
        "softwareVersion": about["version"],
        "hasPart": _id(f"{_CODE}/"),
        **shared,
    }
    for key, result in {_program_id(result): result for result in results if result.origin}.items():
        origin = result.origin or {}
        changed = ", with changes that aren't committed" if origin["dirty"] else ""
        yield {
            "@id": key,
            "name": f"Claimcheck at revision {origin['revision'][:12]}{changed}",
            "softwareVersion": origin["revision"],
            "softwareRequirements": [f"{name} {version}" for name, version in sorted(origin["versions"].items())],
            **shared,
        }


def _name(result: Result) -> str:
    return f"{result.experiment}.{result.arm}.{result.replicate}"


def _outcome_id(result: Result) -> str:
    return f"#outcome-{_name(result)}-{result.run_key[:12]}-{result.environment_digest}"


def _training(result: Result, experiments: Mapping[str, ExperimentRow]) -> Iterator[Entity]:
    """The action, its outcome with each number, and the spec that its run key is the digest of."""
    outcome, key = _outcome_id(result), f"#spec-{result.run_key[:16]}"
    file = _file_of(result)
    numbers: list[Entity] = [
        {
            "@id": f"{outcome}/{row.metric}-{row.split}",
            "@type": "PropertyValue",
            "name": row.metric,
            "description": f"on {row.split}" if row.n is None else f"on {row.split}, of {row.n} samples",
            "value": row.value,
        }
        for row in result.metrics
    ]
    lab = (result.origin or {}).get("lab")
    if lab:
        yield {"@id": f"#lab-{lab}", "@type": "Organization", "name": lab}
    action: Entity = {
        "@id": outcome.replace("#outcome", "#training", 1),
        "@type": "CreateAction",
        "name": f"Training {_name(result)}",
        "description": f"{result.cut or 'As printed'}, profile {result.profile}, "
        f"for {experiments[result.experiment].title}",
        "instrument": _id(_program_id(result)),
        "agent": _id(f"#lab-{lab}" if lab else "#authors"),
        "object": [_id(_data_id(result, experiments)), _id(key), _id(f"params/{result.experiment}.yaml")],
        "environment": _id(f"#environment-{result.environment_digest}"),
        "result": _id(outcome),
        "actionStatus": f"http://schema.org/{'Failed' if result.divergence else 'Completed'}ActionStatus",
    }
    if result.divergence:
        action["error"] = f"the loss stopped being finite by step {result.divergence['step']}"
    yield action
    yield {
        "@id": outcome,
        "@type": "CreativeWork",
        "name": f"Outcome of {_name(result)}",
        "identifier": result.run_key,
        "isPartOf": _id(file),
        **({"sha256": result.weights_sha256} if result.weights_sha256 else {}),
        "variableMeasured": _ids(number["@id"] for number in numbers),
    }
    yield {
        "@id": key,
        "@type": "CreativeWork",
        "name": f"What run {result.run_key[:12]} trains",
        "description": "Its sha256, over canonical JSON, is the run key.",
        "identifier": result.run_key,
        "encodingFormat": "application/json",
        "text": canonical_json(result.spec),
    }
    yield from numbers


def _file_of(result: Result) -> str:
    if lab := (result.origin or {}).get("lab"):
        return f"data/evidence/{LABS}/{lab}.jsonl"
    return f"data/{'evidence' if result.origin else 'results'}/{result.experiment}.jsonl"


def _verdict(one: JudgedClaim) -> Iterator[Entity]:
    claim, verdict = one.claim, one.verdict
    printed = " ".join(str(part) for part in (claim.metric, claim.value, claim.unit, claim.qualifier) if part)
    says = claim.statement or f"{claim.arm or claim.kind}: {printed}"
    yield {
        "@id": f"#claim-{claim.id}",
        "@type": "Claim",
        "name": claim.id,
        "text": says,
        "appearance": _id(f"#paper-{claim.paper}"),
        "description": claim.place,
    }
    rating = f"#verdict-{claim.id}/rating"
    yield {"@id": rating, "@type": "Rating", "name": verdict.marked_status, "ratingExplanation": verdict.explanation}
    yield {
        "@id": f"#verdict-{claim.id}",
        "@type": ["CreativeWork", "ClaimReview"],
        "name": f"Verdict on {claim.id}",
        "claimReviewed": says,
        "itemReviewed": _id(f"#claim-{claim.id}"),
        "reviewBody": verdict.explanation,
        "reviewRating": _id(rating),
        "author": _id("#authors"),
        "identifier": verdict.digest,
        **({"isBasedOn": _ids(_outcome_id(run.result) for run in verdict.runs)} if verdict.runs else {}),
    }


def _licence_id(about: Mapping[str, Any]) -> str:
    return f"https://spdx.org/licenses/{about['license']}"


def _authors(about: Mapping[str, Any]) -> Iterator[Entity]:
    """The authors of CITATION.cff, persons or not, as one organisation of them."""
    members = []
    for author in about["authors"]:
        name = author.get("name") or f"{author['given-names']} {author['family-names']}"
        kind = "Organization" if "name" in author else "Person"
        members.append(
            {
                "@id": author.get("orcid") or author.get("website") or f"#author-{name.replace(' ', '-')}",
                "@type": kind,
                "name": name,
            }
        )
    yield {
        "@id": "#authors",
        "@type": "Organization",
        "name": ", ".join(one["name"] for one in members),
        "member": _ids(one["@id"] for one in members),
    }
    yield from members


def _write(root: Path, folder: Path, entities: Iterable[Entity], published: str) -> None:
    from rocrate.model.contextentity import ContextEntity  # it brings much that no other command needs
    from rocrate.model.dataset import Dataset as Folder
    from rocrate.rocrate import ROCrate

    about = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    licence = _licence_id(about)
    crate = ROCrate(version=_VERSION)
    crate.metadata.extra_terms.update(_TERMS)
    crate.root_dataset.properties().pop("datePublished", None)
    for file in (path for pattern in _FILES for path in sorted(root.glob(pattern))):
        name = file.relative_to(root).as_posix()
        told = {"name": name, "encodingFormat": _FORMATS.get(file.suffix, "text/plain")}
        crate.add_file(file, name, properties=told)
    crate.add(Folder(crate, dest_path=f"{_CODE}/", properties={"name": "Source code", "license": _id(licence)}))
    described = [
        {
            "@id": licence,
            "@type": "CreativeWork",
            "name": about["license"],
            "description": "The licence of code and models",
        },
        {"@id": PROFILE, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"},
        *_authors(about),
        *entities,
    ]
    for entity in {entity["@id"]: entity for entity in described}.values():
        crate.add(ContextEntity(crate, entity["@id"], properties={k: v for k, v in entity.items() if k != "@id"}))
    root_data = crate.root_dataset
    root_data["name"], root_data["description"] = (
        about["title"],
        "Every training, its data, code, environment and numbers, and every verdict",
    )
    root_data["datePublished"], root_data["license"], root_data["conformsTo"] = published, _id(licence), _id(PROFILE)
    root_data["author"] = root_data["publisher"] = _id("#authors")
    root_data["mentions"] = [_id(one["@id"]) for one in described if one["@type"] == "CreateAction"]
    crate.write(folder)
    shutil.copytree(
        root / _CODE, folder / _CODE, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
