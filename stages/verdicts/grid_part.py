"""Gains over a grid of pairs: the scope of a verdict on part of a grid, and a test of equal gains at every level.

If the pairs that ran are whole slices of the grid, such as every width with 5 and 8 layers, the verdict covers these
and nothing else.  Levels aren't drawn at random: the cheap ones, which are the narrowest and shallowest, run first, and
gains may rise or fall towards the others.  So the levels that ran say nothing of the whole grid.

The test compares the gains at all levels of a factor, such as all widths or all depths.

A level's gain is its mean over the l combinations of the other factors: a width's, over the depths.  The error of this
mean is the interaction: how much the gains of a level differ from one depth to another, beyond what all levels of that
depth have in common.  It includes the error of the seeds.  Seeds alone would treat the depths as fixed, but a paper
that says "5 to 16 layers" may have run others; so the interaction is the error of the whole planned grid, too.

Levels count as equal if no two differ by more than the margin, as for two arms that a paper calls comparable:

    |gain_i − gain_j| + t(α) SE_ij <= margin             for every pair of levels, or
    |gain_i − gain_j| − t(α/pairs) SE_ij > margin        for one of the pairs (Bonferroni)

SE_ij has Welch's form, because each level may have a different interaction with the mean of the others.  F assumes the
same interaction at all levels; if one is ten times the others, F calls gains that differ by the margin equal in 20 % of
experiments instead of 5 %.  F, for exactly equal gains, is shown and decides nothing.

The means are those of the whole grid, so the claim is judged once, when every pair has run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy

from stages.rules import Rules
from stages.verdicts.intervals import (
    IntervalEstimate,
    Numbers,
    by_margin,
    combine,
    complete_look,
    half_width,
    in_percent,
    level,
    looks_of_numbers,
    looks_of_plan,
    signed,
    t_quantile,
    variance_of,
    with_interval,
)
from stages.verdicts.value import too_few
from stages.verdicts.verdict import Sample, Scope, Status, Verdict

Cell = Mapping[str, Any]
"""Where a pair is: its level of each factor of the grid, `{"width": 18, "depth": 5}`."""


def factors_of(planned: Sequence[Cell]) -> dict[str, tuple[Any, ...]]:
    """Return the factors in which the cells of a grid differ, each with its levels in order."""
    names = dict.fromkeys(name for cell in planned for name in cell)
    levels = {name: tuple(dict.fromkeys(cell[name] for cell in planned if name in cell)) for name in names}
    return {name: values for name, values in levels.items() if len(values) > 1}


def whole_slices(cells: Sequence[Cell], planned: Sequence[Cell]) -> list[int]:
    """Return the indices of `cells` that form whole slices: levels of one factor, with all planned pairs of each.

    If several factors qualify, the one whose slices hold most pairs counts; if no level is complete, none.
    """
    best: list[int] = []
    for factor, levels in factors_of(planned).items():
        whole = {level for level in levels if _count(cells, factor, level) == _count(planned, factor, level)}
        there = [number for number, cell in enumerate(cells) if cell.get(factor) in whole]
        best = max(best, there, key=len)
    return best


def _count(cells: Sequence[Cell], factor: str, level: Any) -> int:
    return sum(cell.get(factor) == level for cell in cells)


@dataclass(frozen=True, kw_only=True)
class GridPart:
    """The `pairs` (proposed, baseline) of a grid that have results, their cells, and all planned cells."""

    pairs: tuple[tuple[Sample, Sample], ...]
    cells: tuple[Cell, ...]
    planned: tuple[Cell, ...]

    @property
    def is_sliced(self) -> bool:
        """True if the pairs are whole slices of the grid, so that a sentence can describe them."""
        return len(whole_slices(self.cells, self.planned)) == len(self.cells)

    @property
    def _factors(self) -> dict[str, tuple[Any, ...]]:
        return factors_of(self.planned)

    def _ran(self, factor: str) -> list[Any]:
        there = {cell[factor] for cell in self.cells}
        return [level for level in self._factors[factor] if level in there]

    def scope(self) -> Scope:
        """Return the pairs that ran and, if these are whole slices, the levels that ran and those that didn't."""
        pairs, planned = len(self.pairs), len(self.planned)
        for factor, levels in self._factors.items():
            ran = tuple(self._ran(factor))
            if len(ran) < len(levels) and self.is_sliced:
                missing = tuple(level for level in levels if level not in ran)
                return Scope(pairs=pairs, planned_pairs=planned, factor=factor, ran=ran, missing=missing)
        return Scope(pairs=pairs, planned_pairs=planned)

    def describe(self) -> str:
        """Say which pairs a verdict covers, and which are missing."""
        scope = self.scope()
        if scope.factor is None:
            names = " or ".join(self._factors) or "slice"
            return f"Of no {names} has every pair run, so nothing is said of the grid."
        every = " and ".join(f"every {name}" for name in self._factors if name != scope.factor) or "alone"
        ran, missing = _listed(scope.ran), _listed(scope.missing)
        return f"It is of {scope.factor} {ran} with {every}; {scope.factor} {missing} didn't run."


