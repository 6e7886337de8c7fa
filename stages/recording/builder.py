"""Writes result lines, evidence, claims, findings and params to the database, in a fixed order, all or nothing.

The same files give the same rows.  A SQLite file is built next to the old one and replaces it by one rename; any other
database is rebuilt in one transaction.
"""

from __future__ import annotations

import ast
import dataclasses
import fnmatch
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import insert
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from stages.claims import (
    Change,
    ClaimLine,
    Facts,
    Judgement,
    PaperDeviations,
    gather,
    judge_claims,
    judge_labs,
    read_history,
    touched,
)
from stages.claims.history import PATH as HISTORY
from stages.claims.history import Registered, digest_code, digest_findings, digest_verdict, seen_before_rule
from stages.datasets.prepare import READERS
from stages.params.experiment import Params, load_params
from stages.recording import sources
from stages.recording.append_only import describe_lost, digest_history, find_lost, read_versions
from stages.recording.sources import FindingLine, RecordError, Weights
from stages.results import WORD_OF, Word, create_results, database_url, insert_rows, tables
from stages.run import canonical_json
from stages.runs.evidence import COLUMNS, ResultLine, Trial, as_curves, list_observed, write_lines
from stages.runs.fingerprint import source_path
from stages.runs.revisions import is_full_clone
from stages.runs.store import put_in_place
from stages.verdicts import ARM_METRICS, NoCurves, Verdict, arm_metric, false_discovery_rates

Row = TypeVar("Row", bound=tables.Base)
Values = Iterator[tuple[Any, ...]]
"""Rows of plain values, in the order of the table's columns."""
_NEEDED = "test_accuracy"
"""The column from which all `ARM_METRICS` are computed; curves without it are skipped."""


def columns_of(table: type[tables.Base], *objects: object) -> dict[str, Any]:
    """Return the columns of `table` that `objects` have as fields, each from the first that has it."""
    fields = {name: value for source in reversed(objects) if source is not None for name, value in vars(source).items()}
    return {name: value for name, value in fields.items() if name in table.__table__.columns}


def row_of(table: type[Row], *objects: object, **own: Any) -> Row:
    """Return a row of `table`, each column taken from `own` or from the first of `objects` that has it as a field."""
    return table(**columns_of(table, *objects) | own)


def arm_metric_rows(selected: Iterable[Trial]) -> Iterator[tables.Base]:
    """Yield a row for each metric of an arm, computed from the curves of its finished results per conditions."""
    groups: dict[tuple[str, str, str, str], list[ResultLine]] = defaultdict(list)
    for item in selected:
        line = item.result
        if line.status == "finished":
            groups[line.experiment, line.arm, line.profile, item.conditions].append(line)
    for (experiment, arm, profile, conditions), lines in groups.items():
        if not all(any(value is not None for value in as_curves(line.curves).column(_NEEDED)) for line in lines):
            continue
        for name in ARM_METRICS:
            try:
                metric = arm_metric(name, [line.curves for line in lines])
            except NoCurves:
                continue
            yield row_of(
                tables.ArmMetricRow,
                metric,
                experiment=experiment,
                arm=arm,
                profile=profile,
                conditions=conditions,
                metric=name,
                shares=[[line.replicate, share] for line, share in zip(lines, metric.folds, strict=True)],
            )


