"""Results, claims and params as database rows, in a fixed order."""

from __future__ import annotations

import ast
import dataclasses
import fnmatch
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import insert
from sqlalchemy.orm import Session

from stages.claims import Change, ClaimLine, JudgedTable, Judgement, PaperDeviations, touched
from stages.claims.history import (
    Registered,
    RegistrationMark,
    digest_code,
    digest_findings,
    digest_verdict,
    seen_before_rule,
)
from stages.datasets.prepare import READERS
from stages.params.experiment import Params
from stages.recording.sources import FindingLine, Weights, group_of, judge, precedence
from stages.results import (
    SCHEMA_VERSION,
    Arm,
    ArmMetric,
    Array,
    Base,
    Checkpoint,
    Claim,
    ClaimChange,
    ClaimDeviation,
    ClaimExperiment,
    Cost,
    Dataset,
    Deviation,
    Epoch,
    Experiment,
    Family,
    Meta,
    Metric,
    ObservationRow,
    Paper,
    Profile,
    Result,
    VerdictArm,
    VerdictRow,
    VerdictRun,
    insert_rows,
)
from stages.rules import Rules
from stages.run import canonical_json
from stages.runs.curves import COLUMNS, as_curves
from stages.runs.evidence import ResultLine, list_observed, write_lines
from stages.runs.fingerprint import source_path
from stages.runs.trial import Trial
from stages.verdicts import ARM_METRICS, NoCurves, Verdict, arm_metric, false_discovery_rates

_NEEDED = "test_accuracy"
"""All `ARM_METRICS` derive from it, so curves without it are skipped."""


def arm_metric_rows(selected: Iterable[Trial]) -> list[Base]:
    """Return a row for each metric from the curves of an arm's finished results under equal conditions."""
    groups: dict[tuple[str, str, str, str], list[ResultLine]] = defaultdict(list)
    for item in selected:
        line = item.result
        if line.status == "finished":
            groups[line.experiment, line.arm, line.profile, item.conditions].append(line)
    rows: list[Base] = []
    for (experiment, arm, profile, conditions), lines in groups.items():
        if not all(any(value is not None for value in as_curves(line.curves).column(_NEEDED)) for line in lines):
            continue
        for name in ARM_METRICS:
            try:
                metric = arm_metric(name, [line.curves for line in lines])
            except NoCurves:
                continue
            shares = [[line.replicate, share] for line, share in zip(lines, metric.folds, strict=True)]
            rows.append(
                ArmMetric(
                    experiment=experiment,
                    arm=arm,
                    profile=profile,
                    conditions=conditions,
                    metric=name,
                    value=metric.value,
                    stderr=metric.stderr,
                    epoch=metric.epoch,
                    shares=shares,
                )
            )
    return rows


Values = tuple[Any, ...]


