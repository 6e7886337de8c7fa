"""Rules as in params.yaml, and experiments drawn from a known truth, judged by the real functions in one array pass."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stages.reported.judging import RULES
from stages.verdicts.intervals import (
    Looks,
    half_width,
    is_outside,
    is_within,
    level,
    looks_from,
    looks_of_plan,
    variance_of,
)
from stages.verdicts.value import Spread

MARGINS = RULES.margins
Booleans = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class World:
    """An arm with spread 1 whose mean is `shift` from the procedure of the paper.

    Of `planned` replicates, by which the looks end (None: they go on to the last).
    """

    shift: float
    margin: float
    paper_n: int = 1
    prints_error: bool = False
    planned: int | None = None


@dataclass(frozen=True)
class Draws:
    """[trials, replicates] of our arm; [trials] of what the paper prints."""

    ours: NDArray[np.float64]
    printed: NDArray[np.float64]
    stderr: NDArray[np.float64] | None


def draw(world: World, trials: int, seed: int) -> Draws:
    rng = np.random.default_rng(seed)
    last = max(RULES.looks)
    ours = rng.normal(world.shift, 1, (trials, last))
    runs = rng.normal(0, 1, (trials, world.paper_n))
    stderr = runs.std(axis=1, ddof=1) / np.sqrt(world.paper_n) if world.prints_error else None
    return Draws(ours, runs.mean(axis=1), stderr)


def planned_looks(world: World) -> Looks:
    minimum = RULES.minimum_with_error if world.prints_error else RULES.minimum
    return looks_of_plan(looks_from(RULES.looks, minimum), world.planned)


def judge_all(world: World, draws: Draws) -> dict[int, tuple[Booleans, Booleans]]:
    """At each planned look: which trials are `reproduced`, and which `not reproduced`."""
    looks = planned_looks(world)
    verdicts = {}
    for n in looks:
        s2 = variance_of(draws.ours[:, :n])
        spread = Spread(s2=s2, df=n - 1, n=n, stderr=draws.stderr, paper_n=world.paper_n)
        variance, df = spread.at(n)
        difference = draws.ours[:, :n].mean(axis=1) - draws.printed
        verdicts[n] = (
            is_within(difference, half_width(variance, df, level(looks, n, RULES.alpha_within)), world.margin),
            is_outside(difference, half_width(variance, df, level(looks, n, RULES.alpha_outside / 2)), world.margin),
        )
    return verdicts


def rates(world: World, trials: int = 20_000, seed: int = 0) -> tuple[float, float]:
    """Share of trials that are reproduced, and not reproduced, at any of the planned looks."""
    verdicts = judge_all(world, draw(world, trials, seed)).values()
    return tuple(float(np.mean(np.any(column, axis=0))) for column in zip(*verdicts, strict=True))


def above(rate: float, trials: int = 20_000) -> float:
    """The highest that a simulated rate may be when the true one is `rate`: three standard errors more."""
    return rate + 3 * (rate * (1 - rate) / trials) ** 0.5
