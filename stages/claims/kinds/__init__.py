"""A class for each kind of claim: its margin, how it is judged, and the power of its plan.

A new kind is a class here, with a row of facts in `stages.verdicts.kinds`.
"""

from stages.claims.kinds.base import Facts, Kind, TrainedKind, foresee, kind_of
from stages.claims.kinds.counts import GridKind, TallyKind, order_of
from stages.claims.kinds.numbers import GainKind, RatioKind, ValueKind
