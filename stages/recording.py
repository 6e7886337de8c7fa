"""Result lines, evidence, claims and params into the database, in a fixed order, all or nothing.

The same files give the same rows.  A SQLite file is built beside the old one and swapped in by one rename; another
database is rebuilt in one transaction.
"""

from __future__ import annotations

import ast
import csv
import dataclasses
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import TypeAdapter, ValidationError
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from stages import results as tables
from stages.evidence import CostLine, EvidenceLine, Origin, ResultLine, read_lines
from stages.experiment import Params, load_params
from stages.fingerprint import source_path
from stages.run import STRICT, canonical_json
from stages.store import write_atomically


class RecordError(ValueError):
    """Inputs that don't fit together; the message names the file and what was expected."""


@dataclass(frozen=True, kw_only=True)
class ClaimLine:
    """A row of `data/claims.csv`.  Accuracies are fractions; an empty cell is None."""

    __pydantic_config__: ClassVar = STRICT
    id: str
    paper: str
    place: str
    experiment: str | None
    arm: str | None
    metric: str
    kind: str
    value: float | None
    unit: str | None
    precision: float | None
    stderr: float | None
    n: int | None
    baseline_arm: str | None
    better: str | None
    note: str | None


@dataclass(frozen=True, kw_only=True)
class Found:
    """A result with its cost, and where it was found.  `origin` is None for one of this working tree."""

    result: ResultLine
    cost: CostLine | None
    origin: Origin | None
    file: Path

    @property
    def source(self) -> Literal["evidence", "local"]:
        return "local" if self.origin is None else "evidence"

    @property
    def identity(self) -> tuple[str, str, str, str, int]:
        line = self.result
        return line.run_key, line.environment_digest, line.experiment, line.arm, line.replicate

    @property
    def conditions(self) -> str:
        """Digest of protocol and data: what must be equal before two results are compared."""
        text = canonical_json([self.result.spec["protocol"], self.result.data.digest])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What `record` wrote; `notes` are findings that a person should see but that stop nothing."""

    results: int
    selected: int
    checkpoints: int
    claims: int
    notes: tuple[str, ...]


def record(root: Path, place: str, *, evidence_only: bool = False) -> Summary:
    """Build the database at `place` (a path below `root`, or a URL) from the files below `root`.

    `evidence_only` leaves out the results of this working tree.

    Raises:
        EvidenceError: a result line can't be read.
        ParamsError: a params file is wrong.
        RecordError: lines, claims and params don't fit together.
        ResultsUnavailable: the database can't be written.
    """
    params = load_params(root)
    claims = read_claims(root / "data" / "claims.csv")
    found = find_results(root, params, evidence_only=evidence_only)
    weights, notes = _find_weights(root, found)
    rows = _Rows(params, found, weights, claims)
    url = make_url(tables.database_url(place))
    if url.get_backend_name() != "sqlite":
        tables.create_results(url.render_as_string(hide_password=False), rows.fill)
    else:
        target = root / (url.database or "")
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            tables.create_results(f"sqlite:///{partial}", rows.fill)
            write_atomically(target, partial.read_bytes())
        finally:
            partial.unlink(missing_ok=True)
    return Summary(
        results=len(found),
        selected=len(rows.selected),
        checkpoints=len(rows.checkpoints()),
        claims=len(claims),
        notes=tuple(notes),
    )


def read_claims(path: Path) -> list[ClaimLine]:
    """All claims of the papers.

    Raises:
        RecordError: no such file, a row that can't be read, or an id twice.
    """
    adapter = TypeAdapter(ClaimLine)
    claims: dict[str, ClaimLine] = {}
    try:
        text = path.read_text()
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from None
    for number, row in enumerate(csv.DictReader(text.splitlines()), start=2):
        try:
            claim = adapter.validate_python({key: value or None for key, value in row.items()})
        except ValidationError as error:
            first = error.errors()[0]
            column = ".".join(str(part) for part in first["loc"])
            raise RecordError(f"{path}, line {number}: {column}: {first['msg']}") from None
        if claim.id in claims:
            raise RecordError(f"{path}, line {number}: id {claim.id} stands twice")
        claims[claim.id] = claim
    return list(claims.values())


def find_results(root: Path, params: Params, *, evidence_only: bool = False) -> list[Found]:
    """Every result below `data/evidence` and `data/results`, in the order of the params files, evidence first.

    A local result that was published is there once, as evidence.

    Raises:
        EvidenceError: a line can't be read.
        RecordError: a line of an experiment, arm or profile that the params don't have, or a line twice.
    """
    found: dict[tuple[str, str, str, str, int], Found] = {}
    local = [] if evidence_only else _local(root / "data" / "results")
    for item in [*_evidence(root / "data" / "evidence"), *local]:
        _check_names(item, params)
        if item.identity in found:
            if found[item.identity].source == item.source:
                key, _, experiment, arm, replicate = item.identity
                raise RecordError(f"{item.file}: {experiment}.{arm}.{replicate} of run {key[:12]} stands twice")
            continue
        found[item.identity] = item
    positions = {name: position for position, name in enumerate(params.experiments)}
    arms = {name: list(experiment.arms) for name, experiment in params.experiments.items()}

    def place(item: Found) -> tuple[int, int, int, str, str, str]:
        line = item.result
        arm = arms[line.experiment].index(line.arm)
        return positions[line.experiment], arm, line.replicate, item.source, line.run_key, line.environment_digest

    return sorted(found.values(), key=place)


def _evidence(folder: Path) -> Iterable[Found]:
    for path in sorted(folder.glob("*.jsonl")):
        for line in read_lines(path, EvidenceLine):
            yield Found(result=line.result, cost=line.cost, origin=line.origin, file=path)


def _local(folder: Path) -> Iterable[Found]:
    for path in sorted(folder.glob("*.jsonl")):
        if path.name.endswith(".cost.jsonl"):
            continue
        costs = {
            (cost.run_key, cost.environment_digest, cost.arm, cost.replicate): cost
            for cost in read_lines(path.with_name(f"{path.stem}.cost.jsonl"), CostLine)
        }
        for line in read_lines(path, ResultLine):
            cost = costs.get((line.run_key, line.environment_digest, line.arm, line.replicate))
            yield Found(result=line, cost=cost, origin=None, file=path)


def _check_names(item: Found, params: Params) -> None:
    line = item.result
    checks: Sequence[tuple[str, str, Iterable[str]]] = [
        ("experiment", line.experiment, params.experiments),
        ("profile", line.profile, params.profiles),
    ]
    if line.experiment in params.experiments:
        checks = [*checks, ("arm", line.arm, params.experiments[line.experiment].arms)]
    for kind, name, known in checks:
        if name not in known:
            raise RecordError(f"{item.file}: {kind} {name!r} is not in the params files; known: {', '.join(known)}")
    if "protocol" not in line.spec:
        raise RecordError(f"{item.file}: the spec of run {line.run_key[:12]} has no protocol")


@dataclass(frozen=True)
class _Weights:
    path: str
    size_bytes: int


def _find_weights(root: Path, found: Sequence[Found]) -> tuple[dict[str, _Weights], list[str]]:
    """Weights files by sha256, committed models first, and the committed models that no result knows."""
    wanted = {item.result.weights_sha256 for item in found if item.result.weights_sha256}
    committed = sorted((root / "data" / "models").glob("*.safetensors"))
    local = sorted(
        {
            root / "data" / "runs" / item.result.experiment / item.result.run_key / "weights.safetensors"
            for item in found
        }
    )
    weights: dict[str, _Weights] = {}
    notes = []
    for path in [*committed, *(path for path in local if path.is_file())]:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        place = path.relative_to(root).as_posix()
        if digest in wanted:
            weights.setdefault(digest, _Weights(place, path.stat().st_size))
        else:
            notes.append(f"{place}: no result has these weights (sha256 {digest[:12]}…); left out")
    return weights, notes


class _Rows:
    """The rows of one database, made anew for each call of `fill`."""

    def __init__(
        self, params: Params, found: Sequence[Found], weights: Mapping[str, _Weights], claims: Sequence[ClaimLine]
    ) -> None:
        self.params, self.found, self.weights, self.claims = params, found, weights, claims
        self.ids = {item.identity: number for number, item in enumerate(found, start=1)}
        self.selected = _select(found)

    def fill(self, session: Session) -> None:
        """Tables in the order of their foreign keys."""
        for rows in (
            self.named(),
            self.experiments(),
            self.arms(),
            self.results(),
            self.checkpoints(),
            [tables.Claim(position=number, **vars(claim)) for number, claim in enumerate(self.claims)],
        ):
            session.add_all(rows)
            session.flush()
        session.add(tables.Meta(name="schema_version", value=str(tables.SCHEMA_VERSION)))
        session.add(tables.Meta(name="content", value=self.digest()))

    def digest(self) -> str:
        """sha256 over everything that the rows are made from."""
        parts: list[Any] = [
            TypeAdapter(Params).dump_python(self.params, mode="json"),
            [_cite(paper) for paper in self.papers()],
            [TypeAdapter(Found).dump_python(item, mode="json", exclude={"file"}) for item in self.found],
            [vars(claim) for claim in self.claims],
            {digest: vars(weights) for digest, weights in self.weights.items()},
        ]
        return hashlib.sha256(canonical_json(parts).encode()).hexdigest()

    def papers(self) -> list[str]:
        return list(dict.fromkeys(experiment.paper for experiment in self.params.experiments.values()))

    def named(self) -> list[tables.Base]:
        rows: list[tables.Base] = []
        for position, paper in enumerate(self.papers()):
            title, summary = _cite(paper)
            rows.append(tables.Paper(name=paper, position=position, title=title, summary=summary))
        for position, (name, profile) in enumerate(self.params.profiles.items()):
            rows.append(tables.Profile(name=name, rank=position, data=profile.data))
        for position, (name, source) in enumerate(self.params.datasets.items()):
            rows.append(
                tables.Dataset(
                    name=name,
                    position=position,
                    title=source.title,
                    shape=list(source.shape),
                    classes=source.classes,
                    train_images=source.train,
                    test_images=source.test,
                    licence=source.licence,
                    homepage=source.homepage,
                )
            )
        return rows

    def experiments(self) -> list[tables.Base]:
        return [
            tables.Experiment(
                name=name,
                position=position,
                title=experiment.title,
                paper=experiment.paper,
                dataset=experiment.dataset,
                protocol=dataclasses.asdict(experiment.printed),
                seeds=list(experiment.seeds),
            )
            for position, (name, experiment) in enumerate(self.params.experiments.items())
        ]

    def arms(self) -> list[tables.Base]:
        return [
            tables.Arm(
                experiment=experiment.name,
                name=arm.name,
                position=position,
                role=arm.role,
                title=arm.title,
                model=dict(arm.model),
            )
            for experiment in self.params.experiments.values()
            for position, arm in enumerate(experiment.arms.values())
        ]

    def results(self) -> list[tables.Base]:
        return [_result_row(self.ids[item.identity], item, item.identity in self.selected) for item in self.found]

    def checkpoints(self) -> list[tables.Base]:
        """For each `<experiment>.<arm>.<replicate>` the strongest result whose weights are here."""
        ranks = {name: position for position, name in enumerate(self.params.profiles)}
        best: dict[str, Found] = {}
        for item in self.found:
            line = item.result
            if line.weights_sha256 not in self.weights:
                continue
            name = f"{line.experiment}.{line.arm}.{line.replicate}"
            if name not in best or _strength(best[name], ranks) < _strength(item, ranks):
                best[name] = item
        return [
            tables.Checkpoint(
                id=name,
                position=position,
                path=self.weights[item.result.weights_sha256 or ""].path,
                sha256=item.result.weights_sha256 or "",
                size_bytes=self.weights[item.result.weights_sha256 or ""].size_bytes,
                result_id=self.ids[item.identity],
            )
            for position, (name, item) in enumerate(best.items())
        ]


def _strength(item: Found, ranks: Mapping[str, int]) -> tuple[bool, int, bool, str]:
    """Real data first, then the stronger profile, then evidence, then the newest."""
    published = item.origin.published if item.origin else ""
    return item.result.data.provenance != "embedded", ranks[item.result.profile], item.origin is not None, published


def _select(found: Sequence[Found]) -> set[tuple[str, str, str, str, int]]:
    """One result a replicate under equal conditions: evidence first, else the newest."""
    best: dict[tuple[Any, ...], Found] = {}
    for item in found:
        line = item.result
        cell = line.experiment, line.arm, line.replicate, line.profile, item.conditions
        rank = {line.profile: 0}
        if cell not in best or _strength(best[cell], rank) < _strength(item, rank):
            best[cell] = item
    return {item.identity for item in best.values()}


def _cite(paper: str) -> tuple[str, str]:
    """First and second paragraph of the paper's package docstring, each on one line."""
    path = source_path(f"stages.papers.{paper}")
    docstring = ast.get_docstring(ast.parse(path.read_text())) if path else None
    paragraphs = [" ".join(part.split()) for part in (docstring or paper).split("\n\n")]
    return paragraphs[0], paragraphs[1] if len(paragraphs) > 1 else ""