class Rows:
    """Builder of the rows of one database; each call of `fill` rebuilds them."""

    def __init__(
        self,
        params: Params,
        found: Sequence[Trial],
        weights: Mapping[str, Weights],
        claims: Sequence[ClaimLine],
        findings: Mapping[str, FindingLine],
        deviations: Sequence[PaperDeviations],
        history: Sequence[Change],
        registered: Registered,
        history_digest: str,
        hours: Mapping[str, Mapping[str, float]],
    ) -> None:
        self.params, self.weights, self.claims, self.findings = params, weights, claims, findings
        self.found = [dataclasses.replace(item, row=number) for number, item in enumerate(found, start=1)]
        self.deviations, self.history, self.history_digest = deviations, history, history_digest
        self.hours = hours
        judged = judge(claims, params, self.found, findings=findings, deviations=deviations)
        self.speaking, self.judgements, self.sentences = judged.speaking, judged.judgements, judged.sentences
        self.marks = {
            judgement.claim.id: registered.mark(
                judgement.claim,
                [self.found[row - 1] for row in dict.fromkeys(entry.result for entry in judgement.entries)],
            )
            for judgement in self.judgements
            if judgement.is_by_training
        }
        self.group_positions = {
            (name, group.profile, group.conditions): position
            for name, of_it in judged.groups.items()
            for position, group in enumerate(of_it)
        }

    def fill(self, session: Session) -> None:
        """Fill the tables in the order of their foreign keys."""
        for rows in (
            self.named(),
            self.experiments(),
            self.arms(),
        ):
            session.add_all(rows)
            session.flush()
        # Plain values instead of objects for tables with many rows.
        if results := self.results():
            session.execute(insert(Result), results)
        if costs := self.costs():
            session.execute(insert(Cost), costs)
        for rows in (
            arm_metric_rows(self.speaking),
            self.checkpoints(),
            [self.claim(number, claim) for number, claim in enumerate(self.claims)],
            verdict_rows(self.judgements, self.params.verdicts, self.history, self.marks),
            change_rows(self.history, self.judgements),
            deviation_rows(self.deviations),
            deviation_links(self.deviations, self.claims),
            place_rows(self.claims, self.params),
            family_rows(self.sentences, self.judgements),
        ):
            session.add_all(rows)
            session.flush()
        for table, values in (
            (Metric, self.metrics()),
            (Array, self.arrays()),
            (Epoch, self.epochs()),
            (ObservationRow, self.observations()),
            (VerdictRun, verdict_run_values(self.judgements)),
        ):
            insert_rows(session, table, values)
        session.add(Meta(name="schema_version", value=str(SCHEMA_VERSION)))
        session.add(Meta(name="content", value=self.digest()))
        session.add(Meta(name="rules", value=json.dumps(dataclasses.asdict(self.params.verdicts))))
        days = [item.origin.published[:10] for item in self.found if item.origin]
        if days:
            session.add(Meta(name="newest_result", value=max(days)))
        if self.history_digest:
            session.add(Meta(name="record", value=self.history_digest))

    def digest(self) -> str:
        """Return the sha256 over all inputs of the rows, except the current profile."""
        deviations = TypeAdapter(PaperDeviations)
        parts: list[Any] = [
            TypeAdapter(Params).dump_python(self.params, mode="json", exclude={"profile_name"}),
            [_cite(paper) for paper in self.papers()],
            [_identify(item) for item in self.found],
            [vars(claim) for claim in self.claims],
            {claim: dataclasses.asdict(finding) for claim, finding in self.findings.items()},
            {digest: vars(weights) for digest, weights in self.weights.items()},
            [deviations.dump_python(paper, mode="json") for paper in self.deviations],
            plain(self.judgements),
            [vars(change) for change in self.history],
            {claim: vars(mark) for claim, mark in self.marks.items()},
            self.history_digest,
            {arm: dict(taken) for arm, taken in self.hours.items()},
        ]
        return hashlib.sha256(canonical_json(parts).encode()).hexdigest()

    def claim(self, position: int, claim: ClaimLine) -> Base:
        names, found = ("status", "computed", "explanation", "error"), self.findings.get(claim.id)
        shown: dict[str, Any] | None = None
        if found:
            shown = {name: getattr(found, name) for name in names} | {"readings": list(map(vars, found.readings))}
        return Claim(position=position, finding=shown, **vars(claim))

    def papers(self) -> list[str]:
        return list(dict.fromkeys(experiment.paper for experiment in self.params.experiments.values()))

    def named(self) -> list[Base]:
        rows: list[Base] = []
        recorded = {found.paper: found for found in self.deviations}
        for position, paper in enumerate(self.papers()):
            title, summary = _cite(paper)
            found = recorded.get(paper)
            rows.append(
                Paper(
                    name=paper,
                    position=position,
                    title=title,
                    summary=summary,
                    repository=found.repository if found else None,
                    before_use=list(found.before_use) if found else [],
                    called=(found and found.called) or paper,
                    asks=found.question.asks if found and found.question else None,
                    answered_by=list(found.question.claims) if found and found.question else [],
                )
            )
        for position, (name, profile) in enumerate(self.params.profiles.items()):
            rows.append(Profile(name=name, rank=position, data=profile.data))
        for position, (name, source) in enumerate(self.params.datasets.items()):
            rows.append(
                row_of(
                    Dataset,
                    source,
                    name=name,
                    position=position,
                    shape=list(source.shape),
                    class_names=list(READERS[source.reader].classes) if source.reader in READERS else [],
                    train_images=source.train,
                    test_images=source.test,
                )
            )
        return rows

    def experiments(self) -> list[Base]:
        return [
            row_of(
                Experiment,
                experiment,
                position=position,
                protocol=dataclasses.asdict(experiment.printed),
                seeds=list(experiment.seeds),
            )
            for position, experiment in enumerate(self.params.experiments.values())
        ]

    def arms(self) -> list[Base]:
        return [
            row_of(
                Arm,
                arm,
                experiment=experiment.name,
                position=position,
                model=dict(arm.model),
                protocol=dict(arm.protocol),
                hours=self.hours.get(f"{experiment.name}.{arm.name}", {}),
            )
            for experiment in self.params.experiments.values()
            for position, arm in enumerate(experiment.arms.values())
        ]

    def results(self) -> list[dict[str, Any]]:
        """Return rows of results with the position of their group; results that are no longer planned have none."""
        speaking = {item.identity for item in self.speaking}
        return [
            _result_row(
                item,
                is_selected=item.identity in speaking,
                group_position=self.group_positions[group_of(item)] if item.is_planned else None,
            )
            for item in self.found
        ]

    def costs(self) -> list[dict[str, Any]]:
        return [
            {name: value for name, value in vars(item.cost).items() if name in Cost.__table__.columns}
            | {"result_id": item.row, "epoch_seconds": list(item.cost.epoch_seconds)}
            for item in self.found
            if item.cost
        ]

    def metrics(self) -> Iterator[Values]:
        return (
            (item.row, row.metric, row.split, position, row.value, row.n)
            for item in self.found
            for position, row in enumerate(item.result.metrics)
        )

    def arrays(self) -> Iterator[Values]:
        return (
            (item.row, kind, text)
            for item in self.found
            for kind, text in (("correct", item.result.correct), ("confusion", item.result.confusion))
            if text is not None
        )

    def epochs(self) -> Iterator[Values]:
        """Return the rows of epochs, which are most of the database."""
        for item in self.found:
            curves = as_curves(item.result.curves)
            yield from zip(repeat(item.row), *(curves.column(name) for name in COLUMNS), strict=False)

    def observations(self) -> Iterator[Values]:
        """Return every number measured inside networks, in the order of the result lines."""
        return (
            (item.row, position, row.quantity, row.moment, row.block, row.head, row.value)
            for item in self.found
            for position, row in enumerate(list_observed(item.result.observed or {}))
        )

    def checkpoints(self) -> list[Base]:
        """Return for each `<experiment>.<arm>.<replicate>` the strongest group's result with available weights."""
        best: dict[str, Trial] = {}
        for item in self.found:
            line = item.result
            if not item.is_planned or self._digest_here(item) is None:
                continue
            name = f"{line.experiment}.{line.arm}.{line.replicate}"
            if name not in best or self._group_precedence(best[name]) < self._group_precedence(item):
                best[name] = item
        return [self._checkpoint(position, name, item) for position, (name, item) in enumerate(best.items())]

    def _group_precedence(self, item: Trial) -> tuple[int, bool, bool, str]:
        return -self.group_positions[group_of(item)], *precedence(item)

    def _digest_here(self, item: Trial) -> str | None:
        """Return the digest of the trained weights, else of the released ones, else None."""
        candidates = (item.result.weights_sha256, item.release.sha256 if item.release else None)
        return next((digest for digest in candidates if digest in self.weights), None)

    def _checkpoint(self, position: int, name: str, item: Trial) -> Checkpoint:
        digest = self._digest_here(item)
        assert digest is not None, "only results with weights have a checkpoint"
        release = item.release if digest != item.result.weights_sha256 else None
        return Checkpoint(
            id=name,
            position=position,
            experiment=item.result.experiment,
            path=self.weights[digest].path,
            sha256=digest,
            size_bytes=self.weights[digest].size_bytes,
            dtype=release.dtype if release else None,
            accuracy=release.accuracy if release else None,
            result_id=item.row,
        )