@dataclass
class DatabaseBuilder:
    """Builds the rows of one database from everything that was read from files."""

    params: Params
    found: Sequence[Trial]
    weights: Mapping[str, Weights]
    claims: Sequence[ClaimLine]
    findings: Mapping[str, FindingLine]
    deviations: Sequence[PaperDeviations]
    history: Sequence[Change]
    registered: Registered
    history_digest: str
    hours: Mapping[str, Mapping[str, float]]

    def __post_init__(self) -> None:
        self.found = [dataclasses.replace(item, row=number) for number, item in enumerate(self.found, start=1)]
        self.papers = list(dict.fromkeys(experiment.paper for experiment in self.params.experiments.values()))
        self.selected = sources.select(self.found)
        groups = gather(self.params, self.selected)  # by experiment, the strongest first
        facts = Facts(
            claims=self.claims,
            params=self.params,
            findings=self.findings,
            groups=groups,
            devices={paper.paper: paper.device for paper in self.deviations if paper.device},
        )
        self.judgements, self.sentences = judge_claims(facts)
        self.by_lab, self.pooled = self._judge_labs(facts)
        self.marks = {
            judgement.claim.id: self.registered.mark(
                judgement.claim,
                [self.found[row - 1] for row in dict.fromkeys(entry.result for entry in judgement.entries)],
            )
            for judgement in self.judgements
            if judgement.is_by_training
        }
        self.group_positions = {
            (name, group.profile, group.conditions): position
            for name, of_it in groups.items()
            for position, group in enumerate(of_it)
        }
        self.checkpoints = self._checkpoints()

    def _judge_labs(self, facts: Facts) -> tuple[dict[str, list[dict[str, Any]]], dict[str, dict[str, Any]]]:
        """Return by claim what each lab's results say alone, if another lab has any, and what the labs' means say."""
        by_lab = defaultdict[str, list[dict[str, Any]]](list)
        labs = sorted({group.lab for of_it in facts.groups.values() for group in of_it})
        for lab in labs if any(labs) else ():
            alone = {name: [group for group in of_it if group.lab == lab] for name, of_it in facts.groups.items()}
            judged, _ = judge_claims(dataclasses.replace(facts, findings={}, groups=alone, with_power=False))
            for one in judged:
                if one.is_by_training and one.entries:
                    by_lab[one.claim.id].append({"lab": lab} | _row_of_lab(one))
        others = {claim: rows for claim, rows in by_lab.items() if any(row["lab"] for row in rows)}
        pooled = {claim.id: judge_labs(claim, facts) for claim in self.claims if len(others.get(claim.id, ())) > 1}
        return others, {claim: _row_of_lab(judgement) for claim, judgement in pooled.items() if judgement is not None}

    def fill(self, session: Session) -> None:
        """Fill the tables in the order of their foreign keys."""
        for rows in (self._named(), self._experiments()):
            session.add_all(rows)
            session.flush()
        # Tables with many rows are filled from plain values, which is faster than from objects.
        if self.found:
            session.execute(insert(tables.Result), self._results())
        costs = [columns_of(tables.Cost, item.cost) | {"result_id": item.row} for item in self.found if item.cost]
        if costs:
            session.execute(insert(tables.Cost), costs)
        for rows in (
            arm_metric_rows(self.selected),
            (tables.Checkpoint(**columns) for columns in self.checkpoints),
            self._claims(),
            self._verdicts(),
            self._changes(),
            self._deviations(),
            self._links(),
            self._families(),
        ):
            session.add_all(rows)
            session.flush()
        found, judged = self.found, self.judgements
        many: dict[type[tables.Base], Values] = {
            tables.Metric: (
                (item.row, row.metric, row.split, position, row.value, row.n)
                for item in found
                for position, row in enumerate(item.result.metrics)
            ),
            tables.Array: (
                (item.row, kind, text)
                for item in found
                for kind, text in (("correct", item.result.correct), ("confusion", item.result.confusion))
                if text is not None
            ),
            tables.Epoch: (
                (item.row, *values)
                for item in found
                for curves in [as_curves(item.result.curves)]
                for values in zip(*map(curves.column, COLUMNS), strict=True)
            ),
            tables.ObservationRow: (
                (item.row, position, *number)
                for item in found
                for position, number in enumerate(list_observed(item.result.observed or {}))
            ),
            tables.VerdictRun: (
                (judgement.claim.id, position, entry.side, entry.arm, entry.replicate, entry.value, entry.result)
                for judgement in judged
                for position, entry in enumerate(judgement.entries)
            ),
        }
        for table, values in many.items():
            insert_rows(session, table, values)
        days = [item.origin.published[:10] for item in self.found if item.origin]
        measured = (one for experiment in self.params.experiments.values() for one in experiment.metrics.items())
        own = {name: (metric.unit, metric.better) for name, metric in measured}
        about = {
            "schema_version": str(tables.SCHEMA_VERSION),
            "content": self.digest(),
            "rules": json.dumps(dataclasses.asdict(self.params.verdicts)),
            "newest_result": max(days, default=""),
            "record": self.history_digest,
            "metrics": json.dumps(own) if own else "",
        }
        session.add_all(tables.Meta(name=name, value=value) for name, value in about.items() if value)

    def digest(self) -> str:
        """Return the sha256 of everything that the rows are built from, except the current profile."""
        deviations = TypeAdapter(PaperDeviations)
        parts: list[Any] = [
            TypeAdapter(Params).dump_python(self.params, mode="json", exclude={"profile_name"}),
            [_cite(paper) for paper in self.papers],
            [_identify(item) for item in self.found],
            [vars(claim) for claim in self.claims],
            {claim: dataclasses.asdict(finding) for claim, finding in self.findings.items()},
            {digest: vars(weights) for digest, weights in self.weights.items()},
            [deviations.dump_python(paper, mode="json") for paper in self.deviations],
            [
                [
                    judgement.claim.id,
                    dataclasses.asdict(judgement.verdict),
                    judgement.ours,
                    judgement.is_decidable,
                    None if judgement.power is None else dataclasses.asdict(judgement.power),
                    [dataclasses.asdict(arm) for arm in judgement.arms],
                ]
                for judgement in self.judgements
            ],
            [vars(change) for change in self.history],
            {claim: vars(mark) for claim, mark in self.marks.items()},
            self.history_digest,
            {arm: dict(taken) for arm, taken in self.hours.items()},
        ]
        return hashlib.sha256(canonical_json(parts).encode()).hexdigest()

    def _named(self) -> Iterator[tables.Base]:
        recorded = {found.paper: found for found in self.deviations}
        for position, paper in enumerate(self.papers):
            title, summary = _cite(paper)
            found = recorded.get(paper, PaperDeviations(paper=paper, deviations={}))
            yield tables.Paper(
                name=paper,
                position=position,
                title=title,
                summary=summary,
                repository=found.repository,
                before_use=list(found.before_use),
                called=found.called or paper,
                asks=found.question.asks if found.question else None,
                answered_by=list(found.question.claims) if found.question else [],
            )
        for position, (name, profile) in enumerate(self.params.profiles.items()):
            yield tables.ProfileRow(name=name, rank=position, data=profile.data)
        for position, (name, source) in enumerate(self.params.datasets.items()):
            yield row_of(
                tables.Dataset,
                source,
                name=name,
                position=position,
                kind="other" if source.task_class else source.task or source.kind,
                shape=list(source.shape),
                class_names=list(READERS[source.reader].classes) if source.reader in READERS else [],
                train_images=source.train,
                test_images=source.test,
            )

    def _experiments(self) -> Iterator[tables.Base]:
        for place, experiment in enumerate(self.params.experiments.values()):
            protocol, seeds = dataclasses.asdict(experiment.printed), list(experiment.seeds)
            yield row_of(tables.ExperimentRow, experiment, position=place, protocol=protocol, seeds=seeds)
            for position, arm in enumerate(experiment.arms.values()):
                yield row_of(
                    tables.ArmRow,
                    arm,
                    experiment=experiment.name,
                    position=position,
                    model=dict(arm.model),
                    protocol=dict(arm.protocol),
                    hours=self.hours.get(f"{experiment.name}.{arm.name}", {}),
                )

    def _results(self) -> list[dict[str, Any]]:
        """Return the rows of results with their group's position, None for results that are no longer planned."""
        selected = {item.identity for item in self.selected}
        return [
            columns_of(tables.Result, line, line.data, item)
            | {
                "id": item.row,
                "machine_digest": line.machine_digest,
                "source": item.source,
                "is_selected": item.identity in selected,
                "group_position": self.group_positions[sources.group_of(item)] if item.is_planned else None,
                "conditions": item.conditions,
                "data_digest": line.data.digest,
                "accuracy": next(
                    (row.value for row in line.metrics if (row.metric, row.split) == ("accuracy", "test")), None
                ),
                "train_seconds": item.cost.train_seconds if item.cost else None,
                "divergence": dataclasses.asdict(line.divergence) if line.divergence else None,
                "origin": {name: value for name, value in vars(item.origin).items() if value is not None}
                if item.origin
                else None,
            }
            for item in self.found
            for line in [item.result]
        ]

    def _checkpoints(self) -> list[dict[str, Any]]:
        """Return a row for each `<experiment>.<arm>.<replicate>` whose weights are available.

        It is for the result of the strongest group, with trained weights rather than released ones.
        """
        best: dict[str, tuple[tuple[Any, ...], Trial, str]] = {}
        for item in self.found:
            line = item.result
            candidates = (line.weights_sha256, item.release.sha256 if item.release else None)
            digest = next((digest for digest in candidates if digest in self.weights), None)
            if not item.is_planned or digest is None:
                continue
            rank = (-self.group_positions[sources.group_of(item)], *sources.precedence(item))
            if line.name not in best or best[line.name][0] < rank:
                best[line.name] = rank, item, digest
        return [
            columns_of(tables.Checkpoint, item.release if digest != item.result.weights_sha256 else None)
            | vars(self.weights[digest])
            | {
                "id": name,
                "position": position,
                "experiment": item.result.experiment,
                "sha256": digest,
                "result_id": item.row,
            }
            for position, (name, (_, item, digest)) in enumerate(best.items())
        ]

    def _claims(self) -> Iterator[tables.Base]:
        names = ("status", "computed", "explanation", "error")
        for position, claim in enumerate(self.claims):
            shown: dict[str, Any] | None = None
            if found := self.findings.get(claim.id):
                shown = {name: getattr(found, name) for name in names} | {"readings": list(map(vars, found.readings))}
            yield tables.Claim(position=position, finding=shown, **vars(claim))

    def _verdicts(self) -> Iterator[tables.Base]:
        """Yield a verdict per judgement, with its digest and the number of results seen before its rule was set."""
        rules = self.params.verdicts
        code, numbers = digest_code(), rules.digest()
        trained: dict[str, dict[str, Verdict]] = {}
        for judgement in self.judgements:
            if judgement.is_by_training and not judgement.claim.facts.is_spread:  # small p-values reject it
                trained.setdefault(judgement.claim.paper, {})[judgement.claim.id] = judgement.verdict
        rates: dict[str, float | None] = {}
        for verdicts in trained.values():
            rates |= dict(zip(verdicts, false_discovery_rates(list(verdicts.values())), strict=True))
        for judgement in self.judgements:
            claim, verdict, size = judgement.claim, judgement.verdict, judgement.verdict.size
            prediction, mark = (size or verdict).prediction, self.marks.get(claim.id)
            judging = digest_findings(claim.paper) if judgement.basis == "finding" else code
            yield row_of(
                tables.VerdictRow,
                verdict,
                judgement,
                judgement.cost,
                claim=claim.id,
                status=str(verdict.status),
                size=size and _row_of_size(size),
                power=None if judgement.power is None else dataclasses.asdict(judgement.power),
                scope=None if verdict.scope is None else dataclasses.asdict(verdict.scope),
                prediction_low=prediction.low if prediction else None,
                prediction_high=prediction.high if prediction else None,
                prediction_confidence=prediction.confidence if prediction else None,
                is_predicted=prediction.holds if prediction else None,
                false_discovery_rate=rates.get(claim.id),
                by_margin=list(map(vars, verdict.by_margin)),
                variants=[dataclasses.asdict(variant) for variant in judgement.variants],
                arms=[
                    tables.VerdictArm(position=place, **dataclasses.asdict(arm))
                    for place, arm in enumerate(judgement.arms)
                ],
                labs=self.by_lab.get(claim.id, []),
                pooled=self.pooled.get(claim.id),
                rules=numbers,
                digest=digest_verdict(claim, rules, judging),
                seen_before_rule=seen_before_rule(claim.id, self.history) if judgement.basis == "results" else None,
                registration=dataclasses.asdict(mark) if mark else None,
            )

    def _changes(self) -> Iterator[tables.Base]:
        """Yield each claim's history: changes of its row and rule, and those of code if results judge it."""
        for judgement in self.judgements:
            name, is_by_results = judgement.claim.id, judgement.basis == "results"
            mine = [change for change in self.history if change.concerns(name)]
            shown = [change for change in mine if change.subject in ("claim", "rule") or is_by_results]
            for position, change in enumerate(shown):
                yield row_of(tables.ClaimChange, change, claim=name, position=position, changed=dict(change.changed))

    def _deviations(self) -> Iterator[tables.Base]:
        named = [(paper.paper, *item) for paper in self.deviations for item in paper.deviations.items()]
        for position, (paper, name, deviation) in enumerate(named):
            key = f"{paper}.{name}"
            yield row_of(tables.DeviationRow, deviation, id=key, position=position, paper=paper, says=deviation.paper)

    def _links(self) -> Iterator[tables.Base]:
        """Yield the links from claims to the deviations that match them, and from claims to their experiments."""
        for paper in self.deviations:
            claims = [claim for claim in self.claims if claim.paper == paper.paper]
            for name, deviation in paper.deviations.items():
                for claim in touched(deviation, claims):
                    yield tables.ClaimDeviation(claim=claim, deviation=f"{paper.paper}.{name}")
        for line in self.claims:
            for name in fnmatch.filter(self.params.experiments, line.experiment or ""):
                yield tables.ClaimExperiment(claim=line.id, experiment=name)

    def _families(self) -> Iterator[tables.Base]:
        papers = {judgement.claim.family: judgement.claim.paper for judgement in self.judgements}
        for position, (name, found) in enumerate(self.sentences.items()):
            own = {"position": position, "paper": papers[name], "status": str(found.status)}
            yield row_of(tables.Family, found, name=name, **own)


