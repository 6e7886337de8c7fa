"""Database queries of the routes, as functions from a session to typed rows, and the trail of a run's results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field
from sqlalchemy import select
from sqlalchemy.orm import Session, contains_eager, defer, selectinload

from service.database.schemas import CheckpointOut, Out
from stages.results import (
    ArmRow,
    Checkpoint,
    Claim,
    ClaimFilter,
    Dataset,
    DeviationRow,
    ExperimentRow,
    JudgedClaim,
    Meta,
    Metric,
    Paper,
    Result,
    Tally,
    UnknownArm,
    UnknownCheckpoint,
    UnknownDataset,
    UnknownExperiment,
    UnknownName,
    UnknownPaper,
    UnknownRun,
    cut_of_each,
    damaged,
    fidelity_of,
    list_judged,
    tally,
)

MAX_NAMES = 8  # in an error message
IDS_AT_ONCE = 10_000
KEY_DIGITS = 7  # shown of a run key, and the fewest that identify a run


def read_meta(session: Session, name: str) -> str | None:
    """Return a value of the table `Meta`, such as `newest_result`; None if it is missing."""
    return session.scalar(select(Meta.value).where(Meta.name == name))


def content_digest(session: Session) -> str:
    """Return the digest of the database's content.

    Raises:
        ResultsUnavailable: the database doesn't contain it.
    """
    digest = read_meta(session, "content")
    if digest is None:
        raise damaged("it doesn't name its content")
    return digest


def list_papers(session: Session) -> Sequence[Paper]:
    return session.scalars(select(Paper).order_by(Paper.position)).all()


def find_paper(session: Session, name: str) -> Paper:
    paper = session.get(Paper, name)
    if paper is None:
        raise UnknownPaper(name, [known.name for known in list_papers(session)])
    return paper


def list_datasets(session: Session) -> Sequence[Dataset]:
    return session.scalars(select(Dataset).order_by(Dataset.position)).all()


def find_dataset(session: Session, name: str) -> Dataset:
    dataset = session.get(Dataset, name)
    if dataset is None:
        raise UnknownDataset(name, [known.name for known in list_datasets(session)])
    return dataset


def list_experiments(session: Session, *, paper: str | None, dataset: str | None) -> Sequence[ExperimentRow]:
    query = select(ExperimentRow).options(selectinload(ExperimentRow.arms)).order_by(ExperimentRow.position)
    if paper is not None:
        query = query.where(ExperimentRow.paper == find_paper(session, paper).name)
    if dataset is not None:
        query = query.where(ExperimentRow.dataset == find_dataset(session, dataset).name)
    return session.scalars(query).all()


def find_experiment(session: Session, name: str) -> ExperimentRow:
    experiment = session.get(ExperimentRow, name, options=[selectinload(ExperimentRow.arms)])
    if experiment is None:
        raise _unknown_experiment(session, name)
    return experiment


def find_arm(experiment: ExperimentRow, name: str) -> ArmRow:
    arms = {arm.name: arm for arm in experiment.arms}
    if name not in arms:
        raise UnknownArm(name[:80], arms)
    return arms[name]


def arms_of(session: Session, experiments: Sequence[str]) -> Sequence[ArmRow]:
    """Return all arms of these experiments, in the order of each experiment."""
    query = select(ArmRow).where(ArmRow.experiment.in_(experiments)).order_by(ArmRow.experiment, ArmRow.position)
    return session.scalars(query).all()


ALL_TITLES = (
    select(ArmRow.title)
    .join(ExperimentRow, ExperimentRow.name == ArmRow.experiment)
    .order_by(ExperimentRow.position, ArmRow.position)
)
"""Titles of all models, in the order of the params files."""


def require_experiment(session: Session, name: str) -> None:
    """Check that an experiment exists, without loading its arms, which may be hundreds.

    Raises:
        UnknownExperiment: it doesn't exist.
    """
    if session.scalar(select(ExperimentRow.name).where(ExperimentRow.name == name)) is None:
        raise _unknown_experiment(session, name)


def _unknown_experiment(session: Session, name: str) -> UnknownExperiment:
    return UnknownExperiment(name, session.scalars(select(ExperimentRow.name).order_by(ExperimentRow.position)))


@dataclass(frozen=True, kw_only=True)
class RunFilter:
    """Equality filters on results; None doesn't filter."""

    experiment: str | None = None
    arm: str | None = None
    profile: str | None = None
    provenance: str | None = None
    source: str | None = None
    is_selected: bool | None = None


