"""Kinds of claims that need no training of their own, or that are about a whole grid.

The former are counts of orders, facts about data, settings and figures; the latter are equal gains at every level, a
size from which one arm is ahead, and failures.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
import re
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from stages.claims.kinds.base import NOT_RUN, SILENT, WELCH, Facts, Kind, Plan, TrainedKind, why_it_indicates
from stages.claims.kinds.numbers import GainKind
from stages.claims.lines import ClaimLine, Entry, Judgement, Side
from stages.claims.trials import (
    NotMeasured,
    Pairs,
    ResultGroup,
    arms_of,
    count_failed,
    entry_of,
    gather_samples,
    measure,
    price,
    summarise_figure,
)
from stages.params.experiment import DatasetSource, ExperimentParams, Params
from stages.run import Replicate, steps_per_epoch, training_counts
from stages.runs.evidence import Trial
from stages.verdicts import (
    ComparedArms,
    EvidenceLevel,
    Failures,
    GainClaim,
    Power,
    PrintedOrder,
    Sample,
    Scope,
    Status,
    UniformClaim,
    Verdict,
    design_effect,
    judge_count,
    judge_gain,
    judge_proportion,
    judge_proportions,
    judge_shown,
    judge_tally,
    judge_uniform,
    judge_wins,
    not_tested,
    tally_tests,
)
from stages.verdicts.grid_part import Cell, factors_of
from stages.verdicts.intervals import OF_WHOLE_GRID, Looks
from stages.verdicts.power import (
    judged_replicates,
    power_of_proportion,
    power_of_proportions,
    power_of_sign,
    power_of_uniform,
)

_EXTREME = re.compile(r"(min|max)\((.+)\)")


def param_values(claim: ClaimLine, params: Params) -> list[Any]:
    """Return the distinct values of the claim's metric in the params files, over its experiments and arms.

    Without an arm, these are all of the paper's.  `min(…)` and `max(…)` are the smallest and the largest value; a value
    that isn't set is None.

    Raises:
        NotMeasured: the params files have no such setting, or it is no number.
    """
    extreme = _EXTREME.fullmatch(claim.metric)
    metric = extreme[2] if extreme else claim.metric
    experiments = [params.experiments[name] for name in fnmatch.filter(params.experiments, claim.experiment or "")]
    try:
        values = [value for experiment in experiments for value in _values(metric, experiment, params, claim.arm)]
    except (AttributeError, TypeError, ValueError):  # no such field
        values = []
    if texts := [value for value in values if not isinstance(value, int | float | None)]:
        raise NotMeasured(f"{metric} is {texts[0]!r} in the params files, which is no number")
    known = list(dict.fromkeys(value for value in values if value is not None))
    if not known and not values:
        raise NotMeasured(f"the params files don't hold {metric}")
    if extreme:
        return [(min if extreme[1] == "min" else max)(known)]
    return known or [None]


def _values(metric: str, experiment: ExperimentParams, params: Params, arms: str | None) -> list[Any]:
    source = params.datasets[experiment.dataset]
    derived = _derived(experiment, source, params)
    if metric in derived:
        return [derived[metric]]
    part, _, path = metric.partition(".")
    if part == "model":
        table = [
            arm
            for arm in experiment.arms.values()
            if (fnmatch.fnmatchcase(arm.name, arms) if arms else arm.role in ("baseline", "proposed"))
        ]
        keys = ("width", "last_width") if path == "width" else (path,)  # a pyramid is as narrow as its last layer
        return [arm.model[key] for arm in table for key in keys if key in arm.model]
    if part == "protocol":
        return [_follow(experiment.printed, path)]
    if part == "dataset":
        return [_follow(source, path)] if path in {field.name for field in dataclasses.fields(source)} else []
    return []


def _follow(held: Any, path: str) -> Any:
    """Return the field of `held` at a dotted path, in which numbers index lists; None if one isn't set."""
    for name in path.split("."):
        if held is None or (name.isdecimal() and int(name) >= len(held)):
            return None
        held = held[int(name)] if name.isdecimal() else getattr(held, name)
    return held


