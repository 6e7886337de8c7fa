"""How many replicates would decide, if the current estimate and spread stayed as they are."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stages.verdicts.intervals import Numbers
from stages.verdicts.looks import Looks

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
    beyond = f", beyond the last look at {max(looks)}" if expected is None or expected > max(looks) else ""
    return f"{expected or f'more than {MOST}'} replicates are expected to decide{beyond}"


def can_decide(decides: Decides, looks: Looks) -> bool:
    """True if some number of replicates would decide: with many, only the paper's own error remains."""
    return bool(decides(float(NEVER), looks[max(looks)]))