def _cite(paper: str) -> tuple[str, str]:
    """Return the first two paragraphs of the paper's package docstring, each on one line."""
    path = source_path(f"stages.papers.{paper}")
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) if path else None
    paragraphs = [" ".join(part.split()) for part in (docstring or paper).split("\n\n")]
    return paragraphs[0].rstrip("."), paragraphs[1] if len(paragraphs) > 1 else ""


def _identify(item: Trial) -> list[Any]:
    """Return what identifies a result: its line number, the digest of its lines, and how it fits the params."""
    digest = item.digest
    if not digest:
        text = write_lines([item.result]) + write_lines([item.cost] if item.cost else [])
        digest = hashlib.sha256(text).hexdigest()
    marks = item.is_planned, item.follows_plan, list(item.varied), list(item.changed_code), list(item.equivalences)
    return [item.line, digest, *marks]


def _row_of_size(size: Verdict) -> dict[str, Any]:
    kept = {name: value for name, value in vars(size).items() if name not in tables.NOT_OF_SIZE}
    return kept | {"by_margin": list(map(vars, size.by_margin))}


def _row_of_lab(judgement: Judgement) -> dict[str, Any]:
    verdict = judgement.verdict
    numbers = {name: getattr(verdict, name) for name in ("estimate", "confidence", "n", "explanation")} | verdict.ends
    holds = WORD_OF[verdict.status] is Word.HOLDS
    return {"status": str(verdict.status), "holds": holds, "ours": judgement.ours} | numbers


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Counts of what `record` wrote, and `notes` about problems that should be seen but don't stop it."""

    results: int
    selected: int
    checkpoints: int
    claims: int
    findings: int
    notes: tuple[str, ...]


