"""Base classes for kinds of claims: the margin, the judgement by trained models, and the power of the plan.

The spread of a replicate (its standard deviation) is measured if our replicates have been judged in the claim's metric.
If they haven't, it is the paper's standard error times √n.  If the paper prints none, it is assumed from the metric:

- For an accuracy or error p on N test samples, 0.8 √(p (1 − p)/N), slightly less than the binomial spread,
  which repeated trainings come close to (Bouthillier et al. 2021).  The 48 standard errors in DAC's Tables 1 and 2 are
  0.82 times the binomial spread (root mean square); our other papers print none.
- For the logarithm of an error, 0.05.  Our first 29 networks on SGEMM have a median spread of 0.042.
- For a loss, 0.5 % of its value.  This is our choice, because no paper prints one.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, ClassVar, Literal

from stages.claims.lines import ClaimLine, Judgement
from stages.claims.trials import (
    ClaimSamples,
    NotMeasured,
    Pairs,
    ResultGroup,
    arms_of,
    find_group,
    gather_samples,
    pool_labs,
    price,
    summarise_arms,
)
from stages.papers.finding import Finding
from stages.params.experiment import ExperimentParams, Params
from stages.rules import ANYTIME, Rules
from stages.verdicts import (
    Design,
    EvidenceLevel,
    Power,
    Status,
    Verdict,
    judge_hardware,
    not_tested,
    power_of_value,
    weigh_gap,
)
from stages.verdicts.anytime import explain_anytime
from stages.verdicts.intervals import OF_WHOLE_GRID, Looks, looks_of_numbers, looks_of_plan
from stages.verdicts.power import Source, power_of_nearness

VerdictAndOurs = tuple[Verdict, float | None]
Combination = Mapping[str, float]
"""`{arm: factor}` of a sum over arms."""
NOT_RUN = "Not run yet."
SILENT = "So far there are only runs on placeholder data or shortened runs, which say nothing about a claim."
NO_NUMBER_OF = "{}; a number needs all of it, only an order may be indicated."
BYTES = 256
PER_BYTE = (
    "Our texts are bytes: nats per byte don't compare with nats per token, "
    "and a ratio between models is of a similar experiment, not of the paper's."
)
TIMES = ("inference_time", "train_tokens_per_second", "train_seconds")
CHANCE_SHARE = 0.8
LOG_SPREAD = 0.05
LOSS_SHARE = 0.005
LOSS_UNITS = ("nats per token", "nats")
SEEDS = "spread over replicates"
WELCH = "mean difference of the arms, by replicate; Welch's t over seeds, a paired t over folds"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that judging a claim depends on.

    `claims` are all claims being judged; `groups` are those of `gather`; `devices` has the device that each paper timed
    on.  With `with_power`, the power of each plan is computed, too, which takes most of the time.
    """

    claims: Sequence[ClaimLine]
    params: Params
    findings: Mapping[str, Finding] = field(default_factory=dict)
    groups: Mapping[str, Sequence[ResultGroup]] = field(default_factory=dict)
    devices: Mapping[str, str] = field(default_factory=dict)
    with_power: bool = True

    def groups_of(self, claim: ClaimLine) -> list[ResultGroup]:
        """Return the groups of results that may decide or indicate the claim, never those on placeholder data."""
        return [group for group in self.all_groups_of(claim) if group.evidence_level is not EvidenceLevel.SILENT]

    def all_groups_of(self, claim: ClaimLine) -> list[ResultGroup]:
        names = fnmatch.filter(self.params.experiments, claim.experiment or "")
        return [group for name in names for group in self.groups.get(name, ())]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Inputs of a claim's power calculation.

    `verdict` has the spread of replicates if some were judged; `claims` have the values that the paper prints for the
    arms.  `at` is the number of replicates at an interim analysis, None for the final one.
    """

    params: Params
    experiment: ExperimentParams
    pairs: Pairs
    verdict: Verdict
    claims: Iterable[ClaimLine]
    at: int | None


class Kind:
    """A claim of one of the kinds that the class was declared with.

    If training decides the claim, `test` and `error` describe the test and its error term.
    """

    classes: ClassVar[dict[str, type[Kind]]] = {}
    test = ""
    error = SEEDS

    def __init_subclass__(cls, *, kinds: str = "") -> None:
        cls.classes.update(dict.fromkeys(kinds.split(), cls))

    def __init__(self, claim: ClaimLine, rules: Rules) -> None:
        self.claim, self.rules, self.margins = claim, rules, rules.margins

    @property
    def value(self) -> float:
        assert self.claim.value is not None, f"{self.claim.id} has no number"
        return self.claim.value

    @property
    def better(self) -> Literal["higher", "lower"]:
        assert self.claim.better in ("higher", "lower"), f"{self.claim.id} doesn't say what is better"
        return self.claim.better  # type: ignore[return-value]

    @property
    def margin(self) -> float | None:
        """Margin of the claim, or of its gain's size, if training decides it; None if the test has no margin."""
        return None

    @property
    def slope(self) -> float:
        """Derivative of the margin with respect to the printed number, whose error therefore affects the margin."""
        step = 1e-6 * abs(self.claim.value or 0.0)
        if not step:
            return 0.0
        moved = type(self)(dataclasses.replace(self.claim, value=self.value + step), self.rules)
        return ((moved.margin or 0.0) - (self.margin or 0.0)) / step

    def judge(self, facts: Facts) -> Judgement:
        """Judge a claim that no finding of its paper decides."""
        return self.untested("`python -m stages.analyse` computes it, and hasn't run here.")

    def untested(self, why: Verdict | str, *, is_decidable: bool = True) -> Judgement:
        verdict = not_tested(why) if isinstance(why, str) else why
        return Judgement(claim=self.claim, verdict=verdict, basis="none", is_decidable=is_decidable)


