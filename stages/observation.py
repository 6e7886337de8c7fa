"""Observations of the inside of a trained network, as a paper's own `observations` module makes them.

A paper with claims about trained networks has a module `stages.papers.<paper>.observations` with `MODELS`, the
classes that it is about, and `observe(model, images)`, images normalised [B, C, S, S], the model in evaluation mode;
a third parameter `labels` is given the classes, int64 [B]. `IMAGES`, if the module has it, is how many of the first
test images it needs (None: all). `evaluate` runs it on every trained network of these classes. These modules are
found by their folder, not by a list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Observed:
    """`numbers`: one a network, by metric.  `layers`: by quantity one a block and head, [L][H], H = 1 where a block is
    one unit.  A number that isn't finite is undefined there.  `images`: how many were used; 0: weights only.
    """

    numbers: Mapping[str, float]
    layers: Mapping[str, Sequence[Sequence[float]]]
    images: int = 0


def refuse_model(model: object, known: Sequence[type]) -> TypeError:
    """The error of an observation that isn't about this model."""
    names = ", ".join(one.__name__ for one in known)
    return TypeError(f"model is a {type(model).__name__}; this paper's observations are about {names}")
