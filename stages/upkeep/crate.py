"""Writes a whole reproduction as a Process Run Crate 0.5: trainings, their inputs and outcomes, and the verdicts.

Evidence comes from many executions, on several machines and at several revisions.  The larger profiles of Workflow Run
RO-Crate describe a single execution of a workflow, so they don't fit (decision 0046).  Each training is a
`CreateAction`; each verdict is a `ClaimReview` of a paper's `Claim`, based on the outcomes of trainings.

A program's revision is named by its Software Heritage identifier, which is git's own digest of it.  The same files give
the same bytes.  Actions have no times, because only the time at which a result was published is known.
"""

from __future__ import annotations

import datetime
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sqlalchemy import select

from stages.citation import Citation
from stages.recording.builder import record
from stages.results import ClaimFilter, Dataset, ExperimentRow, JudgedClaim, Paper, Result, list_judged, open_results
from stages.run import canonical_json
from stages.runs.evidence import LABS
from stages.upkeep.exporting import Exported, read_citation, require_new

PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
_TERMS = {"environment": "https://w3id.org/ro/terms/workflow-run#environment"}
"""Terms of Workflow Run RO-Crate that RO-Crate's own context lacks."""
_VERSION = "1.1"
"""Version of RO-Crate on which the profile builds."""
_FILES = (
    *("CITATION.cff", "LICENSE", "NOTICE", "dvc.yaml", "params.yaml", "params/*.yaml", "pyproject.toml"),
    *("requirements/*.lock", "data/claims.csv", "data/claims-history.jsonl", "data/evidence/**/*.jsonl"),
    *("data/registrations/*.json", "data/results/*.jsonl", "data/findings.jsonl"),
)
_CODE = ("stages", "papers")
"""Folders with source code: a clone has the first, a project of `claimcheck init` the second."""
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


def write_crate(root: Path, folder: Path) -> Exported:
    """Write the crate of the clone in `root`: published results, and local ones if there are any.

    Raises:
        ExportError: the folder exists, or `CITATION.cff` doesn't or is incomplete.
    """
    require_new(folder)
    about = read_citation(root, "title", "version", "license")
    with tempfile.TemporaryDirectory(prefix="claimcheck-") as scratch:
        database = str(Path(scratch) / "results.db")
        record(root.resolve(), database)
        with open_results(database)() as session:
            judged = list_judged(session, ClaimFilter())
            results = list(session.scalars(select(Result).order_by(Result.id)))
            experiments = {row.name: row for row in session.scalars(select(ExperimentRow))}
            entities = [
                *(
                    _entity(f"#paper-{paper.name}", "ScholarlyArticle", paper.title, abstract=paper.summary)
                    for paper in session.scalars(select(Paper).order_by(Paper.position))
                ),
                *(  # each packed data set by its digest
                    _entity(
                        key,
                        "CreativeWork",
                        f"{row.title}, packed",
                        description=f"{result.provenance} data: {result.train_images} to train, "
                        f"{result.test_images} to test",
                        identifier=result.data_digest,
                        license=row.licence,
                        url=row.homepage,
                    )
                    for key, result in {_data_id(result, experiments): result for result in results}.items()
                    for row in [session.get_one(Dataset, experiments[result.experiment].dataset)]
                ),
                *(
                    _entity(
                        f"#environment-{digest}",
                        "PropertyValue",
                        "environment",
                        propertyID=digest,
                        value=canonical_json(result.environment),
                    )
                    for digest, result in {result.environment_digest: result for result in results}.items()
                ),
                *_programs(root, about, results),
                *(entity for result in results for entity in _training(result, experiments)),
                *(entity for one in judged for entity in _verdict(one)),
                _entity(
                    "#judging",
                    "CreateAction",
                    "Judging the claims",
                    description="By rules that were fixed before the data: `verdicts` of params.yaml",
                    instrument=_id(_HERE),
                    agent=_id("#authors"),
                    object=_ids(["params.yaml", "data/claims.csv", *map(_file_of, results)]),
                    result=_ids(f"#verdict-{one.claim.id}" for one in judged),
                    actionStatus="http://schema.org/CompletedActionStatus",
                ),
            ]
            published = max(
                (str((result.origin or {})["published"])[:10] for result in results if result.origin), default=None
            )
    _write(root, folder, about, entities, published or datetime.date.today().isoformat())
    return Exported(folder=folder, counts={"trainings": len(results), "verdicts": len(judged)})