def record(root: Path, database: str, *, evidence_only: bool = False) -> Summary:
    """Build `database` (a path below `root`, or a URL) from the files below `root`.

    `evidence_only` leaves out the results of this working tree.
    """
    params = load_params(root)
    faults: list[str] = []
    claims = sources.read_placed_claims(root, params, faults)
    computed = root / "data" / "findings.jsonl"
    findings = sources.read_findings(computed, claims, are_all=not faults) if not evidence_only else {}
    hours = sources.read_hours(root / "data" / "hours.json") if not evidence_only else {}
    found, left_out = sources.find_results(root, params, evidence_only=evidence_only)
    versions = read_versions(root)
    if lost := find_lost(root, versions):
        raise RecordError(describe_lost(lost))
    weights, notes = sources.find_weights(root, found)
    deviations = sources.read_paper_deviations(params)
    history = read_history(root / HISTORY)
    registered = Registered(root, params.verdicts, history)
    digest = digest_history(versions) if is_full_clone(root) else ""
    rows = DatabaseBuilder(params, found, weights, claims, findings, deviations, history, registered, digest, hours)
    url = make_url(database_url(database))
    if url.get_backend_name() != "sqlite":
        create_results(url.render_as_string(hide_password=False), rows.fill)
    else:
        target = root / (url.database or "")
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            create_results(f"sqlite:///{partial}", rows.fill)
            put_in_place(partial, target)
        except OverflowError:
            raise RecordError("a whole number in data/results or data/evidence has more than 64 bits") from None
        finally:
            partial.unlink(missing_ok=True)
    return Summary(
        results=len(found),
        selected=len(rows.selected),
        checkpoints=len(rows.checkpoints),
        claims=len(claims),
        findings=len(findings),
        notes=(*faults, *left_out, *notes),
    )