RunOrder = Literal["position", "-position", "accuracy", "-accuracy", "train_seconds", "-train_seconds"]
"""`position`: experiments, arms and replicates as in the params files.  A minus reverses the order."""


def list_results(
    session: Session, wanted: RunFilter, *, order: RunOrder = "position", limit: int, offset: int
) -> Sequence[Result]:
    """Return the matching results in this order, then by position; those without the sorted number come last.

    Raises:
        UnknownExperiment, UnknownArm: the filter names an unknown one.
    """
    number = {"accuracy": Result.accuracy, "train_seconds": Result.train_seconds}.get(order.removeprefix("-"))
    is_falling = order.startswith("-")
    by: tuple[Any, ...] = (Result.id.desc() if is_falling else Result.id.asc(),)
    if number is not None:
        by = (number.desc().nulls_last() if is_falling else number.asc().nulls_last(), Result.id)
    query = select(Result.id).order_by(*by).limit(limit).offset(offset)
    if wanted.experiment is not None:
        require_experiment(session, wanted.experiment)
    if wanted.arm is not None:
        arms = select(ArmRow.name).order_by(ArmRow.position)
        if wanted.experiment is not None:
            arms = arms.where(ArmRow.experiment == wanted.experiment)
        if session.scalar(arms.where(ArmRow.name == wanted.arm).limit(1)) is None:
            known = () if wanted.experiment is None else session.scalars(arms)  # those of one experiment are few
            raise UnknownArm(wanted.arm[:80], known)
    for name, value in vars(wanted).items():
        if value is not None:
            query = query.where(getattr(Result, name) == value)
    ids = session.scalars(query).all()  # read from an index; the wide rows of this page follow
    wide_rows = select(Result).options(defer(Result.spec), defer(Result.environment))
    by_id = {row.id: row for part in _in_parts(ids) for row in session.scalars(wide_rows.where(Result.id.in_(part)))}
    return [by_id[number] for number in ids]


def _in_parts(ids: Sequence[int]) -> list[Sequence[int]]:
    """Split ids into lists that fit into one statement of every database."""
    return [ids[start : start + IDS_AT_ONCE] for start in range(0, len(ids), IDS_AT_ONCE)]


def metrics_of(session: Session, results: Sequence[Result]) -> dict[int, list[Any]]:
    """Return the metrics of each result by its id.  Rows are plain, because a result has about eight."""
    ids = [result.id for result in results]
    columns = (Metric.result_id, Metric.metric, Metric.split, Metric.value, Metric.n)
    by_result: dict[int, list[Any]] = {number: [] for number in ids}
    for part in _in_parts(ids):
        for row in session.execute(select(*columns).where(Metric.result_id.in_(part)).order_by(Metric.position)):
            by_result[row.result_id].append(row)
    return by_result


def full_run_key(session: Session, start: str) -> str:
    """Return the run key that begins with `start`, of seven digits or more, as pages show them.

    Raises:
        UnknownRun: no key, or more than one, begins with it.
    """
    if len(start) < KEY_DIGITS or not set(start) <= set("0123456789abcdef"):
        raise UnknownRun(start[:80])
    query = select(Result.run_key).where(Result.run_key >= start, Result.run_key < start + "g").distinct().limit(2)
    keys = session.scalars(query).all()
    if len(keys) != 1:
        raise UnknownRun(f"{start[:64]}…, which matches several runs" if keys else start[:80])
    return keys[0]


def find_run(session: Session, start: str) -> Sequence[Result]:
    """Return all results of the run whose key begins with `start`, with details; raises as `full_run_key` does."""
    run_key = full_run_key(session, start)
    query = (
        select(Result)
        .where(Result.run_key == run_key)
        .options(*map(selectinload, (Result.metrics, Result.epochs, Result.observations, Result.cost)))
        .order_by(Result.id)
    )
    return session.scalars(query).all()


def checkpoint_ids(session: Session, results: Sequence[Result]) -> dict[int, str]:
    """Return the checkpoint ids by result id; results without weights are left out."""
    columns = select(Checkpoint.result_id, Checkpoint.id)
    rows = session.execute(columns.where(Checkpoint.result_id.in_([result.id for result in results])))
    return {row.result_id: row.id for row in rows}


