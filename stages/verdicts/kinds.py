"""The kinds of claims, and the facts that judges, API and pages need about each.

A new kind is a row here and a class in `stages.claims.kinds`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class KindFacts:
    """Facts about a kind of claim.

    - `by`: what decides it (training, the orders of its family, computing, the data sets, our params, or nothing).
    - `number`: what its number is (of one model, a number that ours is compared with, a gain of one model over another
      with better positive, or something else).
    - `is_order`: it says which of two models is better; `is_alike`: it says that they are comparable.
    - `over_pairs`: if it is about a grid, it is about the mean over pairs.
    - `at_size`: words for the side of a number of parameters on which a model is better; `qualifier`: the side alone.
    - `is_spread`: it says that numbers differ by chance alone, which a small p-value refutes.
    - `is_implied`: the paper's words imply its number.
    - `is_of_failures`: it counts failed trainings.
    """

    by: Literal["training", "orders", "computing", "data", "params", "nothing"] = "training"
    number: Literal["model", "ours", "gain", "other"] = "other"
    is_order: bool = False
    is_alike: bool = False
    over_pairs: bool = False
    at_size: str = ""
    qualifier: str = ""
    is_spread: bool = False
    is_implied: bool = False
    is_of_failures: bool = False

    @property
    def is_gain(self) -> bool:
        return self.number == "gain"


KINDS: Mapping[str, KindFacts] = {
    "value": KindFacts(number="model"),
    "ratio": KindFacts(number="ours"),
    "range": KindFacts(),
    "observed": KindFacts(number="ours", is_implied=True),
    "noise": KindFacts(number="ours", is_spread=True),
    "order": KindFacts(number="gain", is_order=True, over_pairs=True),
    "difference": KindFacts(number="gain", is_order=True, over_pairs=True),
    "gap": KindFacts(number="gain"),
    "equivalence": KindFacts(number="gain", is_alike=True),
    "uniform": KindFacts(over_pairs=True),
    "ahead_from": KindFacts(at_size="better from {} on", qualifier="or more"),
    "behind_up_to": KindFacts(at_size="worse up to {}", qualifier="or fewer"),
    "failures": KindFacts(is_of_failures=True),
    "tally": KindFacts(by="orders"),
    "wins": KindFacts(by="orders"),
    "significant_wins": KindFacts(by="orders"),
    "identity": KindFacts(by="computing"),
    "theorem": KindFacts(by="computing"),
    "inconsistent": KindFacts(by="computing"),
    "count": KindFacts(by="data"),
    "setup": KindFacts(by="params"),
    "figure": KindFacts(by="nothing"),
    "qualitative": KindFacts(by="nothing"),
}