def _cite(paper: str) -> tuple[str, str]:
    """Return the first two paragraphs of the paper's package docstring, each on one line."""
    path = source_path(f"stages.papers.{paper}")
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) if path else None
    paragraphs = [" ".join(part.split()) for part in (docstring or paper).split("\n\n")]
    return paragraphs[0].rstrip("."), paragraphs[1] if len(paragraphs) > 1 else ""


def _result_row(item: Trial, *, is_selected: bool, group_position: int | None) -> dict[str, Any]:
    line, data = item.result, item.result.data
    return {name: value for name, value in vars(line).items() if name in Result.__table__.columns} | {
        "id": item.row,
        "machine_digest": line.machine_digest,
        "source": item.source,
        "is_selected": is_selected,
        "group_position": group_position,
        "changed_code": list(item.changed_code),
        "equivalences": list(item.equivalences),
        "provenance": data.provenance,
        "conditions": item.conditions,
        "data_digest": data.digest,
        "train_images": data.train_images,
        "test_images": data.test_images,
        "excluded_test_images": data.excluded_test_images,
        "accuracy": next((row.value for row in line.metrics if (row.metric, row.split) == ("accuracy", "test")), None),
        "train_seconds": item.cost.train_seconds if item.cost else None,
        "spec": dict(line.spec),
        "environment": dict(line.environment),
        "divergence": dataclasses.asdict(line.divergence) if line.divergence else None,
        "origin": dataclasses.asdict(item.origin) if item.origin else None,
    }


