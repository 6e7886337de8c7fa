"""A gain over a grid of pairs of which only part has results: the scope of its verdict, and what the rest could change.

A verdict is on the pairs that ran, where these are whole slices of the grid: every width with 5 and 8 layers, say.
The rest enters an interval for the whole grid, by factors: with l of L levels run, Var = (1 − l/L) · s²/l, s² that of
the levels' means (a finite population, Cochran 1977, ch. 2).  A factor whose levels all ran adds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from stages.verdicts.intervals import half_width, variance_of
from stages.verdicts.verdict import Sample, Scope

Cell = Mapping[str, Any]
"""Where a pair is: its level of each factor of the grid, `{"width": 18, "depth": 5}`."""


def factors_of(planned: Sequence[Cell]) -> dict[str, tuple[Any, ...]]:
    """The factors in which the cells of a grid differ, each with its levels in order."""
    names = dict.fromkeys(name for cell in planned for name in cell)
    levels = {name: tuple(dict.fromkeys(cell[name] for cell in planned if name in cell)) for name in names}
    return {name: values for name, values in levels.items() if len(values) > 1}


def whole_slices(cells: Sequence[Cell], planned: Sequence[Cell]) -> list[int]:
    """The indices of `cells` that form whole slices: levels of one factor, each with every planned pair of that level.

    Where several factors qualify, the one whose slices hold most pairs; none where no level is complete.
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
    """The `pairs` (proposed, baseline) of a grid that have results, the cell of each, and the cells of the whole."""

    pairs: tuple[tuple[Sample, Sample], ...]
    cells: tuple[Cell, ...]
    planned: tuple[Cell, ...]

    @property
    def is_sliced(self) -> bool:
        """True if the pairs are whole slices of the grid, so that a sentence can describe them."""
        return len(whole_slices(self.cells, self.planned)) == len(self.cells)

    def half_width_of_whole(self, seeds: tuple[float, float], n: int, alpha: float) -> float:
        """Half-width of the interval of the whole grid's gain, with an error of at most alpha on each side.

        Infinite where one level of a factor ran.  `seeds`: (variance, df) of the mean over the pairs that ran.  Each
        part has its own t (Banerjee 1960): one number of df for their sum (Welch–Satterthwaite) errs too often where
        one part has few.
        """
        parts = [seeds, *self._missing(n)]
        return math.sqrt(sum(float(half_width(variance, df, alpha)) ** 2 if df else math.inf for variance, df in parts))

    def _missing(self, n: int) -> list[tuple[float, float]]:
        """(variance, df) of each factor with levels that didn't run, and of pairs missing between those that did."""
        gains = [fmean(one.among(range(n)).values) - fmean(other.among(range(n)).values) for one, other in self.pairs]
        parts = []
        for factor, levels in factors_of(self.planned).items():
            means = [
                fmean(gain for gain, cell in zip(gains, self.cells, strict=True) if cell[factor] == level)
                for level in self._ran(factor)
            ]
            if len(means) < len(levels):
                parts.append(_of_finite(means, len(levels)))
        between = sum(all(cell[name] in self._ran(name) for name in self._factors) for cell in self.planned)
        return [*parts, _of_finite(gains, between)] if len(gains) < between else parts

    @property
    def _factors(self) -> dict[str, tuple[Any, ...]]:
        return factors_of(self.planned)

    def _ran(self, factor: str) -> list[Any]:
        there = {cell[factor] for cell in self.cells}
        return [level for level in self._factors[factor] if level in there]

    def scope(self) -> Scope:
        """The pairs that ran and, where these are whole slices, the levels that ran and those that didn't."""
        pairs, planned = len(self.pairs), len(self.planned)
        for factor, levels in self._factors.items():
            ran = tuple(self._ran(factor))
            if len(ran) < len(levels) and self.is_sliced:
                missing = tuple(level for level in levels if level not in ran)
                return Scope(pairs=pairs, planned_pairs=planned, factor=factor, ran=ran, missing=missing)
        return Scope(pairs=pairs, planned_pairs=planned)

    def tell(self) -> str:
        """Say which pairs a verdict covers, and which are missing."""
        scope = self.scope()
        if scope.factor is None:
            names = " or ".join(self._factors) or "slice"
            return f"Of no {names} has every pair run, so nothing is said of the grid."
        every = " and ".join(f"every {name}" for name in self._factors if name != scope.factor) or "alone"
        ran, missing = _listed(scope.ran), _listed(scope.missing)
        return f"It is of {scope.factor} {ran} with {every}; {scope.factor} {missing} didn't run."


def _of_finite(draws: Sequence[float], population: int) -> tuple[float, float]:
    """(variance, df) of the difference between the means of `population` and of `draws`; no df: unknown variance."""
    if len(draws) < 2:
        return math.nan, 0.0
    return (1 - len(draws) / population) * float(variance_of(np.array(draws))) / len(draws), len(draws) - 1.0


def _listed(levels: Sequence[Any]) -> str:
    *most, last = map(str, levels)
    return f"{', '.join(most)} and {last}" if most else last
