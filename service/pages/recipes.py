"""What a model of one experiment was trained by: its optimiser, and its network where a title names none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from service.pages.formats import exact
from stages.results import Experiment

OPTIMISERS = {"adam": "Adam", "adamw": "AdamW", "cg_fac": "CG-FAC", "kfac": "K-FAC", "sgd": "SGD"}


def recipes(experiment: Experiment) -> dict[str, str]:
    """`{arm: phrase}`, as "ViT, trained by Adam at a rate of 0.001".

    The network stands in it where several arms of the experiment train the same one and their titles don't name it.
    """
    models = [arm.model for arm in experiment.arms]
    found = {}
    for arm in experiment.arms:
        network = str(arm.model["name"])
        is_unnamed = models.count(arm.model) > 1 and _plain(network) not in _plain(arm.title)
        optimiser = _optimiser({**experiment.protocol, **arm.protocol}["optimizer"])
        found[arm.name] = f"{network + ', ' if is_unnamed else ''}trained by {optimiser}"
    return found


def _optimiser(settings: Mapping[str, Any]) -> str:
    """Adam at a rate of 0.001; CG-FAC at a rate of 0.01, elsewhere Adam at 0.001"""
    name = settings["name"]
    told = f"{OPTIMISERS.get(name, name)} at a rate of {exact(settings['lr'])}"
    if rest := settings.get("rest"):
        told += f", elsewhere {OPTIMISERS.get(rest, rest)} at {exact(settings['rest_lr'])}"
    return told


def _plain(title: str) -> str:
    return re.sub(r"[^a-z0-9]", "", title.lower())