def _identify(item: Trial) -> list[Any]:
    """Return everything that identifies a result: the digest of its lines and its marks from the params."""
    digest = item.digest
    if not digest:
        text = write_lines([item.result]) + write_lines([item.cost] if item.cost else [])
        digest = hashlib.sha256(text).hexdigest()
    return [
        item.line,
        digest,
        item.is_planned,
        item.follows_plan,
        list(item.varied),
        list(item.changed_code),
        list(item.equivalences),
    ]


Row = TypeVar("Row", bound=Base)
_SIZE = ("explanation", "estimate", "low", "high", "confidence", "margin", "n", "replicates_expected", "posterior")


def row_of(table: type[Row], *sources: object, **own: Any) -> Row:
    """Return a row of `table`: each column from `own`, or else from the first of `sources` with a field of its name."""
    fields = {name: value for source in reversed(sources) if source is not None for name, value in vars(source).items()}
    return table(**{name: value for name, value in fields.items() if name in table.__table__.columns} | own)


def verdict_rows(
    judgements: Sequence[Judgement],
    rules: Rules,
    history: Sequence[Change],
    marks: Mapping[str, RegistrationMark],
) -> list[Base]:
    """Return a verdict per judgement, with its digest and the number of results seen before its rule."""
    code, numbers = digest_code(), rules.digest()
    trained: dict[str, dict[str, Verdict]] = {}
    for judgement in judgements:
        if judgement.is_by_training and not judgement.claim.facts.is_spread:  # small p-values reject it
            trained.setdefault(judgement.claim.paper, {})[judgement.claim.id] = judgement.verdict
    rates: dict[str, float | None] = {}
    for verdicts in trained.values():
        rates |= dict(zip(verdicts, false_discovery_rates(list(verdicts.values())), strict=True))
    rows: list[Base] = []
    for judgement in judgements:
        claim, verdict, size = judgement.claim, judgement.verdict, judgement.verdict.size
        prediction = (size or verdict).prediction
        judging = digest_findings(claim.paper) if judgement.basis == "finding" else code
        row = row_of(
            VerdictRow,
            verdict,
            judgement,
            judgement.cost,
            claim=claim.id,
            status=str(verdict.status),
            size=size
            and {
                "status": str(size.status),
                "by_margin": _stretches(size),
                **{name: getattr(size, name) for name in _SIZE},
            },
            power=None if judgement.power is None else dataclasses.asdict(judgement.power),
            scope=None if verdict.scope is None else dataclasses.asdict(verdict.scope),
            prediction_low=prediction.low if prediction else None,
            prediction_high=prediction.high if prediction else None,
            prediction_confidence=prediction.confidence if prediction else None,
            is_predicted=prediction.holds if prediction else None,
            false_discovery_rate=rates.get(claim.id),
            by_margin=_stretches(verdict),
            variants=[dataclasses.asdict(variant) for variant in judgement.variants],
            arms=[VerdictArm(position=place, **dataclasses.asdict(arm)) for place, arm in enumerate(judgement.arms)],
            rules=numbers,
            digest=digest_verdict(claim, rules, judging),
            seen_before_rule=seen_before_rule(claim.id, history) if judgement.basis == "results" else None,
            registration=dataclasses.asdict(marks[claim.id]) if claim.id in marks else None,
        )
        rows.append(row)
    return rows