class TrainedKind(Kind):
    """A claim that trained models decide, by the replicates of one or two arms or by their means over a grid.

    `is_number`: the claim is about a number, which needs more replicates than an order.
    `may_lack_number`: power can be computed even if the paper prints no number.
    `pools_labs`: the means of several labs can be judged like replicates.
    """

    is_number = False
    may_lack_number = False
    pools_labs = False

    def judge(self, facts: Facts) -> Judgement:
        claim = self.claim
        if not claim.experiment:
            return super().judge(facts)
        if claim.metric in TIMES and (elsewhere := self._judge_device(facts)) is not None:
            return self.untested(elsewhere, is_decidable=False)
        judgement = self.judge_trained(facts.params, facts.all_groups_of(claim))
        if not judgement.is_decidable:
            return judgement
        verdict = judgement.verdict
        is_indicative = verdict.status in (Status.AGREES, Status.DISAGREES)
        power = None
        if facts.with_power or is_indicative:
            power = foresee(claim, facts.params, verdict, facts.claims)
        if is_indicative:
            indicates, reason = weigh_gap(verdict.estimate or 0.0, power.spread if power else None)
            status = verdict.status if indicates else Status.NOT_TESTED
            verdict = dataclasses.replace(verdict, status=status, explanation=f"{verdict.explanation} {reason}")
        return dataclasses.replace(judgement, verdict=verdict, power=power)

    def _judge_device(self, facts: Facts) -> Verdict | None:
        """Return a verdict if no time was measured on the paper's device; None if times can be compared."""
        printed = facts.devices.get(self.claim.paper)
        if printed is None:
            return not_tested("The paper doesn't name the device that it timed on.")
        counting, devices = (
            [trial.device for group in groups for arm in group.arms.values() for trial in arm]
            for groups in (facts.groups_of(self.claim), facts.all_groups_of(self.claim))
        )
        if any(printed in device for device in counting):
            return None
        for device in devices:
            if printed not in device:
                return judge_hardware(printed, device)
        explanation = f"Printed for {printed}; nothing that counts has run on one here."
        return Verdict(status=Status.OTHER_HARDWARE, explanation=explanation)

    def experiment_of(self, params: Params) -> ExperimentParams:
        (name,) = fnmatch.filter(params.experiments, self.claim.experiment or "")
        return params.experiments[name]

    def judge_trained(self, params: Params, groups: Sequence[ResultGroup]) -> Judgement:
        """Judge the claim by the strongest results of its experiment."""
        experiment = self.experiment_of(params)
        if self.claim.unit == "nats per token" and params.datasets[experiment.dataset].classes == BYTES:
            return self.untested(PER_BYTE, is_decidable=False)
        speaking = [group for group in groups if group.evidence_level is not EvidenceLevel.SILENT]
        pairs, group = find_group(self.claim, experiment, speaking)
        if group is None:
            return self.untested(NOT_RUN if find_group(self.claim, experiment, groups)[1] is None else SILENT)
        try:
            return self.judge_group(pairs, group, params)
        except NotMeasured as error:
            return self.untested(f"There are results, but {error}.")

    def judge_group(self, pairs: Pairs, group: ResultGroup, params: Params) -> Judgement:
        """Judge the claim by the results of `group`.

        Raises:
            NotMeasured: the results lack the metric, or a mean over several models lacks some of them.
        """
        ran, planned = len(pairs.proposed), pairs.planned
        if ran < planned and not self.claim.facts.over_pairs:
            raise NotMeasured(f"only of {ran} of the grid's {planned} models; it is judged once all have run")
        sides = gather_samples(self.claim, pairs, group, self.rules)
        if group.evidence_level is EvidenceLevel.INDICATES and not self.claim.facts.is_order:
            verdict, ours = not_tested(why_it_indicates(group)), None
        else:
            verdict, ours = self.decide(sides, params)
        arms = summarise_arms(self.claim.metric, pairs.arms, group, self.rules)
        return dataclasses.replace(self.by_results(verdict, sides, params), ours=ours, arms=arms)

    def judge_labs(self, facts: Facts) -> Judgement | None:
        """Judge the claim by the means of the labs that completed the plan, by an interval for any number of labs.

        The number of labs isn't planned, so the interval must hold at any.  Labs with the same seeds count once,
        because their means differ too little.  Returns None if the claim can't be judged so, or no lab has completed
        the plan.
        """
        claim, found, labs, seeds = self.claim, list[ClaimSamples](), list[ClaimSamples](), set[int]()
        groups = [group for group in facts.groups_of(claim) if group.evidence_level is EvidenceLevel.DECIDES]
        for lab in dict.fromkeys(group.lab for group in groups if self.pools_labs and claim.metric not in TIMES):
            own = [group for group in groups if group.lab == lab]
            pairs, group = find_group(claim, self.experiment_of(facts.params), own)
            if group is None or (len(pairs.proposed) < pairs.planned and not claim.facts.over_pairs):
                continue
            try:
                sides = gather_samples(claim, pairs, group, self.rules)
            except NotMeasured:
                continue
            last = max(group.looks(self.rules), default=0)
            arms = [arm.among(range(last)) for arm in (sides.proposed, sides.baseline) if arm is not None]
            if last and sides.part is None and all(arm.n == last for arm in arms):
                found.append(dataclasses.replace(sides, proposed=arms[0], baseline=arms[1] if arms[1:] else None))
        if not found:
            return None

        def completed(lab: ClaimSamples) -> str:
            planned = (trial for trial in lab.trials if trial.result.replicate < lab.proposed.n)
            return max(trial.origin.published if trial.origin else "" for trial in planned)

        for lab_samples in sorted(found, key=completed):
            own_seeds = {trial.result.spec["replicate"]["seed"] for trial in lab_samples.trials}
            if seeds.isdisjoint(own_seeds):
                labs.append(lab_samples)
                seeds |= own_seeds
        sides = pool_labs(labs, claim)
        verdict, ours = type(self)(claim, dataclasses.replace(self.rules, looks=ANYTIME)).decide(sides, facts.params)
        verdict = explain_anytime(verdict, "labs")
        if sides.group.experiment.printed.split.kind == "folds":
            said = f"{verdict.explanation} It holds for these training data, which the labs share."
            verdict = dataclasses.replace(verdict, explanation=said)
        return dataclasses.replace(self.by_results(verdict, sides, facts.params), ours=ours)

    def by_results(self, verdict: Verdict, sides: ClaimSamples, params: Params) -> Judgement:
        part = sides.part
        note = "" if part is None else f" Over {len(part.pairs)} of {len(part.planned)} pairs of the grid."
        return Judgement(
            claim=self.claim,
            verdict=dataclasses.replace(verdict, explanation=verdict.explanation + note),
            basis="results",
            is_decidable=True,
            entries=sides.entries,
            cost=price(sides.trials, params),
        )

    @abstractmethod
    def decide(self, sides: ClaimSamples, params: Params) -> VerdictAndOurs:
        """Return the verdict on these samples, and our number."""

    def of_test_sets(self, variance: float, sides: ClaimSamples, params: Params) -> float:
        """Return the variance added if our test set isn't the paper's, given the `variance` of one image."""
        if not self.claim.is_share or not params.datasets[sides.group.experiment.dataset].test_is_ours:
            return 0.0
        return 2 * variance / min(trial.result.data.test_images for trial in sides.trials)

    def looks(self, experiment: ExperimentParams) -> Looks:
        """Return the analyses that can give a verdict, up to the end of the plan; none if the plan is too short."""
        numbers = looks_of_numbers(self.rules, is_error_printed=self.printed_error is not None)
        return looks_of_plan(numbers if self.is_number else self.rules.looks, experiment.replicates)

    def power(self, plan: Plan) -> Power | None:
        design = self.design(plan)
        return None if design is None else self.power_of(design)

    @abstractmethod
    def power_of(self, design: Design) -> Power:
        """Compute the power of a plan whose spread is known."""

    def design(self, plan: Plan) -> Design | None:
        """Add the spread of a replicate, or of a gain, to the plan; None if there is no basis for one."""
        found, pairs = self._spread(plan), len(plan.pairs.proposed)
        if found is None:
            return None
        spread, source, because = found
        if pairs > 1 and source == "measured":
            because += ", for the mean of the pairs that ran"
        elif pairs > 1:
            because += f", for the whole grid of {pairs} pairs"
        is_folded, facts = plan.experiment.printed.split.kind == "folds", self.claim.facts
        return Design(
            planned=plan.experiment.replicates,
            spread=spread,
            source=source,
            because=because,
            pairing="value" if not facts.is_gain else "fold" if is_folded else "none",
            stderr=self.printed_error,
            paper_n=self.claim.n,
            slope=self.slope,
            share=OF_WHOLE_GRID if plan.pairs.planned > 1 and facts.is_order else 1.0,
            at=plan.at,
        )

    def design_without_size(self, plan: Plan, **own: Any) -> Design:
        """Return the plan of a claim without a printed size; its spread is measured or that of a log difference."""
        verdict, assumed = plan.verdict, f"assumed: {LOG_SPREAD} of each logarithm"
        return Design(
            planned=plan.experiment.replicates,
            spread=verdict.spread or LOG_SPREAD * math.sqrt(2),
            source="measured" if verdict.spread else "assumed",
            because=f"measured on our first {verdict.n}" if verdict.spread else assumed,
            at=plan.at,
            **own,
        )

    def power_near(self, plan: Plan, margin: float, right: str) -> Power:
        """Compute the power for a number within `margin`; `right` says in words what the claim asserts."""
        design = self.design_without_size(plan, pairing="value", stderr=0.0)
        if design.source == "measured":
            return power_of_value(design, margin, self.rules)
        return power_of_nearness(design, margin, self.rules, right)

    @property
    def printed_error(self) -> float | None:
        """The printed standard error of the claim's number."""
        return self.claim.stderr

    def _spread(self, plan: Plan) -> tuple[float, Source, str] | None:
        """Return (spread, its source, the source in words); None if there is no basis for a spread."""
        claim, verdict = self.claim, plan.verdict
        if verdict.spread:
            return verdict.spread, "measured", f"measured on our first {verdict.n}"
        if self.printed_error and claim.n:
            return self.printed_error * math.sqrt(claim.n), "printed", f"the paper's standard error times √{claim.n}"
        top, bottom = self.combination(plan)
        if claim.metric.endswith("log_mse"):
            because = f"assumed: {LOG_SPREAD} of the logarithm of an error"
            return LOG_SPREAD * math.hypot(*top.values()), "assumed", because
        is_loss = claim.metric.endswith("loss")
        if not is_loss and not any(word in claim.metric for word in ("accuracy", "error")):
            return None
        levels = self.levels(LOSS_UNITS if is_loss else ("fraction",), plan)
        if not levels:
            return None
        usual = fmean(levels.values())
        samples = plan.params.datasets[plan.experiment.dataset].test
        variance = 0.0
        for arm, factor in top.items():
            level = levels.get(arm, usual)
            own = LOSS_SHARE * level if is_loss else CHANCE_SHARE * math.sqrt(level * (1 - level) / samples)
            variance += (factor * own) ** 2
        scale = abs(sum(factor * levels.get(arm, usual) for arm, factor in bottom.items())) if bottom else 1.0
        because = "half a percent of the loss" if is_loss else f"0.8 of that of chance over {samples:,} test samples"
        return math.sqrt(variance) / scale, "assumed", f"assumed: {because}"

    def combination(self, plan: Plan) -> tuple[Combination, Combination]:
        """Return a replicate's value as a combination N of its arms; for a ratio N/D, N − b D and D."""
        top: dict[str, float] = defaultdict(float)
        for sign, arms in ((1, plan.pairs.proposed), (-1, plan.pairs.baseline)):
            for arm in arms:
                top[arm] += sign / len(arms)
        return top, {}

    def levels(self, units: Collection[str], plan: Plan) -> dict[str, float]:
        """Return the values that the paper prints for the experiment's arms in these units, one per arm."""
        found: dict[str, float] = {}
        for one in plan.claims:
            is_level = one.facts.number == "model" and one.experiment == plan.experiment.name and one.unit in units
            if is_level and one.arm is not None and one.value is not None:
                found.setdefault(one.arm, one.value)
        return found


