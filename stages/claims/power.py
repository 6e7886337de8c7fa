"""The power of a planned experiment for a claim, before anything has run: the design given to `stages.verdicts.power`.

The spread of a replicate is measured if our replicates have been judged in the claim's metric.  Otherwise it is the
paper's printed standard error times √n.  Otherwise it is assumed, by the metric:

- An accuracy or error p of N test samples: 0.8 √(p (1 − p)/N), a little less than if each sample were right by chance
  (Bouthillier et al. 2021 find that repeated trainings come close).  The 48 standard errors in DAC's Tables 1 and 2
  are 0.82 of it (root mean square); none of our other papers prints any.
- A logarithm of an error: 0.05; our networks of SGEMM have 0.042 (the median of the first 29).
- A loss: half a percent of it, by our choice; no paper prints one.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from statistics import fmean
from typing import Literal

from stages.claims.lines import CROSSOVERS, ORDERS, ClaimLine
from stages.claims.margins import margin_of_gain, margin_of_ratio, margin_of_value, slope_of_margin
from stages.claims.ratios import limits_of
from stages.claims.sides import Pairs, arms_of, better_of
from stages.params.experiment import Experiment, Params
from stages.rules import Rules
from stages.verdicts import ComparableClaim, Design, Power, Verdict, power_of_comparable, power_of_gain, power_of_value
from stages.verdicts.grid_part import factors_of
from stages.verdicts.looks import OF_WHOLE_GRID
from stages.verdicts.noise import power_of_noise
from stages.verdicts.power import Source, judged_replicates
from stages.verdicts.power_of_others import (
    power_of_nearness,
    power_of_proportion,
    power_of_proportions,
    power_of_sign,
    power_of_uniform,
)

CHANCE_SHARE = 0.8
LOG_SPREAD = 0.05
LOSS_SHARE = 0.005
LOSS_UNITS = ("nats per token", "nats")
Combination = Mapping[str, float]
"""`{arm: factor}` of a sum over arms."""

GAINS = ("order", "difference", "gap", "equivalence")
"""Kinds that compare two arms."""


def foresee(
    claim: ClaimLine, params: Params, verdict: Verdict, claims: Iterable[ClaimLine], *, at: int | None = None
) -> Power | None:
    """The power of the plan, or of its interim analysis `at` so many replicates, for a claim that training decides.

    `verdict` has the spread if replicates were judged; `claims` print what the arms reach.  None if neither the paper
    nor the metric suggests the spread of a number.
    """
    if claim.value is None and claim.kind not in ("equivalence", "order"):
        return None
    printed = claim.value or 0.0  # a row of `equivalence` may print no loss
    (name,) = fnmatch.filter(params.experiments, claim.experiment or "")
    experiment = params.experiments[name]
    pairs = arms_of(claim, experiment)
    if claim.kind == "noise":
        assert claim.trials is not None, f"{claim.id} is a range of nothing"
        return power_of_noise(experiment.replicates, printed, claim.trials, params.verdicts)
    if claim.kind == "failures":
        return _of_one_look(claim, params.verdicts, pairs, experiment.replicates, claims)
    if claim.kind in ("uniform", *CROSSOVERS, "observed", "range"):
        return _of_no_printed_size(claim, params.verdicts, pairs, experiment, verdict, at)
    assert claim.kind in ("value", "ratio", *GAINS), f"{claim.id}: no power of a {claim.kind}"
    found = _spread(claim, params, experiment, pairs, verdict, claims)
    if found is None:
        return None
    spread, source, because = found
    if len(pairs.proposed) > 1:
        whole = f", for the whole grid of {len(pairs.proposed)} pairs"
        because += ", for the mean of the pairs that ran" if source == "measured" else whole
    is_gain, is_folded = claim.kind in GAINS, experiment.printed.split.kind == "folds"
    pairing: Literal["value", "fold", "none"] = "value"
    if is_gain:
        pairing = "fold" if is_folded else "none"
    design = Design(
        planned=experiment.replicates,
        spread=spread,
        source=source,
        because=because,
        pairing=pairing,
        stderr=claim.stderr if claim.kind != "ratio" else None,
        paper_n=claim.n,
        slope=slope_of_margin(claim, params.verdicts.margins),
        share=OF_WHOLE_GRID if pairs.planned > 1 and claim.kind in ORDERS else 1.0,
        at=at,
    )
    rules = params.verdicts
    if claim.kind == "order" and claim.value is None:
        return power_of_sign(design, rules, is_known=True)
    if claim.kind == "equivalence":
        margin = rules.margins.comparable(claim.precision or 0.0)
        asked = ComparableClaim(margin=margin, better=better_of(claim), accepted=claim.value)
        return power_of_comparable(design, asked.margin, asked.widest, rules)
    if claim.kind == "gap":
        margin = margin_of_gain(claim, rules.margins)
        return power_of_value(design, margin, rules, can_reproduce=abs(printed) > margin)
    if is_gain:
        return power_of_gain(design, printed, margin_of_gain(claim, rules.margins), rules)
    if claim.kind == "ratio":
        margin = margin_of_ratio(claim, rules.margins)
        return power_of_value(design, margin, rules, can_reproduce=abs(printed) > margin)
    return power_of_value(design, margin_of_value(claim, rules.margins), rules)


def _of_one_look(claim: ClaimLine, rules: Rules, pairs: Pairs, replicates: int, claims: Iterable[ClaimLine]) -> Power:
    """The power for a share of failed trainings."""
    assert claim.value is not None, f"{claim.id} has no number"
    assert claim.trials is not None, f"{claim.id} counts of nothing"
    printed = int(claim.value), claim.trials
    if not pairs.baseline:
        margin = rules.margins.error(printed[0] / printed[1], 1 / printed[1])
        slope = slope_of_margin(claim, rules.margins) * claim.trials
        return power_of_proportion(pairs.planned, replicates, printed, margin, rules, slope)
    named = (claim.experiment, claim.metric, claim.baseline_arm)
    (other,) = (one for one in claims if (one.experiment, one.metric, one.arm) == named)
    assert other.value is not None and other.trials is not None, f"{other.id} has no count"
    both = pairs.planned, len(set(pairs.baseline))
    return power_of_proportions(both, replicates, (printed, (int(other.value), other.trials)), rules)


def _of_no_printed_size(
    claim: ClaimLine, rules: Rules, pairs: Pairs, experiment: Experiment, verdict: Verdict, at: int | None
) -> Power:
    """The power for equal gains over a grid, who is ahead from a size on, observed trained networks, and ranges."""
    assert claim.value is not None, f"{claim.id} has no number"
    is_measured = bool(verdict.spread)
    is_log = claim.metric.endswith("log_mse")
    design = Design(
        planned=experiment.replicates,
        spread=verdict.spread or LOG_SPREAD * math.sqrt(2),
        source="measured" if is_measured else "assumed",
        because=f"measured on our first {verdict.n}" if is_measured else f"assumed: {LOG_SPREAD} of each logarithm",
        pairing="value" if claim.kind in ("observed", "range") else "none",
        stderr=0.0 if claim.kind in ("observed", "range") else None,
        share=OF_WHOLE_GRID if claim.kind in CROSSOVERS else 1.0,
        at=at,
    )
    if claim.kind == "uniform":
        assert claim.factor is not None, f"{claim.id} names no factor"
        if not is_measured:
            because = f"{design.because} in each replicate, and no interaction"
            of_mean = design.spread / math.sqrt(judged_replicates(design, rules))
            design = dataclasses.replace(design, spread=of_mean, because=because)
        levels = len(factors_of(pairs.grid)[claim.factor])
        return power_of_uniform(design, levels, pairs.planned // levels, margin_of_gain(claim, rules.margins), rules)
    if claim.kind in CROSSOVERS or (claim.kind == "observed" and claim.better is not None):
        return power_of_sign(design, rules, is_known=is_measured or is_log)
    margin, right = rules.margins.difference(claim.value), "the statement is right"
    if claim.kind == "range":
        low, high = limits_of(claim, rules)
        margin, right = (high - low) / 2, "the truth is in the middle of the range"
    return power_of_value(design, margin, rules) if is_measured else power_of_nearness(design, margin, rules, right)


def _spread(
    claim: ClaimLine,
    params: Params,
    experiment: Experiment,
    pairs: Pairs,
    verdict: Verdict,
    claims: Iterable[ClaimLine],
) -> tuple[float, Source, str] | None:
    """(spread, its source, the source in words)."""
    if verdict.spread:
        return verdict.spread, "measured", f"measured on our first {verdict.n}"
    if claim.stderr and claim.n and claim.kind != "ratio":
        return claim.stderr * math.sqrt(claim.n), "printed", f"the paper's standard error times √{claim.n}"
    top, bottom = _combination(claim, experiment, pairs, params.verdicts)
    if claim.metric.endswith("log_mse"):
        return LOG_SPREAD * math.hypot(*top.values()), "assumed", f"assumed: {LOG_SPREAD} of the logarithm of an error"
    is_loss = claim.metric.endswith("loss")
    if not is_loss and not any(word in claim.metric for word in ("accuracy", "error")):
        return None
    levels = _levels(LOSS_UNITS if is_loss else ("fraction",), experiment, claims)
    if claim.kind == "value" and claim.arm in levels:
        levels[claim.arm] = claim.value or 0.0
    if not levels:
        return None
    usual = fmean(levels.values())
    samples = params.datasets[experiment.dataset].test
    variance = 0.0
    for arm, factor in top.items():
        level = levels.get(arm, usual)
        own = LOSS_SHARE * level if is_loss else CHANCE_SHARE * math.sqrt(level * (1 - level) / samples)
        variance += (factor * own) ** 2
    scale = abs(sum(factor * levels.get(arm, usual) for arm, factor in bottom.items())) if bottom else 1.0
    because = "half a percent of the loss" if is_loss else f"0.8 of that of chance over {samples:,} test samples"
    return math.sqrt(variance) / scale, "assumed", f"assumed: {because}"


def _combination(
    claim: ClaimLine, experiment: Experiment, pairs: Pairs, rules: Rules
) -> tuple[Combination, Combination]:
    """A replicate's value, as N − b D of its arms, and D for a ratio N/D (`ratios.relative`)."""
    if claim.kind != "ratio":
        top: dict[str, float] = defaultdict(float)
        for sign, arms in ((1, pairs.proposed), (-1, pairs.baseline)):
            for arm in arms:
                top[arm] += sign / len(arms)
        return top, {}
    (ours,), (theirs,) = pairs.proposed, pairs.baseline
    sign = -1 if claim.unit == "relative reduction" else 1
    options: list[Combination] = [{ours: 1, theirs: -(1 + sign * b)} for b in limits_of(claim, rules)]
    bottom: Combination = {theirs: 1}
    if claim.unit == "of the gain of DAC":
        base = str(experiment.arms[ours].against)
        options = [{ours: 1, base: b - 1, theirs: -b} for b in limits_of(claim, rules)]
        bottom = {theirs: 1, base: -1}
    return max(options, key=lambda top: math.hypot(*top.values())), bottom


def _levels(units: Collection[str], experiment: Experiment, claims: Iterable[ClaimLine]) -> dict[str, float]:
    """The values that the paper prints for the arms of an experiment in these units; of several metrics, the first."""
    found: dict[str, float] = {}
    for claim in claims:
        is_level = claim.kind == "value" and claim.experiment == experiment.name and claim.unit in units
        if is_level and claim.arm is not None and claim.value is not None:
            found.setdefault(claim.arm, claim.value)
    return found