def _entity(key: str, kind: str | list[str], name: str, **properties: Any) -> Entity:
    """Return an entity with those of the properties that aren't None."""
    given = {name: value for name, value in properties.items() if value is not None}
    return {"@id": key, "@type": kind, "name": name, **given}


def _id(entity: str) -> dict[str, str]:
    return {"@id": entity}


def _ids(entities: Iterable[str]) -> Any:
    """Return references; a single one isn't a list, as RO-Crate 1.1 recommends."""
    found = [_id(entity) for entity in dict.fromkeys(entities)]
    return found[0] if len(found) == 1 else found


def _data_id(result: Result, experiments: Mapping[str, ExperimentRow]) -> str:
    return f"#data-{experiments[result.experiment].dataset}-{result.data_digest[:16]}"


def _program_id(result: Result) -> str:
    return f"swh:1:rev:{result.origin['revision']}" if result.origin else _HERE


def _programs(root: Path, about: Citation, results: Iterable[Result]) -> Iterator[Entity]:
    """Yield the program as it is here, and at each revision that published results."""
    shared = {"license": _ids(_licence_ids(about)), "author": _id("#authors")}
    code = [name for name in _CODE if (root / name).is_dir()]
    yield _entity(
        _HERE,
        "SoftwareApplication",
        about.title,
        softwareVersion=about.version,
        softwareRequirements=None if _CODE[0] in code else f"claimcheck=={version('claimcheck')}",
        hasPart=_ids(f"{name}/" for name in code),
        **shared,
    )
    for key, origin in {_program_id(result): result.origin for result in results if result.origin}.items():
        changed = ", with changes that aren't committed" if origin["dirty"] else ""
        yield _entity(
            key,
            "SoftwareApplication",
            f"Revision {origin['revision'][:12]} of {about.title}{changed}",
            softwareVersion=origin["revision"],
            softwareRequirements=[f"{name} {number}" for name, number in sorted(origin["versions"].items())],
            **shared,
        )


def _name(result: Result) -> str:
    return f"{result.experiment}.{result.arm}.{result.replicate}"


def _outcome_id(result: Result) -> str:
    return f"#outcome-{_name(result)}-{result.run_key[:12]}-{result.environment_digest}"


def _training(result: Result, experiments: Mapping[str, ExperimentRow]) -> Iterator[Entity]:
    """Yield the action, its outcome with each number, and the spec whose digest is the run key."""
    outcome, key = _outcome_id(result), f"#spec-{result.run_key[:16]}"
    numbers = [
        _entity(
            f"{outcome}/{row.metric}-{row.split}",
            "PropertyValue",
            row.metric,
            description=f"on {row.split}" if row.n is None else f"on {row.split}, of {row.n} samples",
            value=row.value,
        )
        for row in result.metrics
    ]
    if lab := (result.origin or {}).get("lab"):
        yield _entity(f"#lab-{lab}", "Organization", lab)
    divergence = result.divergence
    yield _entity(
        outcome.replace("#outcome", "#training", 1),
        "CreateAction",
        f"Training {_name(result)}",
        description=f"{result.cut or 'As printed'}, profile {result.profile}, "
        f"for {experiments[result.experiment].title}",
        instrument=_id(_program_id(result)),
        agent=_id(f"#lab-{lab}" if lab else "#authors"),
        object=[_id(_data_id(result, experiments)), _id(key), _id(f"params/{result.experiment}.yaml")],
        environment=_id(f"#environment-{result.environment_digest}"),
        result=_id(outcome),
        actionStatus=f"http://schema.org/{'Failed' if divergence else 'Completed'}ActionStatus",
        error=f"the loss stopped being finite by step {divergence['step']}" if divergence else None,
    )
    yield _entity(
        outcome,
        "CreativeWork",
        f"Outcome of {_name(result)}",
        identifier=result.run_key,
        isPartOf=_id(_file_of(result)),
        sha256=result.weights_sha256,
        variableMeasured=_ids(number["@id"] for number in numbers),
    )
    yield _entity(
        key,
        "CreativeWork",
        f"What run {result.run_key[:12]} trains",
        description="Its sha256, over canonical JSON, is the run key.",
        identifier=result.run_key,
        encodingFormat="application/json",
        text=canonical_json(result.spec),
    )
    yield from numbers