def why_it_indicates(group: ResultGroup) -> str:
    """Explain why results on real data can't decide a number."""
    if group.is_of_part_of_the_data:
        return NO_NUMBER_OF.format("Real data, but a part of them")
    if group.share >= 1 and not group.follows_plan:
        return NO_NUMBER_OF.format("Real data under another protocol than params/ prints today")
    if group.share >= 1 and group.other_precision:
        return NO_NUMBER_OF.format(f"Real data in {group.other_precision}")
    return NO_NUMBER_OF.format(f"Real data on a cut budget, {group.share:.0%} of the printed epochs")


def kind_of(claim: ClaimLine, rules: Rules) -> Kind:
    return Kind.classes[claim.kind](claim, rules)


def foresee(
    claim: ClaimLine, params: Params, verdict: Verdict, claims: Iterable[ClaimLine], *, at: int | None = None
) -> Power | None:
    """Compute the power of the plan, or of its interim analysis at `at` replicates, for a claim that training decides.

    `verdict` has the spread if replicates were judged; `claims` have the printed values of the arms.  Return None if
    neither the paper nor the metric suggests a spread.
    """
    kind = kind_of(claim, params.verdicts)
    assert isinstance(kind, TrainedKind), f"{claim.id}: no power of a {claim.kind}"
    if claim.value is None and not kind.may_lack_number:
        return None
    experiment = kind.experiment_of(params)
    pairs = arms_of(claim, experiment)
    return kind.power(Plan(params=params, experiment=experiment, pairs=pairs, verdict=verdict, claims=claims, at=at))
