"""Matches every claim with what decides it: its kind, a finding, the params files, or trained models."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from statistics import fmean

from stages.claims.arms import summarise_figure
from stages.claims.judgement import Judgement
from stages.claims.lines import ORDERS, TALLIES, ClaimLine
from stages.claims.measures import NotMeasured, measure
from stages.claims.power import foresee
from stages.claims.sensitivity import under_other_metrics
from stages.claims.settings import agree, judge_counted, judge_setting
from stages.claims.sides import arms_of
from stages.claims.trained import NOT_RUN, SILENT, judge_trained
from stages.claims.trials import ResultGroup, price
from stages.papers.finding import Finding
from stages.params.experiment import Params
from stages.runs.trial import Trial
from stages.verdicts import (
    EvidenceLevel,
    Order,
    Status,
    TableSentence,
    Verdict,
    design_effect,
    judge_hardware,
    judge_shown,
    judge_table,
    judge_tally,
    judge_wins,
    not_tested,
    tally_tests,
    weigh_gap,
)
from stages.verdicts.looks import Looks

NO_NUMBER = ("figure", "qualitative")
IN_TABLES = (*ORDERS, "gap")
"""Of a table's sentence: a pair that the paper prints as lost belongs to its table's gain as much as the others."""
COUNTED = (*IN_TABLES, "equivalence")
"""What a paper's own count is of: also the comparisons that came out the other way."""
EXACT = ("identity", "theorem", "inconsistent")
MOST_SHOWN = 4
"""Arms whose means a sentence holds."""
AGREE = (Status.HOLDS, Status.HOLDS_UNDER_READING)
"""What a finding says of numbers that may be true."""
BY_A_READING = {
    Status.REPRODUCED: Status.HOLDS_UNDER_READING,
    Status.SUPPORTED: Status.HOLDS_UNDER_READING,
    Status.NOT_REPRODUCED: Status.INCONCLUSIVE,
    Status.REVERSED: Status.UNRESOLVED,
}
"""Verdicts by trainings of an experiment that is a reading of ours: they can support a claim, and never refute it."""
TIMES = ("inference_time", "train_tokens_per_second", "train_seconds")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """One sentence for the orders of a table."""

    family: str
    sentence: TableSentence
    claims: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What claims are judged by.  `devices`: the device of each paper; `claims`: all claims being judged."""

    claims: Sequence[ClaimLine]
    params: Params
    findings: Mapping[str, Finding]
    groups: Mapping[str, Sequence[ResultGroup]]
    devices: Mapping[str, str]

    def groups_of(self, claim: ClaimLine) -> list[ResultGroup]:
        """The groups of results that say something of the claim: runs on placeholder data never reach a judge."""
        return [group for group in self.all_groups_of(claim) if group.evidence_level is not EvidenceLevel.SILENT]

    def all_groups_of(self, claim: ClaimLine) -> list[ResultGroup]:
        names = fnmatch.filter(self.params.experiments, claim.experiment or "")
        return [group for name in names for group in self.groups.get(name, ())]


def judge_claims(
    claims: Sequence[ClaimLine],
    params: Params,
    *,
    findings: Mapping[str, Finding],
    groups: Mapping[str, Sequence[ResultGroup]],
    devices: Mapping[str, str],
) -> tuple[list[Judgement], list[Table]]:
    """One judgement per claim, in their order, and the sentences of the tables; `groups` are those of `gather`."""
    facts = Facts(claims=claims, params=params, findings=findings, groups=groups, devices=devices)
    judged = {claim.id: _judge_each_way(claim, facts) for claim in claims if not _is_tally(claim)}
    tables = []
    for family in params.verdicts.families:
        orders = [judged[claim.id] for claim in claims if claim.family == family and claim.kind in IN_TABLES]
        if orders:
            sentence = judge_table([_order(order, params) for order in orders], params.verdicts)
            tables.append(Table(family=family, sentence=sentence, claims=tuple(order.claim.id for order in orders)))
    for claim in claims:
        if _is_tally(claim):
            judged[claim.id] = _judge_tally(claim, list(judged.values()), facts)
    return [judged[claim.id] for claim in claims], tables


def _judge_each_way(claim: ClaimLine, facts: Facts) -> Judgement:
    judgement = _under_reading(_judge(claim, facts))
    variants = under_other_metrics(judgement, lambda other: _under_reading(_judge(other, facts)))
    return dataclasses.replace(judgement, variants=variants)


def _under_reading(judgement: Judgement) -> Judgement:
    """The judgement with the weaker verdict that trainings allow if the experiment itself is our reading."""
    reading = judgement.claim.reading
    if reading is None:
        return judgement

    def weaken(verdict: Verdict) -> Verdict:
        status = BY_A_READING.get(verdict.status)
        verdict = dataclasses.replace(verdict, by_margin=())  # another margin would refute it no more than this one
        if status is None:
            return verdict
        said = f"{verdict.explanation.rstrip('.')}. This is a reading: {reading}."
        return dataclasses.replace(verdict, status=status, explanation=said, replicates_expected=None)

    verdict = weaken(judgement.verdict)
    size = verdict.size and weaken(verdict.size)
    return dataclasses.replace(judgement, verdict=dataclasses.replace(verdict, size=size))


def _order(judged: Judgement, params: Params) -> Order:
    """The judgement as an order in a table, with its gain in each replicate that both arms finished."""
    claim, sign = judged.claim, 1.0 if judged.claim.better == "higher" else -1.0
    ours, theirs = (
        {entry.replicate: entry.value for entry in judged.entries if entry.side == side and entry.value is not None}
        for side in ("proposed", "baseline")
    )
    return Order(
        verdict=judged.verdict,
        printed=claim.value or 0.0,
        dataset=params.experiments[claim.experiment].dataset if claim.experiment else "",
        gains={index: sign * (value - theirs[index]) for index, value in ours.items() if index in theirs},
    )


def _is_tally(claim: ClaimLine) -> bool:
    return claim.kind in TALLIES and not claim.reason


def _judge(claim: ClaimLine, facts: Facts) -> Judgement:
    if claim.kind == "setup" and not claim.reason:
        return _of_params(claim, _judge_setup(claim, facts), is_decidable=False)
    finding = facts.findings.get(claim.id) if claim.kind != "setup" else None
    if finding is not None:
        return _judge_finding(claim, finding, facts)
    if claim.reason:
        return Judgement(claim=claim, verdict=not_tested(_sentence(claim.reason)), basis="none", is_decidable=False)
    if claim.kind in NO_NUMBER:
        return _judge_no_number(claim, facts)
    if claim.kind == "count" and claim.experiment:
        return _of_params(claim, judge_counted(claim, facts.params), is_decidable=True)
    if claim.kind in EXACT or not claim.experiment:
        verdict = not_tested("`python -m stages.analyse` computes it, and hasn't run here.")
        return Judgement(claim=claim, verdict=verdict, basis="none", is_decidable=True)
    return _judge_measured(claim, facts)


def _of_params(claim: ClaimLine, verdict: Verdict, *, is_decidable: bool) -> Judgement:
    """Judgement from the params files; its estimate is ours − the paper's."""
    ours = None if verdict.estimate is None else (claim.value or 0.0) + verdict.estimate
    return Judgement(claim=claim, verdict=verdict, basis="params", is_decidable=is_decidable, ours=ours)