def _derived(experiment: ExperimentParams, source: DatasetSource, params: Params) -> dict[str, Any]:
    """Return the settings that the params files imply but don't contain."""
    protocol, split, rows = experiment.printed, experiment.printed.split, source.train + source.test
    # a whole number for a fraction, an average for folds
    held_out = source.train / split.folds if split.folds else round(source.train * (split.fraction or 0))
    first = Replicate(seed=0, fold=0 if split.kind == "folds" else None)
    low, high = source.response_range or (None, None)
    native = params.datasets.get(source.folder or experiment.dataset, source)
    (inputs, size), (_, native_size) = ((*each.shape, None, None)[:2] for each in (source, native))
    return {
        # as the training loop takes them: the last batch of an epoch may be smaller
        "steps": protocol.epochs * steps_per_epoch(training_counts(source.train, protocol, first)[0], protocol),
        # the gradient of c·w² is 2c·w, which is what weight decay adds
        "l2_coefficient": protocol.optimizer.weight_decay / 2,
        "protocol.schedule.warmup_steps": protocol.schedule.warmup_steps or 0,
        "protocol.split.train": (source.train - held_out) / rows,
        "protocol.split.val": held_out / rows,
        "protocol.split.test": source.test / rows,
        "dataset.size": size,
        "dataset.native_size": native_size,
        "dataset.images": rows,
        "dataset.rows": rows,
        "dataset.inputs": inputs,
        "dataset.response_min": low,
        "dataset.response_max": high,
    }


def compare_setting(claim: ClaimLine, used: Sequence[Any]) -> Verdict:
    """Return `as printed` if all values agree within the printed rounding; else the first that doesn't is estimated."""
    printed, half = math.nan if claim.value is None else claim.value, (claim.precision or 0.0) / 2
    departing = [one for one in used if one is None or not (math.isclose(one, printed) or abs(one - printed) <= half)]
    first = (departing or used)[0]
    listed = ", ".join("not set" if value is None else f"{value:g}" for value in used)
    return Verdict(
        status=Status.DEVIATES if departing else Status.AS_PRINTED,
        explanation=f"Printed {claim.value:g}; ours {listed}.",
        estimate=None if first is None or claim.value is None else first - claim.value,
    )


_WORST_FIRST = (Status.FAILS, Status.HOLDS_UNDER_READING, Status.HOLDS)
MOST_SHOWN = 4
"""Largest number of arms whose means an explanation lists."""
JudgeOne = Callable[[ClaimLine, Facts], Judgement]


def order_of(judged: Judgement, params: Params) -> PrintedOrder:
    """Return the judgement as an order in a table, with its gain in each replicate that both arms finished."""
    claim, sign = judged.claim, 1.0 if judged.claim.better == "higher" else -1.0
    ours, theirs = (
        {entry.replicate: entry.value for entry in judged.entries if entry.side == side and entry.value is not None}
        for side in ("proposed", "baseline")
    )
    return PrintedOrder(
        verdict=judged.verdict,
        printed=claim.value or 0.0,
        dataset=params.experiments[claim.experiment].dataset if claim.experiment else "",
        gains={index: sign * (value - theirs[index]) for index, value in ours.items() if index in theirs},
    )


class ComputedKind(Kind, kinds="identity theorem inconsistent"):
    """A statement that definitions and the paper's own numbers prove or refute."""