def verdict_run_values(judgements: Iterable[Judgement]) -> Iterator[tuple[Any, ...]]:
    """Return the runs behind each verdict, in the order of the table's columns."""
    return (
        (judgement.claim.id, position, entry.side, entry.arm, entry.replicate, entry.value, entry.result)
        for judgement in judgements
        for position, entry in enumerate(judgement.entries)
    )


def change_rows(history: Sequence[Change], judgements: Sequence[Judgement]) -> list[Base]:
    """Return the history for a claim's page: changes of its row, and of rules and code if results judge it."""
    rows: list[Base] = []
    for judgement in judgements:
        mine = [change for change in history if change.concerns(judgement.claim.id)]
        told = [change for change in mine if change.subject in ("claim", "rule") or judgement.basis == "results"]
        rows += [
            row_of(ClaimChange, change, claim=judgement.claim.id, position=position, changed=dict(change.changed))
            for position, change in enumerate(told)
        ]
    return rows


def _stretches(verdict: Verdict) -> list[dict[str, Any]]:
    return [{"start": stretch.start, "status": str(stretch.status)} for stretch in verdict.by_margin]


def deviation_rows(found: Sequence[PaperDeviations]) -> list[Base]:
    """Return every deviation."""
    every = [(paper.paper, name, deviation) for paper in found for name, deviation in paper.deviations.items()]
    return [
        row_of(Deviation, deviation, id=f"{paper}.{name}", position=position, paper=paper, says=deviation.paper)
        for position, (paper, name, deviation) in enumerate(every)
    ]


def deviation_links(found: Sequence[PaperDeviations], claims: Sequence[ClaimLine]) -> list[Base]:
    """Return for each deviation the claims of its paper that it matches."""
    return [
        ClaimDeviation(claim=claim, deviation=f"{paper.paper}.{name}")
        for paper in found
        for name, deviation in paper.deviations.items()
        for claim in touched(deviation, [claim for claim in claims if claim.paper == paper.paper])
    ]


def place_rows(claims: Iterable[ClaimLine], params: Params) -> list[Base]:
    """Return the experiments of each claim."""
    return [
        ClaimExperiment(claim=claim.id, experiment=name)
        for claim in claims
        if claim.experiment
        for name in fnmatch.filter(params.experiments, claim.experiment)
    ]


def family_rows(sentences: Sequence[JudgedTable], judgements: Sequence[Judgement]) -> list[Base]:
    papers = {judgement.claim.family: judgement.claim.paper for judgement in judgements}
    return [
        row_of(
            Family,
            table.sentence,
            name=table.family,
            position=position,
            paper=papers[table.family],
            status=str(table.sentence.status),
            orders=len(table.claims),
        )
        for position, table in enumerate(sentences)
    ]


def plain(judgements: Sequence[Judgement]) -> list[Any]:
    """Return the judgements as JSON values, for the digest of the database."""
    return [
        [
            judgement.claim.id,
            dataclasses.asdict(judgement.verdict),
            judgement.ours,
            judgement.is_decidable,
            None if judgement.power is None else dataclasses.asdict(judgement.power),
            [dataclasses.asdict(arm) for arm in judgement.arms],
        ]
        for judgement in judgements
    ]