def _listed(levels: Sequence[Any]) -> str:
    *most, last = map(str, levels)
    return f"{', '.join(most)} and {last}" if most else last


_DRAWS = 20_000
"""Simulated draws of the gains, for a probability that is right to a third of a percentage point."""


@dataclass(frozen=True, kw_only=True)
class UniformClaim:
    """A gain of `gain` at every level of `factor`; `is_whole`: every pair of the grid ran."""

    factor: str
    is_whole: bool
    gain: float
    margin: float
    better: Literal["higher", "lower"]


@dataclass(frozen=True)
class Distances:
    """Distances [..., pairs] between the gains of two levels, their variances and degrees of freedom."""

    apart: Numbers
    variance: Numbers
    df: Numbers

    @classmethod
    def between(cls, cells: Numbers) -> Distances:
        """Compute distances between gains [..., levels, others]; with two levels, pairs of cells give the error."""
        k, others = cells.shape[-2:]
        first, second = np.triu_indices(k, 1)
        one, other = cells[..., first, :], cells[..., second, :]
        rest = (cells.sum(axis=-2, keepdims=True) - one - other) / (k - 2) if k > 2 else other
        parts = [(variance_of(level - rest) / others, others - 1.0) for level in (one, other)]
        return cls(np.abs((one - other).mean(axis=-1)), *combine(parts))

    def least(self, alpha: float) -> Numbers:
        """Return a lower bound of the largest distance, which errs with probability `alpha`; 0 if there is none."""
        half = half_width(self.variance, self.df, alpha / self.apart.shape[-1])
        return np.maximum((self.apart - half).max(axis=-1), 0.0)

    def largest(self, alpha: float) -> Numbers:
        """Return an upper bound of the largest distance, which errs with probability `alpha`."""
        return (self.apart + half_width(self.variance, self.df, alpha)).max(axis=-1)


@dataclass(frozen=True, kw_only=True)
class Gains:
    """Gains [k] of the levels, and the distances between them; `spread` is that of one pair's interaction.

    `variance` and `df` are of a level's gain if the interaction is the same at all levels.
    """

    values: np.ndarray
    spread: float
    variance: float
    df: int
    distances: Distances

    @property
    def f(self) -> float:
        return float(variance_of(self.values)) / self.variance

    @property
    def p(self) -> float:
        """p-value under exactly equal gains."""
        return float(scipy.special.fdtrc(self.values.size - 1, self.df, self.f))

    def chance_within(self, margin: float) -> float:
        """Simulate the chance that no two levels differ by more than `margin`, given the gains and a flat prior."""
        random = np.random.default_rng(0)
        scale = np.sqrt(self.variance * self.df / random.chisquare(self.df, size=(_DRAWS, 1)))
        draws = self.values + scale * random.standard_normal((_DRAWS, self.values.size))
        return float(np.mean(np.ptp(draws, axis=1) <= margin))