class TallyKind(Kind, kinds="tally"):
    """A paper's own count of the orders of a family, in its own metric: Figure 6 counts the pairs of Table 1."""

    test = "the paper's count of its orders, repeated by the tests of the orders"

    def judge_orders(self, judged: Sequence[Judgement], facts: Facts, judge: JudgeOne) -> Judgement:
        """Judge the count by the family's judgements; `judge` judges an order in another metric."""
        metric = self.claim.metric
        orders = [
            one if one.claim.metric == metric else judge(dataclasses.replace(one.claim, metric=metric), facts)
            for one in judged
            if one.claim.family == self.claim.family and one.claim.facts.is_gain
        ]
        verdict, ours = self.count(orders, facts, judge)
        return Judgement(
            claim=self.claim,
            verdict=verdict,
            basis="results" if verdict.status is not Status.NOT_TESTED else "none",
            is_decidable=True,
            ours=ours,
            entries=tuple(dict.fromkeys(entry for order in orders for entry in order.entries)),
        )

    def count(self, orders: Sequence[Judgement], facts: Facts, judge: JudgeOne) -> tuple[Verdict, float | None]:
        def verdicts(parts: int) -> list[Verdict]:
            """Return the orders' verdicts with α divided by `parts`."""
            within, outside = self.rules.alpha_within / parts, self.rules.alpha_outside / parts
            strict = dataclasses.replace(self.rules, alpha_within=within, alpha_outside=outside)
            anew = dataclasses.replace(facts, params=dataclasses.replace(facts.params, verdicts=strict))
            return [order.verdict if parts == 1 else judge(order.claim, anew).verdict for order in orders]

        count = int(self.value)
        verdict = judge_tally(count, *map(verdicts, tally_tests(count, len(orders))))
        return verdict, None if verdict.estimate is None else verdict.estimate * len(orders)


class WinsKind(TallyKind, kinds="wins"):
    """A paper's own count of the orders in favour of the proposed arm."""

    test = "the paper's count of its orders, repeated by the sign of each gain"
    must_be_significant = False

    def count(self, orders: Sequence[Judgement], facts: Facts, judge: JudgeOne) -> tuple[Verdict, float | None]:
        verdict = judge_wins(
            int(self.value),
            [order.verdict for order in orders],
            self.rules,
            n=self.claim.n or min(self.rules.looks),
            must_be_significant=self.must_be_significant,
            effect=design_effect([order_of(one, facts.params) for one in orders]),
        )
        return verdict, None if verdict.estimate is None else self.value + verdict.estimate


class SignificantWinsKind(WinsKind, kinds="significant_wins"):
    """A paper's own count of the orders in favour of the proposed arm with p < α."""

    test = "the paper's count of its orders, repeated by the paired test of each gain"
    must_be_significant = True


class CountedKind(Kind, kinds="count"):
    """A size or a range of a data set; without an experiment it is computed."""

    is_decidable = True

    def judge(self, facts: Facts) -> Judgement:
        """Judge by the params files; the verdict's estimate is ours − the paper's."""
        if not self.claim.experiment and self.is_decidable:
            return super().judge(facts)
        try:
            verdict = self.compare(self.values(facts))
        except NotMeasured as error:
            verdict = not_tested(f"{str(error)[0].upper()}{str(error)[1:]}.")
        ours = None if verdict.estimate is None else (self.claim.value or 0.0) + verdict.estimate
        return Judgement(claim=self.claim, verdict=verdict, basis="params", is_decidable=self.is_decidable, ours=ours)

    def values(self, facts: Facts) -> Sequence[Any]:
        return param_values(self.claim, facts.params)

    def compare(self, used: Sequence[Any]) -> Verdict:
        """Judge a count of the data as declared; `fetch` and `preprocess` check the files against that."""
        if None in used:
            raise NotMeasured(f"{self.claim.metric} isn't set in the params files")
        verdicts = [judge_count(self.value, float(value)) for value in used]
        return min(verdicts, key=lambda verdict: _WORST_FIRST.index(verdict.status))