def _file_of(result: Result) -> str:
    if lab := (result.origin or {}).get("lab"):
        return f"data/evidence/{LABS}/{lab}.jsonl"
    return f"data/{'evidence' if result.origin else 'results'}/{result.experiment}.jsonl"


def _verdict(one: JudgedClaim) -> Iterator[Entity]:
    claim, verdict = one.claim, one.verdict
    printed = " ".join(str(part) for part in (claim.metric, claim.value, claim.unit, claim.qualifier) if part)
    says = claim.statement or f"{claim.arm or claim.kind}: {printed}"
    yield _entity(
        f"#claim-{claim.id}",
        "Claim",
        claim.id,
        text=says,
        appearance=_id(f"#paper-{claim.paper}"),
        description=claim.place,
    )
    rating = f"#verdict-{claim.id}/rating"
    yield _entity(rating, "Rating", verdict.marked_status, ratingExplanation=verdict.explanation)
    yield _entity(
        f"#verdict-{claim.id}",
        ["CreativeWork", "ClaimReview"],
        f"Verdict on {claim.id}",
        claimReviewed=says,
        itemReviewed=_id(f"#claim-{claim.id}"),
        reviewBody=verdict.explanation,
        reviewRating=_id(rating),
        author=_id("#authors"),
        identifier=verdict.digest,
        isBasedOn=_ids(_outcome_id(run.result) for run in verdict.runs) if verdict.runs else None,
    )


def _licence_ids(about: Citation) -> list[str]:
    return [f"https://spdx.org/licenses/{licence}" for licence in about.license]


def _authors(about: Citation) -> Iterator[Entity]:
    """Yield one organisation of all authors of CITATION.cff, and each of them, a person or an organisation."""
    members = []
    for author in about.authors:
        key = author.address or f"#author-{author.name.replace(' ', '-')}"
        members.append(_entity(key, "Organization" if author.is_organisation else "Person", author.name))
    joint = ", ".join(one["name"] for one in members)
    yield _entity("#authors", "Organization", joint, member=_ids(one["@id"] for one in members))
    yield from members


def _write(root: Path, folder: Path, about: Citation, entities: Iterable[Entity], published: str) -> None:
    from rocrate.model.contextentity import ContextEntity  # it loads packages that no other command needs
    from rocrate.model.dataset import Dataset as Folder
    from rocrate.rocrate import ROCrate

    licences = _licence_ids(about)
    crate = ROCrate(version=_VERSION)
    crate.metadata.extra_terms.update(_TERMS)
    crate.root_dataset.properties().pop("datePublished", None)
    for file in (path for pattern in _FILES for path in sorted(root.glob(pattern))):
        name = file.relative_to(root).as_posix()
        described = {"name": name, "encodingFormat": _FORMATS.get(file.suffix, "text/plain")}
        crate.add_file(file, name, properties=described)
    code = [name for name in _CODE if (root / name).is_dir()]
    for name in code:
        described = {"name": f"Source code in {name}", "license": _ids(licences)}
        crate.add(Folder(crate, dest_path=f"{name}/", properties=described))
    every = [
        *(
            _entity(key, "CreativeWork", name, description="The licence of code and models")
            for key, name in zip(licences, about.license, strict=True)
        ),
        _entity(PROFILE, "CreativeWork", "Process Run Crate", version="0.5"),
        *_authors(about),
        *entities,
    ]
    for entity in {entity["@id"]: entity for entity in every}.values():
        crate.add(ContextEntity(crate, entity["@id"], properties={k: v for k, v in entity.items() if k != "@id"}))
    for name, value in {
        "name": about.title,
        "description": "Every training, its data, code, environment and numbers, and every verdict",
        "datePublished": published,
        "license": _ids(licences),
        "conformsTo": _id(PROFILE),
        "author": _id("#authors"),
        "publisher": _id("#authors"),
        "mentions": [_id(one["@id"]) for one in every if one["@type"] == "CreateAction"],
    }.items():
        crate.root_dataset[name] = value
    crate.write(folder)
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for name in code:
        shutil.copytree(root / name, folder / name, dirs_exist_ok=True, ignore=ignored)
