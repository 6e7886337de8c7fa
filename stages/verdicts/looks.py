"""Planned looks: when evidence may be judged, and the share of α that each look spends.

Testing after every replicate until the answer pleases multiplies the nominal error.  So evidence is judged only when a
planned number of replicates is complete, in the planned order, and the looks share α: whichever look stops, the error
of all looks together is at most the sum of their shares, whatever the distribution.

A look that the plan never reaches would spend its share on nothing, so the plan's end is the last one (decision 0029).

A grid whose pairs arrive one after another is judged again with each arrival, which multiplies the error as well.  So
the parts of a grid share α, too: the whole grid has most of it, and the rest is split evenly over all parts that there
may be on the way.  Each arrival adds a pair, so a grid of p pairs has at most p − 1 parts before it is whole, whatever
the order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from stages.verdicts.intervals import Numbers

# number of replicates -> share of α, rising numbers, shares that sum to 1
Looks = Mapping[int, float]


OF_WHOLE_GRID = 0.8
"""Share of α that is left for the whole grid."""


class UnplannedLook(ValueError):
    """A number of replicates at which no look is planned."""


def looks_from(looks: Looks, minimum: int) -> dict[int, float]:
    """The looks with enough replicates; they also share what the earlier ones would have spent."""
    enough = {n: share for n, share in looks.items() if n >= minimum}
    return {n: share / sum(enough.values()) for n, share in enough.items()}


def looks_of_plan(looks: Looks, planned: int | None) -> dict[int, float]:
    """The looks of a plan of this many replicates: those that it reaches, the last one being its end.

    The first look that it doesn't reach moves to its end, unless one is there already; the others are dropped, and all
    shares grow in proportion until they add up to α.  A plan shorter than the first look has none; one that goes on
    after the last, or None, changes nothing.

    {3: 0.2, 5: 0.4, 10: 0.4} is {3: 1/3, 5: 2/3} with a plan of 5 and {3: 0.2, 5: 0.4, 7: 0.4} with one of 7.
    """
    if planned is None or planned >= max(looks, default=0):
        return dict(looks)
    reached = {n: share for n, share in looks.items() if n <= planned}
    if reached:
        reached.setdefault(planned, next(share for n, share in looks.items() if n > planned))
    return {n: share / sum(reached.values()) for n, share in reached.items()}


def looks_of_part(looks: Looks, ran: int, planned: int) -> dict[int, float]:
    """The looks at a part of a grid, in which `ran` of the `planned` pairs ran: their shares of this part's α."""
    part = 1.0
    if planned > 1:
        part = OF_WHOLE_GRID if ran >= planned else (1 - OF_WHOLE_GRID) / (planned - 1)
    return {n: share * part for n, share in looks.items()}


def level(looks: Looks, n: int, alpha: float) -> float:
    """Level of the test at the look at n replicates, if all looks together spend `alpha`.

    Raises:
        UnplannedLook: no look is planned there.
    """
    if n not in looks:
        raise UnplannedLook(f"{n} replicates are not a planned analysis; planned: {', '.join(map(str, looks))}")
    return alpha * looks[n]


def complete_look(indices: Iterable[int], looks: Looks) -> int | None:
    """The last look whose replicates 0 … n − 1 are all there; later replicates wait for the next look."""
    present = set(indices)
    return max((n for n in looks if present.issuperset(range(n))), default=None)


MOST = 1000
NEVER = 10**12
# (replicates, share of α) -> whether that decides, elementwise
Decides = Callable[[Numbers, Numbers], Numbers]


def expected_replicates(decides: Decides, n: int, looks: Looks) -> int | None:
    """The first later look that decides, else the first number beyond the plan up to `MOST`, else None."""
    last = max(looks)
    candidates = np.array([*(look for look in looks if look > n), *range(last + 1, MOST + 1)])
    shares = np.array([looks.get(int(candidate), looks[last]) for candidate in candidates])
    hit = decides(candidates.astype(float), shares)
    return int(candidates[np.argmax(hit)]) if np.any(hit) else None


def say_expected(expected: int | None, looks: Looks) -> str:
    """`expected_replicates` in words."""
    beyond = f", but the last analysis is at {max(looks)}" if expected is None or expected > max(looks) else ""
    return f"{expected or f'more than {MOST}'} replicates are expected to decide{beyond}"


def can_decide(decides: Decides, looks: Looks) -> bool:
    """True if some number of replicates would decide: with many, only the paper's own error remains."""
    return bool(decides(float(NEVER), looks[max(looks)]))