class SettingKind(CountedKind, kinds="setup"):
    """A setting of a training, which can't hold or fail."""

    is_decidable = False

    def values(self, facts: Facts) -> Sequence[Any]:
        claim = self.claim
        if not claim.metric.endswith("(parameters)"):
            return super().values(facts)
        counted = [
            row.value
            for group in facts.groups_of(claim)
            if group.arms.keys() == group.experiment.arms.keys()  # the smallest of a part may not be the grid's
            for trials in group.arms.values()
            for row in trials[0].result.metrics
            if row.metric == "parameters"
        ]
        if not counted:
            raise NotMeasured("the parameters of the grid are counted when it runs; not run yet")
        return [min(counted) if claim.metric.startswith("min") else max(counted)]

    def compare(self, used: Sequence[Any]) -> Verdict:
        return compare_setting(self.claim, used)


class ShownKind(Kind, kinds="figure qualitative"):
    """A figure or a statement without a number: shown if there are results on real data to show."""

    def judge(self, facts: Facts) -> Judgement:
        claim, rules, groups = self.claim, self.rules, facts.groups_of(self.claim)
        if not groups:
            silent = SILENT if facts.all_groups_of(claim) else NOT_RUN
            return self.untested(silent if claim.experiment else "No experiment of ours shows it.", is_decidable=False)
        many = len(groups) > 1
        arms = [
            (f"{arm} of {group.experiment.name}" if many else arm, group.arms[arm], group.looks(rules))
            for group in groups
            for arm in (arms_of(claim, group.experiment).arms if claim.arm else group.arms)
            if arm in group.arms
        ]
        shown = [trial for _, trials, _ in arms for trial in trials]
        names = ", ".join(dict.fromkeys(trial.result.experiment for trial in shown)) or "none"
        means: list[str] = []
        for arm, trials, looks in arms if len(arms) <= MOST_SHOWN else ():
            try:
                values = measure(claim.metric, trials, looks).values
            except NotMeasured:
                means = []
                break
            means.append(f"{arm} {fmean(values):.4g} (n = {len(values)})" if values else f"{arm} diverged")
        listed = f"; {claim.metric}: {', '.join(means)}" if means else ""
        return Judgement(
            claim=claim,
            verdict=judge_shown(f"{len(shown)} results of {names}{listed}"),
            basis="results",
            is_decidable=False,
            arms=summarise_figure(claim.metric, groups, rules),
            cost=price(shown, facts.params),
        )


MOST_APART = 1.1
"""Networks count as equal in size if their numbers of parameters differ by at most this factor."""


class GridKind(GainKind):
    """A gain over a grid; indicative results don't count."""

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
            said = f"{verdict.explanation} {sides.part.describe()}"
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
        cells: tuple[Cell, ...] = ({},) * len(there)  # no cell, because pairs of equal size are no slices of a grid
        chosen = Pairs(proposed=tuple(there), baseline=tuple(there.values()), cells=cells, grid=cells)
        sides = gather_samples(self.claim, chosen, group, self.rules)
        planned = len(group.experiment.arms)
        claim = GainClaim(gain=1.0 if self.is_ahead else -1.0, margin=None, better=self.better)
        arms = ComparedArms(
            *sides.both,
            rules=self.rules,
            pairing="none",
            planned=group.experiment.replicates,
            pairs=(len(group.arms), planned),  # each new model may complete a pair
        )
        verdict = judge_gain(claim, arms)
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
        """Return each proposed arm's baseline of nearest size, among those that differ from it only in width."""
        found = {}
        arms, left_out = group.experiment.arms, ("name", "width")
        but_width = {
            arm: {name: value for name, value in arms[arm].model.items() if name not in left_out} for arm in group.arms
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
    error = "as in stages/claims/kinds/counts.py"

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
        """Judge failed trainings over a whole grid, in one analysis, once the grid is complete."""
        experiment = group.experiment
        failed: dict[Side, list[tuple[int, int]]] = {}
        entries: list[Entry] = []
        used: list[Trial] = []
        for side, arms in pairs.sides.items():
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
        """Slope of the margin with respect to the printed proportion, not the count."""
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