def _judge_finding(claim: ClaimLine, finding: Finding, facts: Facts) -> Judgement:
    """Judge by what was computed, except for a claim about trained models: there, results come first if they decide.

    Numbers that exclude each other stay contradicted whatever is trained; numbers that agree, even if only under one
    reading, are not true for that reason.
    """
    verdict = Verdict(status=Status(finding.status), explanation=finding.explanation)
    computed = Judgement(claim=claim, verdict=verdict, basis="finding", is_decidable=True, ours=finding.ours)
    is_measured = claim.experiment is not None and claim.kind not in (*EXACT, *NO_NUMBER, "count")
    if not is_measured or finding.status == "contradicted":
        return computed
    measured = _judge_measured(claim, facts)
    is_decided = measured.verdict.status not in (Status.NOT_TESTED, Status.OTHER_HARDWARE)
    return measured if is_decided or verdict.status in AGREE else computed


def _judge_measured(claim: ClaimLine, facts: Facts) -> Judgement:
    if claim.metric in TIMES:
        elsewhere = _judge_device(claim, facts)
        if elsewhere is not None:
            return Judgement(claim=claim, verdict=elsewhere, basis="none", is_decidable=False)
    judgement = judge_trained(claim, facts.params, facts.all_groups_of(claim))
    if not judgement.is_decidable:
        return judgement
    power = foresee(claim, facts.params, judgement.verdict, facts.claims)
    verdict = judgement.verdict
    if verdict.status in (Status.AGREES, Status.DISAGREES):
        indicates, said = weigh_gap(verdict.estimate or 0.0, power.spread if power else None)
        status = verdict.status if indicates else Status.NOT_TESTED
        verdict = dataclasses.replace(verdict, status=status, explanation=f"{verdict.explanation} {said}")
    return dataclasses.replace(judgement, verdict=verdict, power=power)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].rstrip('.')}."


def _judge_setup(claim: ClaimLine, facts: Facts) -> Verdict:
    if not claim.metric.endswith("(parameters)"):
        return judge_setting(claim, facts.params)
    counted = [
        row.value
        for group in facts.groups_of(claim)
        if group.arms.keys() == group.experiment.arms.keys()  # the smallest of a part says nothing of the grid
        for trials in group.arms.values()
        for row in trials[0].result.metrics
        if row.metric == "parameters"
    ]
    if not counted:
        return not_tested("The parameters of the grid are counted when it runs; not run yet.")
    return agree(claim, [min(counted) if claim.metric.startswith("min") else max(counted)])


