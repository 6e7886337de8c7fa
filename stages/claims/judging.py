"""Judge every claim by what decides it: its kind, a finding, the params files, or trained models."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from stages.claims.kinds import Facts, Kind, TallyKind, TrainedKind, kind_of, order_of
from stages.claims.lines import ClaimLine, Judgement, Variant
from stages.papers.finding import Finding
from stages.verdicts import Status, TableSentence, Verdict, judge_table

DEFENSIBLE: Sequence[Sequence[str]] = (
    ("accuracy", "best_epoch_accuracy"),
    ("error", "min_error", "window_error"),
    ("log_mse", "selected_log_mse", "min_log_mse"),
)
"""Metrics that answer one question; the errors of a table's trainings are all in one unit."""
_NO_TEST = (Status.NOT_TESTED, Status.OTHER_HARDWARE, Status.AGREES, Status.DISAGREES, Status.SHOWN)
AGREE = (Status.HOLDS, Status.HOLDS_UNDER_READING)
"""What a finding says of numbers that may be true."""
BY_A_READING = {
    Status.REPRODUCED: Status.HOLDS_UNDER_READING,
    Status.SUPPORTED: Status.HOLDS_UNDER_READING,
    Status.NOT_REPRODUCED: Status.INCONCLUSIVE,
    Status.REVERSED: Status.UNRESOLVED,
}
"""Verdicts by trainings of an experiment that is a reading of ours: they can support a claim, and never refute it."""


def judge_claims(facts: Facts) -> tuple[list[Judgement], dict[str, TableSentence]]:
    """Return one judgement per claim, in order, and the sentence that sums up each family of orders."""
    claims, rules = facts.claims, facts.params.verdicts
    tallies = [kind_of(claim, rules) for claim in claims if claim.facts.by == "orders" and not claim.reason]
    counts = {kind.claim.id: kind for kind in tallies if isinstance(kind, TallyKind)}
    judged = {claim.id: _judge_each_way(claim, facts) for claim in claims if claim.id not in counts}
    tables = {}
    for family in rules.families:
        # pairs that the paper prints as losses count towards its table's gain like the others
        rows = [claim for claim in claims if claim.family == family]
        gains = [claim for claim in rows if claim.facts.is_gain and not claim.facts.is_alike]
        if gains:
            tables[family] = judge_table([order_of(judged[claim.id], facts.params) for claim in gains], rules)
    for name, kind in counts.items():
        judged[name] = kind.judge_orders(list(judged.values()), facts, _judge)
    return [judged[claim.id] for claim in claims], tables


def judge_labs(claim: ClaimLine, facts: Facts) -> Judgement | None:
    """Judge a claim by the means of several labs; None if its kind, or the labs' results, don't allow that."""
    kind = kind_of(claim, facts.params.verdicts)
    judgement = kind.judge_labs(facts) if isinstance(kind, TrainedKind) else None
    return judgement and _under_reading(judgement)


def _judge_each_way(claim: ClaimLine, facts: Facts) -> Judgement:
    """Judge a claim and, if results decide it, add its verdicts in the other metrics of the same question.

    A paper's number may be that of the last epoch, of the one that validation chooses, or of the best on the test set.
    The claim's row says which one decides; the verdicts under the others are shown next to it.
    """
    judgement = judge_claim(claim, facts)
    if judgement.basis != "results" or judgement.verdict.status in _NO_TEST:
        return judgement
    metrics = next((group for group in DEFENSIBLE if claim.metric in group), ())
    others = [dataclasses.replace(claim, metric=metric) for metric in metrics if metric != claim.metric]
    facts = dataclasses.replace(facts, with_power=False)
    variants = tuple(
        Variant(
            metric=other.claim.metric,
            status=other.verdict.status,
            size=other.verdict.size.status if other.verdict.size else None,
            ours=other.ours,
            low=other.verdict.low,
            high=other.verdict.high,
        )
        for other in (judge_claim(row, facts) for row in others)
        if other.basis == "results" and other.verdict.status not in _NO_TEST
    )
    return dataclasses.replace(judgement, variants=variants)


def judge_claim(claim: ClaimLine, facts: Facts) -> Judgement:
    """Judge a claim in its own metric; claims about counts of orders have none."""
    return _under_reading(_judge(claim, facts))


def _under_reading(judgement: Judgement) -> Judgement:
    """Weaken the verdict to what trainings can show if the experiment itself is our reading."""
    reading = judgement.claim.reading
    if reading is None:
        return judgement

    def weaken(verdict: Verdict) -> Verdict:
        status = BY_A_READING.get(verdict.status)
        verdict = dataclasses.replace(verdict, by_margin=())  # no other margin would refute it either
        if status is None:
            return verdict
        said = f"{verdict.explanation.rstrip('.')}. This is a reading: {reading}."
        return dataclasses.replace(verdict, status=status, explanation=said, replicates_expected=None)

    verdict = weaken(judgement.verdict)
    size = verdict.size and weaken(verdict.size)
    return dataclasses.replace(judgement, verdict=dataclasses.replace(verdict, size=size))


def _judge(claim: ClaimLine, facts: Facts) -> Judgement:
    kind = kind_of(claim, facts.params.verdicts)
    finding = facts.findings.get(claim.id) if claim.facts.by != "params" else None
    if finding is not None:
        return _judge_finding(kind, finding, facts)
    if claim.reason:
        return kind.untested(f"{claim.reason[0].upper()}{claim.reason[1:].rstrip('.')}.", is_decidable=False)
    return kind.judge(facts)


def _judge_finding(kind: Kind, finding: Finding, facts: Facts) -> Judgement:
    """Judge by the computed finding; for a claim about trained models, results take precedence if they decide.

    Numbers that exclude each other stay contradicted whatever is trained; numbers that agree, even if only under one
    reading, don't make the claim true.
    """
    claim, verdict = kind.claim, Verdict(status=Status(finding.status), explanation=finding.explanation)
    computed = Judgement(claim=claim, verdict=verdict, basis="finding", is_decidable=True, ours=finding.ours)
    if claim.experiment is None or claim.facts.by != "training" or finding.status == "contradicted":
        return computed
    measured = kind.judge(facts)
    is_decided = measured.verdict.status not in (Status.NOT_TESTED, Status.OTHER_HARDWARE)
    return measured if is_decided or verdict.status in AGREE else computed