class ServedCheckpoint(CheckpointOut):
    """Checkpoint that can be served, with the data of its experiment, arm, run and paper."""

    path: str
    title: str
    role: str
    group_position: int
    cut: str
    paper_accuracy: float | None
    paper_claim: str | None
    flops_per_image: float | None

    @property
    def is_stand_in(self) -> bool:
        return self.provenance == "embedded"


def list_checkpoints(
    session: Session,
    *,
    dataset: str | None = None,
    experiment: str | None = None,
    arm_of: tuple[str, str] | None = None,
    ids: Sequence[str] | None = None,
    limit: int | None = None,
    offset: int = 0,
) -> list[ServedCheckpoint]:
    """Return checkpoints of models of images, the only ones served, in the order of the params files."""
    query = (
        select(Checkpoint, ArmRow, ExperimentRow.dataset, Metric.value.label("flops"))
        .join(Checkpoint.result)
        .outerjoin(Metric, (Metric.result_id == Result.id) & (Metric.metric == "flops_per_image"))
        .join(ArmRow, (ArmRow.experiment == Result.experiment) & (ArmRow.name == Result.arm))
        .join(ExperimentRow, ExperimentRow.name == Result.experiment)
        .join(Dataset, (Dataset.name == ExperimentRow.dataset) & Dataset.has_images & (Dataset.kind != "other"))
        .options(contains_eager(Checkpoint.result).options(defer(Result.spec), defer(Result.environment)))
        .order_by(Checkpoint.position)
        .limit(limit)
        .offset(offset)
    )
    if dataset is not None:
        name = find_dataset(session, dataset).name
        query = query.where(Checkpoint.experiment.in_(select(ExperimentRow.name).where(ExperimentRow.dataset == name)))
    if experiment is not None:
        require_experiment(session, experiment)
        query = query.where(Checkpoint.experiment == experiment)
    if arm_of is not None:
        query = query.where(Result.experiment == arm_of[0], Result.arm == arm_of[1])
    if ids is not None:
        query = query.where(Checkpoint.id.in_(ids))
    rows = session.execute(query).all()
    printed = select(Claim).where(
        Claim.experiment.in_({row.ArmRow.experiment for row in rows}), Claim.metric == "accuracy", Claim.kind == "value"
    )
    # In descending order, so that the first accuracy printed for an arm overwrites the others.
    claims = {
        (claim.experiment, claim.arm): claim for claim in session.scalars(printed.order_by(Claim.position.desc()))
    }
    found = []
    for row in rows:
        checkpoint, arm, result = row.Checkpoint, row.ArmRow, row.Checkpoint.result
        claim = claims.get((arm.experiment, arm.name))
        of_result = ("experiment", "arm", "replicate", "run_key", "profile", "group_position", "provenance")
        served = ServedCheckpoint(
            **{name: getattr(checkpoint, name) for name in ("id", "path", "sha256", "size_bytes", "dtype")},
            **{name: getattr(result, name) for name in of_result},
            model_name=f"{arm.experiment}.{arm.name}",
            model_version=str(result.replicate),
            title=arm.title,
            role=arm.role,
            dataset=row.dataset,
            cut=cut_of_each(result.cut),
            label=fidelity_of(result),
            accuracy=result.accuracy if checkpoint.accuracy is None else checkpoint.accuracy,
            paper_accuracy=claim.value if claim else None,
            paper_claim=claim.id if claim else None,
            flops_per_image=row.flops,
        )
        found.append(served)
    return found


def find_checkpoints(session: Session, ids: Sequence[str]) -> list[ServedCheckpoint]:
    """Return the named checkpoints, each once, in the order of `ids`.

    Raises:
        UnknownCheckpoint: one of them doesn't exist.
        NoRealCheckpoint: one of them doesn't take images.
    """
    by_id = {row.id: row for row in list_checkpoints(session, ids=ids)}
    for name in ids:
        if name not in by_id:
            of_dataset = select(Dataset).join(ExperimentRow).join(Checkpoint).where(Checkpoint.id == name)
            if (found := session.scalar(of_dataset)) is not None:
                raise NoRealCheckpoint(f"{name[:120]} {_takes_no_image(found)}")
            of_model = select(Checkpoint.id).where(Checkpoint.id.startswith(f"{name[:120]}.", autoescape=True))
            query = of_model.order_by(Checkpoint.position).limit(MAX_NAMES)
            raise UnknownCheckpoint(name[:120], session.scalars(query))
    return [by_id[name] for name in dict.fromkeys(ids)]