def _judge_no_number(claim: ClaimLine, facts: Facts) -> Judgement:
    """Judgement of a claim without a number: shown if there are results on real data to show."""
    groups = facts.groups_of(claim)
    if not groups:
        silent = SILENT if facts.all_groups_of(claim) else NOT_RUN
        verdict = not_tested(silent if claim.experiment else "No experiment of ours shows it.")
        return Judgement(claim=claim, verdict=verdict, basis="none", is_decidable=False)
    many = len(groups) > 1
    arms = [
        (f"{arm} of {group.experiment.name}" if many else arm, group.arms[arm], group.looks(facts.params.verdicts))
        for group in groups
        for arm in (arms_of(claim, group.experiment).arms if claim.arm else group.arms)
        if arm in group.arms
    ]
    shown = [trial for _, trials, _ in arms for trial in trials]
    names = ", ".join(dict.fromkeys(trial.result.experiment for trial in shown)) or "none"
    means = _means(claim, arms)
    verdict = judge_shown(f"{len(shown)} results of {names}{means}")
    return Judgement(
        claim=claim,
        verdict=verdict,
        basis="results",
        is_decidable=False,
        arms=summarise_figure(claim.metric, groups, facts.params.verdicts),
        cost=price(shown, facts.params),
    )


def _means(claim: ClaimLine, arms: Sequence[tuple[str, Sequence[Trial], Looks]]) -> str:
    """Each arm's mean in the claim's metric, where there are few arms and their results have it."""
    said = []
    for arm, trials, looks in arms:
        try:
            values = measure(claim.metric, trials, looks).values
        except NotMeasured:
            return ""
        said.append(f"{arm} {fmean(values):.4g} (n = {len(values)})" if values else f"{arm} diverged")
    return f"; {claim.metric}: {', '.join(said)}" if len(arms) <= MOST_SHOWN else ""


def _judge_device(claim: ClaimLine, facts: Facts) -> Verdict | None:
    """The verdict where times weren't measured on the paper's own device; None where they may be compared."""
    counting, devices = (
        [trial.device for group in groups for arm in group.arms.values() for trial in arm]
        for groups in (facts.groups_of(claim), facts.all_groups_of(claim))
    )
    printed = facts.devices.get(claim.paper)
    if printed is None:
        return not_tested("The paper doesn't name the device that it timed on.")
    if any(printed in device for device in counting):
        return None
    elsewhere = next((device for device in devices if printed not in device), None)
    if elsewhere is None:
        said = f"Printed for {printed}; nothing that counts has run on one here."
        return Verdict(status=Status.OTHER_HARDWARE, explanation=said)
    return judge_hardware(printed, elsewhere)


def _judge_tally(claim: ClaimLine, judged: Sequence[Judgement], facts: Facts) -> Judgement:
    """Judge a paper's own count of the orders of a family, in its own metric: Figure 6 counts the pairs of Table 1."""
    assert claim.value is not None, f"{claim.id} counts nothing"
    orders = [
        order
        if order.claim.metric == claim.metric
        else _judge(dataclasses.replace(order.claim, metric=claim.metric), facts)
        for order in judged
        if order.claim.family == claim.family and order.claim.kind in COUNTED
    ]
    verdicts, rules = [order.verdict for order in orders], facts.params.verdicts
    if claim.kind != "tally":
        marked = claim.kind == "significant_wins"
        n = claim.n or min(rules.looks)
        effect = design_effect([_order(order, facts.params) for order in orders])
        verdict = judge_wins(int(claim.value), verdicts, rules, n=n, must_be_significant=marked, effect=effect)
        ours = None if verdict.estimate is None else claim.value + verdict.estimate
    else:
        verdict = judge_tally(
            int(claim.value), *(_judge_at(orders, facts, parts) for parts in tally_tests(int(claim.value), len(orders)))
        )
        ours = None if verdict.estimate is None else verdict.estimate * len(orders)
    return Judgement(
        claim=claim,
        verdict=verdict,
        basis="results" if verdict.status is not Status.NOT_TESTED else "none",
        is_decidable=True,
        ours=ours,
        entries=tuple(dict.fromkeys(entry for order in orders for entry in order.entries)),
    )


def _judge_at(orders: Sequence[Judgement], facts: Facts, parts: int) -> list[Verdict]:
    """The verdicts of the orders with α divided by `parts`."""
    rules = facts.params.verdicts
    strict = dataclasses.replace(
        rules, alpha_within=rules.alpha_within / parts, alpha_outside=rules.alpha_outside / parts
    )
    facts = dataclasses.replace(facts, params=dataclasses.replace(facts.params, verdicts=strict))
    return [order.verdict if parts == 1 else _judge(order.claim, facts).verdict for order in orders]