def judge_uniform(
    claim: UniformClaim,
    levels: Mapping[Any, Sequence[tuple[Sample, Sample]]],
    *,
    rules: Rules,
    replicates: int | None = None,
) -> Verdict:
    """Judge the claim by `levels`: each one's pairs (proposed, baseline), in one order of the other factors.

    Analyses end with the planned `replicates`.
    """
    every = [pair for pairs in levels.values() for pair in pairs]
    shared = set.intersection(*(set(arm.indices) for pair in every for arm in pair))
    numbers = looks_of_numbers(rules)
    looks = looks_of_plan(numbers, replicates)
    n = complete_look(shared, looks)
    if n is None:
        return too_few(shared, min(numbers), Status.INCONCLUSIVE, replicates)
    n_diverged = sum(arm.among(range(n)).n_diverged for pair in every for arm in pair)
    if n_diverged:
        lost = f"{n_diverged} of the replicates diverged, so the levels aren't compared."
        return Verdict(status=Status.INCONCLUSIVE, explanation=lost, n=n, n_diverged=n_diverged)
    gains = measure_levels(claim, levels, n) if min(len(levels), len(every) // len(levels)) > 1 else None
    if gains is None or not gains.variance:
        few = f"Two levels of {claim.factor} and of another factor, with gains that differ, are needed."
        return Verdict(status=Status.INCONCLUSIVE, explanation=few, n=n)
    return _judge(claim, dict(zip(levels, gains.values.tolist(), strict=True)), gains, rules, looks, n)


def measure_levels(claim: UniformClaim, levels: Mapping[Any, Sequence[tuple[Sample, Sample]]], n: int) -> Gains:
    """Measure gains over the first `n` replicates; their error is the levels' interaction with the other factors."""
    sign = 1.0 if claim.better == "higher" else -1.0
    arms = np.array([[[arm.among(range(n)).values for arm in pair] for pair in row] for row in levels.values()])
    cells = sign * (arms[:, :, 0].mean(axis=-1) - arms[:, :, 1].mean(axis=-1))
    interaction, df = interaction_of(cells)
    seeds = float(variance_of(arms).sum(axis=-1).mean()) / n
    square = max(float(interaction), seeds)
    variance = square / cells.shape[1]
    return Gains(
        values=cells.mean(axis=1), spread=square**0.5, variance=variance, df=df, distances=Distances.between(cells)
    )


def interaction_of(cells: Numbers) -> tuple[Numbers, int]:
    """Return the mean square and df of the interaction of gains [..., levels, others]; 0 if it is only rounding."""
    k, others = cells.shape[-2:]
    rest = cells - cells.mean(axis=-1, keepdims=True) - cells.mean(axis=-2, keepdims=True)
    rest = rest + cells.mean(axis=(-1, -2), keepdims=True)
    df = (k - 1) * (others - 1)
    square = np.square(rest).sum(axis=(-1, -2)) / df
    return np.where(np.sqrt(square) <= 1e-12 * np.abs(cells).max(axis=(-1, -2)), 0.0, square), df


def _judge(
    claim: UniformClaim, by_level: Mapping[Any, float], gains: Gains, rules: Rules, looks: Mapping[int, float], n: int
) -> Verdict:
    inner, outer = level(looks, n, rules.alpha_within), level(looks, n, rules.alpha_outside / 2)
    status, reason = Status.INCONCLUSIVE, "neither within nor wholly outside"
    least, largest = (
        {at: float(end(at)) for at in (inner, outer)} for end in (gains.distances.least, gains.distances.largest)
    )

    def status_at(margin: float) -> Status:
        if least[outer] > margin:
            return Status.NOT_REPRODUCED
        return Status.REPRODUCED if largest[inner] <= margin else Status.INCONCLUSIVE

    if not claim.is_whole:
        reason = "open, since the levels' gains are means over every pair, and only some ran"
    elif (status := status_at(claim.margin)) is Status.NOT_REPRODUCED:
        reason = "wholly outside"
    elif status is Status.REPRODUCED:
        reason = "within"
    spread = max(by_level.values()) - min(by_level.values())
    used = outer if status is Status.NOT_REPRODUCED else inner
    interval = IntervalEstimate(spread, least[used], largest[used], 1 - 2 * used)
    half = float(t_quantile(gains.df, outer / len(by_level))) * gains.variance**0.5
    outside = [str(at) for at, gain in by_level.items() if abs(gain - claim.gain) - half > claim.margin]
    beyond = f"; wholly outside {claim.gain:g} ± {claim.margin:g}: {', '.join(outside)}" if outside else ""
    if min(by_level.values()) > half:
        beyond += f". Better at every {claim.factor}{'' if claim.is_whole else ', on the part that ran'}"
    listed = ", ".join(f"{at} {signed(gain)}" for at, gain in by_level.items())
    return Verdict(
        status=status,
        explanation=f"Largest − smallest gain over {claim.factor} (n = {n}) = "
        f"{with_interval(*interval, claim.margin)}: {reason}. "
        f"By {claim.factor}, each ± {half:.2g} (together {in_percent(1 - 2 * outer)}): {listed}{beyond}. "
        f"Exactly alike: F({len(by_level) - 1}, {gains.df}) = {gains.f:.1f}, p = {gains.p:.2g}. "
        f"The error is how much the gains of one {claim.factor} differ between pairs.",
        **interval._asdict(),
        margin=claim.margin,
        n=n,
        spread=gains.spread,
        p_value=gains.p,
        by_margin=by_margin([least[outer], largest[inner]], status_at) if claim.is_whole else (),
        posterior=gains.chance_within(claim.margin) if claim.is_whole else None,
    )