def _takes_no_image(dataset: Dataset) -> str:
    if dataset.kind == "other":
        return "learns a task of another package, which only evaluation reads; /api/v1/checkpoints lists the others"
    row = "the tokens of a text" if dataset.kind == "text" else "rows of a table, whose scaling no checkpoint has"
    return f"takes {row}; models that answer here take images, and /api/v1/checkpoints lists them"


class AmbiguousCheckpoint(LookupError):
    """Several experiments have a matching model; the message lists the checkpoints."""


class NoRealCheckpoint(LookupError):
    """No matching model was trained on real data; placeholder models answer only if they are named."""


def strongest(served_checkpoints: Sequence[ServedCheckpoint]) -> list[ServedCheckpoint]:
    """Select one checkpoint per arm of an experiment: the lowest replicate in the strongest group of results."""
    weakest_first = sorted(served_checkpoints, key=lambda row: (row.group_position, row.replicate), reverse=True)
    best = {(row.experiment, row.arm): row.id for row in weakest_first}
    return [row for row in served_checkpoints if row.id == best[row.experiment, row.arm]]


def choose_checkpoints(session: Session, dataset: str, arms: Sequence[str]) -> list[ServedCheckpoint]:
    """Return the `strongest` checkpoint trained on real data of each named arm, or of all arms if none is named.

    Raises:
        UnknownDataset, UnknownArm: a name is unknown.
        AmbiguousCheckpoint: models of several experiments match.
        NoRealCheckpoint: the data set or a named arm has none.
    """
    if not (found := find_dataset(session, dataset)).has_images:
        raise NoRealCheckpoint(f"a model of {dataset} {_takes_no_image(found)}")
    experiments = list_experiments(session, paper=None, dataset=dataset)
    known = list(dict.fromkeys(arm.name for experiment in experiments for arm in experiment.arms))
    for name in arms:
        if name not in known:
            raise UnknownArm(name[:80], known)
    matching = [row for row in list_checkpoints(session, dataset=dataset) if not arms or row.arm in arms]
    real = strongest([row for row in matching if not row.is_stand_in])
    origins = list(dict.fromkeys(row.experiment for row in real))
    if len(origins) > 1:
        raise AmbiguousCheckpoint(f"models of {', '.join(origins)} fit; name one with checkpoint=: {_some(real)}")
    missing = [name for name in dict.fromkeys(arms) if name not in {row.arm for row in real}]
    if missing or not real:
        stand_ins = [row for row in matching if row.is_stand_in]
        whose = ", ".join(missing) or "a model"
        others = f"; placeholder models answer only if named with checkpoint=: {_some(stand_ins)}" if stand_ins else ""
        raise NoRealCheckpoint(f"no weights of {whose} trained on real {dataset} data are here{others}")
    return real


def _some(served_checkpoints: Sequence[ServedCheckpoint]) -> str:
    """List the checkpoints' ids for a message: all of them, or the first few and where to find the others."""
    ids = ", ".join(row.id for row in served_checkpoints[:MAX_NAMES])
    return ids if len(served_checkpoints) <= MAX_NAMES else f"{ids}, …; /api/v1/checkpoints lists all"


class UnknownKind(UnknownName): ...


class UnknownFamily(UnknownName): ...


def list_claims(session: Session, wanted: ClaimFilter, *, limit: int, offset: int) -> list[JudgedClaim]:
    """Return the matching claims with their verdicts, ordered by position.

    Raises:
        UnknownPaper, UnknownDataset, UnknownExperiment, UnknownKind, UnknownFamily: the filter names an unknown one.
    """
    check_filter(session, wanted)
    return list_judged(session, wanted, limit=limit, offset=offset)


def tally_claims(session: Session, wanted: ClaimFilter) -> list[Tally]:
    """Count verdicts for each paper; raises as `list_claims` does."""
    check_filter(session, wanted)
    return [counts for counts in tally(session, wanted) if wanted.paper in (None, counts.paper)]


def list_deviations(session: Session, paper: str) -> Sequence[DeviationRow]:
    """Return the deviations from a paper, ordered by position."""
    query = select(DeviationRow).where(DeviationRow.paper == paper).order_by(DeviationRow.position)
    return session.scalars(query).all()


