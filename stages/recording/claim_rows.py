"""Judgements, deviations and the tables' sentences as database rows."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from stages.claims import Change, ClaimLine, Judgement, PaperDeviations, Table, touched
from stages.claims.history import digest_code, digest_findings, digest_verdict, seen_before_rule
from stages.claims.registration import RegistrationMark
from stages.params.experiment import Params
from stages.results import Base, ClaimChange, ClaimDeviation, ClaimExperiment, Deviation, Family, VerdictArm, VerdictRow
from stages.rules import Rules
from stages.verdicts import Verdict, false_discovery_rates

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
    """One verdict per judgement, with the digest of its claim, rules and code, and what was seen before its rule."""
    code, numbers = digest_code(), rules.digest()
    trained: dict[str, dict[str, Verdict]] = {}
    for judgement in judgements:
        if judgement.is_by_training and not judgement.claim.facts.is_spread:  # which small p-values speak against
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
    """The runs behind each verdict, in the order of their table's columns."""
    return (
        (judgement.claim.id, position, entry.side, entry.arm, entry.replicate, entry.value, entry.result)
        for judgement in judgements
        for position, entry in enumerate(judgement.entries)
    )


def change_rows(history: Sequence[Change], judgements: Sequence[Judgement]) -> list[Base]:
    """The history on a claim's page: changes of its row, and of rules and code if results judge it."""
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
    """Every deviation."""
    every = [(paper.paper, name, deviation) for paper in found for name, deviation in paper.deviations.items()]
    return [
        row_of(Deviation, deviation, id=f"{paper}.{name}", position=position, paper=paper, says=deviation.paper)
        for position, (paper, name, deviation) in enumerate(every)
    ]


def deviation_links(found: Sequence[PaperDeviations], claims: Sequence[ClaimLine]) -> list[Base]:
    """For each deviation, the claims of its paper that it touches."""
    return [
        ClaimDeviation(claim=claim, deviation=f"{paper.paper}.{name}")
        for paper in found
        for name, deviation in paper.deviations.items()
        for claim in touched(deviation, [claim for claim in claims if claim.paper == paper.paper])
    ]


def place_rows(claims: Iterable[ClaimLine], params: Params) -> list[Base]:
    """The experiments of each claim."""
    return [
        ClaimExperiment(claim=claim.id, experiment=name)
        for claim in claims
        if claim.experiment
        for name in fnmatch.filter(params.experiments, claim.experiment)
    ]


def family_rows(sentences: Sequence[Table], judgements: Sequence[Judgement]) -> list[Base]:
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
    """The content of judgements as JSON values, for the digest of the database."""
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
