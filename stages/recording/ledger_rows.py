"""Judgements, deviations and the tables' sentences as rows of the database."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable, Sequence
from typing import Any

from stages import results as tables
from stages.experiment import Params
from stages.ledger import ClaimLine, Judgement, PaperDeviations, Table, touched


def verdict_rows(judgements: Sequence[Judgement], sentences: Sequence[Table], rules: str) -> list[tables.Base]:
    """A verdict for each judgement, with the runs behind it.  `rules` is the digest of the rules."""
    adjusted = {
        claim: holds for table in sentences for claim, holds in zip(table.claims, table.sentence.holds, strict=True)
    }
    return [_verdict(judgement, adjusted.get(judgement.claim.id), rules) for judgement in judgements]


def _verdict(judgement: Judgement, holds_adjusted: bool | None, rules: str) -> tables.Verdict:
    verdict, cost = judgement.verdict, judgement.cost
    names = ("explanation", "estimate", "low", "high", "confidence", "margin", "n", "n_diverged", "p_value")
    return tables.Verdict(
        claim=judgement.claim.id,
        status=str(verdict.status),
        basis=judgement.basis,
        is_decidable=judgement.is_decidable,
        ours=judgement.ours,
        replicates_expected=verdict.replicates_expected,
        size=_size(judgement),
        holds_adjusted=holds_adjusted,
        rules=rules,
        device_seconds=cost.device_seconds if cost else None,
        flops=cost.flops if cost else None,
        peak_memory_bytes=cost.peak_memory_bytes if cost else None,
        energy_joules=cost.energy_joules if cost else None,
        usd=cost.usd if cost else None,
        runs=[
            tables.VerdictRun(
                position=position,
                side=entry.side,
                arm=entry.arm,
                replicate=entry.replicate,
                value=entry.value,
                result_id=entry.result,
            )
            for position, entry in enumerate(judgement.entries)
        ],
        **{name: getattr(verdict, name) for name in names},
    )


def _size(judgement: Judgement) -> dict[str, Any] | None:
    """The verdict on the size of a difference, as plain values."""
    size = judgement.verdict.size
    if size is None:
        return None
    names = ("explanation", "estimate", "low", "high", "confidence", "margin", "n", "replicates_expected")
    return {"status": str(size.status)} | {name: getattr(size, name) for name in names}


def deviation_rows(found: Sequence[PaperDeviations]) -> list[tables.Base]:
    """Every deviation."""
    every = [(paper.paper, name, deviation) for paper in found for name, deviation in paper.deviations.items()]
    return [
        tables.Deviation(
            id=f"{paper}.{name}",
            position=position,
            paper=paper,
            subject=deviation.subject,
            says=deviation.paper,
            code=deviation.code,
            ours=deviation.ours,
            why=deviation.why,
        )
        for position, (paper, name, deviation) in enumerate(every)
    ]


def deviation_links(found: Sequence[PaperDeviations], claims: Sequence[ClaimLine]) -> list[tables.Base]:
    """For each deviation, the claims of its paper that it touches."""
    return [
        tables.ClaimDeviation(claim=claim, deviation=f"{paper.paper}.{name}")
        for paper in found
        for name, deviation in paper.deviations.items()
        for claim in touched(deviation, [claim for claim in claims if claim.paper == paper.paper])
    ]


def place_rows(claims: Iterable[ClaimLine], params: Params) -> list[tables.Base]:
    """The experiments of each claim."""
    return [
        tables.ClaimExperiment(claim=claim.id, experiment=name)
        for claim in claims
        if claim.experiment
        for name in fnmatch.filter(params.experiments, claim.experiment)
    ]


_SYNTHESIS = (
    *("text", "tested", "ahead", "gain", "low", "high", "confidence"),
    *("tau", "p_heterogeneity", "i2"),
)


def family_rows(sentences: Sequence[Table], judgements: Sequence[Judgement]) -> list[tables.Base]:
    papers = {judgement.claim.family: judgement.claim.paper for judgement in judgements}
    return [
        tables.Family(
            name=table.family,
            position=position,
            paper=papers[table.family],
            status=str(table.sentence.status),
            holds=sum(table.sentence.holds),
            orders=len(table.claims),
            **{name: getattr(table.sentence, name) for name in _SYNTHESIS},
        )
        for position, table in enumerate(sentences)
    ]


def plain(judgements: Sequence[Judgement]) -> list[Any]:
    """What they say, as JSON values, for the digest of the database."""
    return [
        [judgement.claim.id, dataclasses.asdict(judgement.verdict), judgement.ours, judgement.is_decidable]
        for judgement in judgements
    ]
