"""Kinds of claims about a whole grid: equal gains at every level, a size from which one arm is ahead, failures."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from stages.claims.kinds.base import WELCH, Plan, TrainedKind, why_it_indicates
from stages.claims.kinds.gains import GainKind
from stages.claims.lines import Entry, Judgement, Side
from stages.claims.sides import NotMeasured, Pairs, count_failed, entry_of, gather_samples, measure
from stages.claims.trials import ResultGroup, price
from stages.params.experiment import Params
from stages.runs.evidence import Trial
from stages.verdicts import (
    EvidenceLevel,
    Failures,
    GainClaim,
    Power,
    Sample,
    Scope,
    UniformClaim,
    judge_gain,
    judge_proportion,
    judge_proportions,
    judge_uniform,
    not_tested,
)
from stages.verdicts.grid_part import Cell, factors_of
from stages.verdicts.looks import OF_WHOLE_GRID, Looks
from stages.verdicts.power import (
    judged_replicates,
    power_of_proportion,
    power_of_proportions,
    power_of_sign,
    power_of_uniform,
)

MOST_APART = 1.1
"""Networks are of one size whose numbers of parameters are within this factor."""


class GridKind(GainKind):
    """A gain over a grid; results that only indicate don't count for it."""

    def judge_group(self, pairs: Pairs, group: ResultGroup, params: Params) -> Judgement:
        if group.evidence_level is EvidenceLevel.DECIDES:
            return self.judge_grid(pairs, group, params)
        return self.untested(why_it_indicates(group))

    @abstractmethod
    def judge_grid(self, pairs: Pairs, group: ResultGroup, params: Params) -> Judgement:
        """Judge by results that decide."""


