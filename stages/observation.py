"""Measurements inside a trained network, made by a paper's own `observations` module.

A paper with claims about trained networks has a module `stages.papers.<paper>.observations`.  It has `MODELS`, the
classes of networks that it can measure, and `observe(model, images)`, with normalised images [B, C, S, S] and the
model in evaluation mode.  If `observe` has a third parameter `labels`, it gets the classes, int64 [B].  `IMAGES`, if
given, is the number of test images that it needs (None: all).  `evaluate` runs it on every trained network of these
classes, and finds the modules by their folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Measurements inside a network: `numbers` by metric, and `layers` by quantity, per block and head [L][H].

    H is 1 if a block has no heads.  A number that isn't finite is undefined.  `images` is the number of images used, 0
    if only weights were.
    """

    numbers: Mapping[str, float]
    layers: Mapping[str, Sequence[Sequence[float]]]
    images: int = 0


def refuse_model(model: object, known: Sequence[type]) -> TypeError:
    """Return the error of an observation that can't measure this model."""
    names = ", ".join(one.__name__ for one in known)
    return TypeError(f"model is a {type(model).__name__}; this paper's observations are about {names}")