def list_mentioned(session: Session, claim: Claim) -> list[JudgedClaim]:
    """Return the claims of the same paper whose ids the claim's note mentions."""
    named = set(re.findall(r"\w+(?:\.\w+)+", claim.note or ""))
    if not named:
        return []
    return [row for row in list_judged(session, ClaimFilter(paper=claim.paper)) if row.claim.id in named]


def lacking_test_images(session: Session, experiments: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return the official and the missing number of test images by data set, for data sets that lack some."""
    query = (
        select(ExperimentRow.dataset, Result.test_images, Result.excluded_test_images)
        .join(Result, Result.experiment == ExperimentRow.name)
        .where(ExperimentRow.name.in_(list(experiments)), Result.is_selected, Result.excluded_test_images > 0)
        .distinct()
    )
    return {row[0]: (row[1] + row[2], row[2]) for row in session.execute(query)}


def check_filter(session: Session, wanted: ClaimFilter) -> None:
    if wanted.paper is not None:
        find_paper(session, wanted.paper)
    if wanted.dataset is not None:
        find_dataset(session, wanted.dataset)
    if wanted.experiment is not None:
        require_experiment(session, wanted.experiment)
    kinds = select(Claim.kind).distinct().order_by(Claim.kind)
    if wanted.kind is not None and wanted.kind not in (known := session.scalars(kinds).all()):
        raise UnknownKind(wanted.kind[:80], known)
    families = select(Claim.family).distinct().order_by(Claim.family)
    if wanted.family is not None and wanted.family not in (found := session.scalars(families).all()):
        raise UnknownFamily(wanted.family[:80], [name for name in found if name])


class CheckpointLinkOut(Out):
    id: str
    sha256: str
    size_bytes: int
    dtype: str | None = Field(description="type of weights rounded after training; null for weights as trained")


class CodeLinkOut(Out):
    revision: str | None = Field(description="git revision of published evidence; null for the tree that recorded it")
    dirty: bool | None = Field(description="true if the revision had uncommitted changes")
    modules: dict[str, str] = Field(description="digest of the source of each module that the run executed")
    changed_code: list[str] = Field(description="modules that differ in the recorded tree")
    equivalences: list[int] = Field(
        description="lines of data/evidence/equivalences.jsonl that prove its code equivalent"
    )


class DataLinkOut(Out):
    dataset: str
    digest: str = Field(description="digest of the packed training and test images")
    provenance: str = Field(description="embedded (placeholder data), subset or full")


class EnvironmentLinkOut(Out):
    digest: str
    facts: dict[str, Any]


class TrailOut(Out):
    """Trail of one result of the run: one arm in one environment."""

    experiment: str
    arm: str
    replicate: int
    source: str
    checkpoint: CheckpointLinkOut | None = Field(description="null if the weights are not available")
    trained_weights_sha256: str | None
    params: dict[str, Any] = Field(description="model, resolved protocol and replicate")
    code: CodeLinkOut
    data: DataLinkOut
    environment: EnvironmentLinkOut


class TrailsOut(Out):
    """`run_key` is the sha256 of params, data digest and code of each trail."""

    run_key: str
    trails: list[TrailOut]


def describe_trails(results: Sequence[Result], session: Session) -> TrailsOut:
    """Return the trail of each result of one run."""
    ids = checkpoint_ids(session, results)
    found = {served.id: served for served in list_checkpoints(session, ids=list(ids.values()))}
    names = {result.experiment for result in results}
    datasets = {name: find_experiment(session, name).dataset for name in names}
    trails = []
    for result in results:
        checkpoint, origin = found.get(ids.get(result.id, "")), result.origin or {}
        trail = TrailOut(
            experiment=result.experiment,
            arm=result.arm,
            replicate=result.replicate,
            source=result.source,
            checkpoint=CheckpointLinkOut.model_validate(checkpoint) if checkpoint else None,
            trained_weights_sha256=result.weights_sha256,
            params={name: result.spec[name] for name in result.spec if name in ("model", "protocol", "replicate")},
            code=CodeLinkOut(
                revision=origin.get("revision"),
                dirty=origin.get("dirty"),
                modules=result.spec["code"],
                changed_code=result.changed_code,
                equivalences=result.equivalences,
            ),
            data=DataLinkOut(
                dataset=datasets[result.experiment], digest=result.data_digest, provenance=result.provenance
            ),
            environment=EnvironmentLinkOut(digest=result.environment_digest, facts=result.environment),
        )
        trails.append(trail)
    return TrailsOut(run_key=results[0].run_key, trails=trails)
