"""Kinds of claims without a training of their own: counts of orders, facts about data, settings, figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from statistics import fmean

from stages.claims.judgement import Judgement
from stages.claims.kinds.base import NOT_RUN, SILENT, Facts, Kind
from stages.claims.lines import ClaimLine
from stages.claims.measures import NotMeasured, measure
from stages.claims.settings import agree, judge_counted, judge_setting
from stages.claims.sides import arms_of, summarise_figure
from stages.claims.trials import price
from stages.params.experiment import Params
from stages.verdicts import (
    Order,
    Status,
    Verdict,
    design_effect,
    judge_shown,
    judge_tally,
    judge_wins,
    not_tested,
    tally_tests,
)

MOST_SHOWN = 4
"""Arms whose means a sentence holds."""
JudgeOne = Callable[[ClaimLine, Facts], Judgement]


def order_of(judged: Judgement, params: Params) -> Order:
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


class Computed(Kind, kinds="identity theorem inconsistent"):
    """A statement that follows, or not, from definitions and the paper's own numbers."""


class Tally(Kind, kinds="tally"):
    """A paper's own count of the orders of a family, in its own metric: Figure 6 counts the pairs of Table 1."""

    test = "the paper's count of its orders, repeated by the tests of the orders"

    def judge_orders(self, judged: Sequence[Judgement], facts: Facts, judge: JudgeOne) -> Judgement:
        """Judge the count by those of the judgements that are of the family; `judge` judges one in another metric."""
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
            """Return those of the orders with α divided by `parts`."""
            within, outside = self.rules.alpha_within / parts, self.rules.alpha_outside / parts
            strict = dataclasses.replace(self.rules, alpha_within=within, alpha_outside=outside)
            anew = dataclasses.replace(facts, params=dataclasses.replace(facts.params, verdicts=strict))
            return [order.verdict if parts == 1 else judge(order.claim, anew).verdict for order in orders]

        count = int(self.value)
        verdict = judge_tally(count, *map(verdicts, tally_tests(count, len(orders))))
        return verdict, None if verdict.estimate is None else verdict.estimate * len(orders)


class Wins(Tally, kinds="wins"):
    """The same of the orders in favour of the proposed arm."""

    test = "the paper's count of its orders, repeated by the sign of each gain"
    must_be_significant = False

    def count(self, orders: Sequence[Judgement], facts: Facts, judge: JudgeOne) -> tuple[Verdict, float | None]:
        n, effect = (
            self.claim.n or min(self.rules.looks),
            design_effect([order_of(one, facts.params) for one in orders]),
        )
        verdict = judge_wins(
            int(self.value),
            [order.verdict for order in orders],
            self.rules,
            n=n,
            must_be_significant=self.must_be_significant,
            effect=effect,
        )
        return verdict, None if verdict.estimate is None else self.value + verdict.estimate


class SignificantWins(Wins, kinds="significant_wins"):
    """The same of those with p < α."""

    test = "the paper's count of its orders, repeated by the paired test of each gain"
    must_be_significant = True


class Counted(Kind, kinds="count"):
    """A size or a range of a data set; without an experiment it is computed."""

    def judge(self, facts: Facts) -> Judgement:
        return (
            self.of_params(judge_counted(self.claim, facts.params)) if self.claim.experiment else super().judge(facts)
        )

    def of_params(self, verdict: Verdict, *, is_decidable: bool = True) -> Judgement:
        """Judgement from the params files; its estimate is ours − the paper's."""
        ours = None if verdict.estimate is None else (self.claim.value or 0.0) + verdict.estimate
        return Judgement(claim=self.claim, verdict=verdict, basis="params", is_decidable=is_decidable, ours=ours)


class Setting(Counted, kinds="setup"):
    """A setting of a training, which can't hold or fail."""

    def judge(self, facts: Facts) -> Judgement:
        return self.of_params(self._compare(facts), is_decidable=False)

    def _compare(self, facts: Facts) -> Verdict:
        claim = self.claim
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


class Shown(Kind, kinds="figure qualitative"):
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
        told = f"; {claim.metric}: {', '.join(means)}" if means else ""
        return Judgement(
            claim=claim,
            verdict=judge_shown(f"{len(shown)} results of {names}{told}"),
            basis="results",
            is_decidable=False,
            arms=summarise_figure(claim.metric, groups, rules),
            cost=price(shown, facts.params),
        )