class UniformKind(GridKind, kinds="uniform"):
    """A gain that is the same at every level of a factor of the grid."""

    test = "F test of the levels' gains; the range between the largest and the smallest against the margin"
    error = "interaction of the levels with the other factors of the grid, once every pair has run"
    is_number = True

    def judge_grid(self, pairs: Pairs, group: ResultGroup, params: Params) -> Judgement:
        """Judge the levels.

        Raises:
            NotMeasured: the pairs that ran don't form whole slices, or the levels have different pairs.
        """
        claim, planned = self.claim, factors_of(pairs.grid)
        factor = claim.factor or ""
        assert factor in planned, f"{claim.id}: its grid has no {factor!r}; known: {', '.join(planned)}"
        sides = gather_samples(claim, pairs, group, self.rules)
        if sides.part is not None and not sides.part.is_sliced:
            raise NotMeasured(f"of no {' or '.join(planned)} has every pair run")
        levels: dict[Any, dict[tuple[Any, ...], tuple[Sample, Sample]]] = defaultdict(dict)
        for cell, *arms in zip(pairs.cells, pairs.proposed, pairs.baseline, strict=True):
            proposed, baseline = (measure(claim.metric, group.arms[arm], group.looks(self.rules)) for arm in arms)
            levels[cell[factor]][tuple(cell[name] for name in planned if name != factor)] = proposed, baseline
        others = list(next(iter(levels.values())))
        if any(row.keys() != set(others) for row in levels.values()):
            raise NotMeasured(f"not every {factor} has the same pairs")
        asked = UniformClaim(
            factor=factor, is_whole=sides.part is None, gain=self.value, margin=self.margin_of_gain, better=self.better
        )
        rows = {at: [row[other] for other in others] for at, row in levels.items()}
        verdict = judge_uniform(asked, rows, rules=self.rules, replicates=group.experiment.replicates)
        if sides.part is not None:
            said = f"{verdict.explanation} {sides.part.tell()}"
            verdict = dataclasses.replace(verdict, explanation=said, scope=sides.part.scope())
        return self.by_results(verdict, sides, params)

    def power(self, plan: Plan) -> Power:
        assert self.claim.factor is not None, f"{self.claim.id} names no factor"
        design = self.design_without_size(plan, pairing="none")
        if design.source != "measured":
            because = f"{design.because} in each replicate, and no interaction"
            of_mean = design.spread / math.sqrt(judged_replicates(design, self.rules))
            design = dataclasses.replace(design, spread=of_mean, because=because)
        levels = len(factors_of(plan.pairs.grid)[self.claim.factor])
        return power_of_uniform(design, levels, plan.pairs.planned // levels, self.margin_of_gain, self.rules)


class AheadFromKind(GridKind, kinds="ahead_from"):
    """Among networks of equal size, the proposed arm is ahead from a number of parameters on."""

    test = f"sign of the mean gain over pairs of equal size ({WELCH})"
    is_ahead = True

    margin = None

    def judge_grid(self, pairs: Pairs, group: ResultGroup, params: Params) -> Judgement:
        """Judge which arm is ahead among networks of equal size, on one side of a number of parameters.

        Raises:
            NotMeasured: no two networks of equal size have results there.
        """
        sizes = dict.fromkeys(group.arms, math.nan)
        for arm, trials in group.arms.items():
            rows = (row.value for trial in trials for row in trial.result.metrics if row.metric == "parameters")
            sizes[arm] = next(rows, math.nan)
        couples = self._of_equal_size(group, sizes)
        there = {one: other for one, other in couples.items() if (sizes[one] >= self.value) == self.is_ahead}
        if not there:
            raise NotMeasured(
                f"no two networks of one size have {self.value:,.0f} parameters {self.claim.facts.qualifier}"
            )
        cells: tuple[Cell, ...] = ({},) * len(there)
        chosen = Pairs(proposed=tuple(there), baseline=tuple(there.values()), cells=cells, grid=cells)
        sides = gather_samples(self.claim, chosen, group, self.rules)
        planned = len(group.experiment.arms)
        verdict = judge_gain(
            GainClaim(gain=1.0 if self.is_ahead else -1.0, margin=None, better=self.better),
            *sides.both,
            rules=self.rules,
            pairing="none",
            planned=group.experiment.replicates,
            pairs=(len(group.arms), planned),  # each model that arrives may make another pair
        )
        counted = ", ".join(f"{size:,.0f}" for size in sorted(sizes[arm] for arm in there))
        said = f"The mean over the {len(there)} of {len(couples)} pairs of one depth and size that ran with"
        said += f" {self.value:,.0f} parameters {self.claim.facts.qualifier}: {counted}."
        scope = Scope(pairs=len(there))
        if len(group.arms) < planned:
            said += f" {len(group.arms)} of the {planned} models of the grid ran."
            scope = dataclasses.replace(scope, models=len(group.arms), planned_models=planned)
        verdict = dataclasses.replace(verdict, explanation=f"{verdict.explanation} {said}", scope=scope)
        return self.by_results(verdict, sides, params)

    def _of_equal_size(self, group: ResultGroup, sizes: Mapping[str, float]) -> dict[str, str]:
        """The baseline nearest in parameters to each proposed arm, among those that differ from it only in width."""
        found = {}
        but_width = {
            arm: {
                name: value for name, value in group.experiment.arms[arm].model.items() if name not in ("name", "width")
            }
            for arm in group.arms
        }
        for arm in fnmatch.filter(group.arms, self.claim.arm or ""):
            like = [
                other
                for other in fnmatch.filter(group.arms, self.claim.baseline_arm or "")
                if but_width[other] == but_width[arm]
                and max(sizes[arm] / sizes[other], sizes[other] / sizes[arm]) <= MOST_APART
            ]
            if like:
                found[arm] = min(like, key=lambda other: abs(math.log(sizes[other] / sizes[arm])))
        return found

    def power(self, plan: Plan) -> Power:
        design = self.design_without_size(plan, pairing="none", share=OF_WHOLE_GRID)
        is_log = self.claim.metric.endswith("log_mse")
        return power_of_sign(design, self.rules, is_known=design.source == "measured" or is_log)


class BehindUpToKind(AheadFromKind, kinds="behind_up_to"):
    """Among networks of equal size, the proposed arm is behind up to a number of parameters."""

    is_ahead = False


class FailedShareKind(TrainedKind, kinds="failures"):
    """A proportion of failed trainings over a whole grid of arms."""

    test = "proportions of failed trainings over the whole grid, once"
    error = "as in stages/claims/kinds/grids.py"

    @property
    def printed(self) -> tuple[int, int]:
        assert self.claim.trials is not None, f"{self.claim.id} counts of nothing"
        return int(self.value), self.claim.trials

    @property
    def margin(self) -> float | None:
        if self.claim.baseline_arm is not None or not self.claim.trials:
            return None
        return self.margins.error(self.value / self.claim.trials, 1 / self.claim.trials)

    def looks(self, experiment: Any) -> Looks:
        return {experiment.replicates: 1.0}

    def judge_group(self, pairs: Pairs, group: ResultGroup, params: Params) -> Judgement:
        """Judge failed trainings over a whole grid, in one look, once the grid is complete."""
        experiment = group.experiment
        failed: dict[Side, list[tuple[int, int]]] = {}
        entries: list[Entry] = []
        used: list[Trial] = []
        sides: Mapping[Side, tuple[str, ...]] = {"proposed": pairs.proposed, "baseline": pairs.baseline}
        for side, arms in sides.items():
            failed[side] = []
            for arm in dict.fromkeys(arms):
                mine, peers = (
                    [trial for trial in group.arms.get(name, ()) if trial.result.replicate < experiment.replicates]
                    for name in (arm, experiment.arms[arm].against or "")
                )
                failed[side].append(count_failed(mine, peers))
                used += mine
                entries += [entry_of(trial, side, None) for trial in mine]
        count, there = map(sum, zip(*failed["proposed"], strict=True))
        planned = pairs.planned * experiment.replicates
        is_whole = group.evidence_level is EvidenceLevel.DECIDES and there == planned
        is_whole = is_whole and all(of == experiment.replicates for _, of in failed["baseline"])
        networks = {
            side: Failures(counts=tuple(one for one, _ in counts), each=experiment.replicates)
            for side, counts in failed.items()
        }
        if not is_whole:
            missing = f"{there} of {planned} trainings of the grid are there, {count} failed"
            verdict = not_tested(f"{missing}; the test runs once, on all of them.")
        elif pairs.baseline:
            verdict = judge_proportions(networks["proposed"], networks["baseline"], rules=self.rules)
        else:
            verdict = judge_proportion(
                self.printed, networks["proposed"], self.margin or 0.0, rules=self.rules, slope=self.slope_of_share
            )
        return Judgement(
            claim=self.claim,
            verdict=verdict,
            basis="results",
            is_decidable=True,
            ours=float(count) if is_whole else None,  # in the claim's unit: trainings
            entries=tuple(entries),
            cost=price(used, params),
        )

    @property
    def slope_of_share(self) -> float:
        """How much the margin grows with the printed proportion, not with the count."""
        return self.slope * self.printed[1]

    def power(self, plan: Plan) -> Power:
        pairs, replicates = plan.pairs, plan.experiment.replicates
        if not pairs.baseline:
            return power_of_proportion(
                pairs.planned, replicates, self.printed, self.margin or 0.0, self.rules, self.slope_of_share
            )
        named = (self.claim.experiment, self.claim.metric, self.claim.baseline_arm)
        (other,) = (
            type(self)(one, self.rules) for one in plan.claims if (one.experiment, one.metric, one.arm) == named
        )
        both = pairs.planned, len(set(pairs.baseline))
        return power_of_proportions(both, replicates, (self.printed, other.printed), self.rules)
