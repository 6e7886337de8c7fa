"""How a gain that is said to be uniform goes with the factor: what comes out, beside the verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean

from service.pages.amounts import in_terms_of
from service.pages.formats import as_precise_as, from_to
from service.pages.scope import levels
from stages.results import Arm, Claim, ClaimRecord, PairGain

LEVEL = 0.05


@dataclass(frozen=True, kw_only=True)
class Trend:
    """The mean gain of the pairs at each level of a factor, by rising level, better positive.

    `p_value`: two-sided, of a trend (Mann 1945: the gains in the order of the levels, counted by inversions).
    """

    factor: str
    gains: dict[float, float]
    pairs: tuple[tuple[float, PairGain], ...]

    @property
    def p_value(self) -> float:
        falls = sum(one > other for one, other in combinations(self.gains.values(), 2))
        ways = _orders_by_inversions(len(self.gains))
        return min(1.0, 2 * sum(ways[: 1 + min(falls, len(ways) - 1 - falls)]) / sum(ways))

    @property
    def rises(self) -> bool | None:
        """True or False where the gain rises or falls with the factor; None where neither is plain."""
        values = list(self.gains.values())
        rising = sum(one < other for one, other in combinations(values, 2))
        return None if self.p_value > LEVEL else 2 * rising > len(values) * (len(values) - 1) / 2


def find_trend(record: ClaimRecord, arms: Iterable[Arm]) -> Trend | None:
    """The trend of a uniform gain by its factor; None of other claims, and of fewer than two levels."""
    factor = record.claim.factor
    if record.claim.kind != "uniform" or factor is None:
        return None
    models = {(arm.experiment, arm.name): arm.model for arm in arms}
    pairs = sorted(
        ((models[pair.experiment, pair.arm][factor], pair) for pair in record.pairs), key=lambda item: item[0]
    )
    by_level: dict[float, list[float]] = defaultdict(list)
    for level, pair in pairs:
        by_level[level].append(pair.gain)
    if len(by_level) < 2:
        return None
    gains = {level: fmean(found) for level, found in by_level.items()}
    return Trend(factor=factor, gains=gains, pairs=tuple(pairs))


def tell_trend(trend: Trend, claim: Claim) -> str:
    """As "The gain grows with width, from 0.16 nats at 18 units to 0.31 nats at 141 units."; without one, the ends."""
    (first, least), *_, (last, most) = trend.gains.items()
    write = as_precise_as(min(trend.gains.values()), max(trend.gains.values()))
    ends = [
        f"{in_terms_of(gain, claim, write).removeprefix('+')} at {levels(trend.factor, [level])}"
        for level, gain in ((first, least), (last, most))
    ]
    if trend.rises is None:
        return ""
    way = "grows" if trend.rises else "falls"
    return f"The gain {way} with {trend.factor}, from {ends[0]} to {ends[1]}."


def tell_other_reading(trend: Trend) -> str:
    """What the pairs say if "uniform" is read as "better at every level", which is no verdict."""
    ahead = sum(pair.low > 0 for _, pair in trend.pairs)
    better = sum(pair.gain > 0 for _, pair in trend.pairs)
    many = f"all {len(trend.pairs)}" if better == len(trend.pairs) else f"{better} of the {len(trend.pairs)}"
    sure = f"{'each' if ahead == better else ahead} with an interval above 0"
    said = f"If “uniform” is read as “better at every {trend.factor}”, {many} pairs that ran agree"
    return f"{said}, {sure}; that reading has no verdict here."


def range_of(trend: Trend, claim: Claim) -> str:
    """The least and the largest mean gain: 0.13 to 0.31 nats."""
    ends = min(trend.gains.values()), max(trend.gains.values())
    return from_to(*(in_terms_of(end, claim, as_precise_as(*ends)).removeprefix("+") for end in ends))


def _orders_by_inversions(n: int) -> list[int]:
    """Of the n! orders of n things, how many have 0, 1, 2, … pairs the wrong way round."""
    ways = [1]
    for size in range(2, n + 1):
        ways = [sum(ways[max(0, k - size + 1) : k + 1]) for k in range(len(ways) + size - 1)]
    return ways