def _result_row(number: int, item: Found, is_selected: bool) -> tables.Result:
    line, data = item.result, item.result.data
    metrics = [
        tables.Metric(metric=row.metric, split=row.split, position=position, value=row.value, n=row.n)
        for position, row in enumerate(line.metrics)
    ]
    arrays = {"correct": line.correct, "confusion": line.confusion}
    return tables.Result(
        id=number,
        run_key=line.run_key,
        environment_digest=line.environment_digest,
        experiment=line.experiment,
        arm=line.arm,
        replicate=line.replicate,
        source=item.source,
        is_selected=is_selected,
        profile=line.profile,
        provenance=data.provenance,
        cut=line.cut,
        conditions=item.conditions,
        status=line.status,
        data_digest=data.digest,
        train_images=data.train_images,
        test_images=data.test_images,
        excluded_test_images=data.excluded_test_images,
        weights_sha256=line.weights_sha256,
        spec=dict(line.spec),
        environment=dict(line.environment),
        divergence=dataclasses.asdict(line.divergence) if line.divergence else None,
        origin=dataclasses.asdict(item.origin) if item.origin else None,
        metrics=metrics,
        epochs=[tables.Epoch(**vars(row)) for row in line.curves],
        cost=_cost_row(item.cost) if item.cost else None,
        arrays=[tables.Array(kind=kind, content=text) for kind, text in arrays.items() if text is not None],
    )


def _cost_row(cost: CostLine) -> tables.Cost:
    names = {field.name for field in dataclasses.fields(CostLine)}
    identity = {"experiment", "arm", "replicate", "run_key", "environment_digest"}
    return tables.Cost(
        **{name: getattr(cost, name) for name in names - identity} | {"epoch_seconds": list(cost.epoch_seconds)}
    )
