"""Optimisers and transforms of other packages, as a file's protocol names them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.params.schema import ParamsError, check_keywords
from stages.run import RecipeSpec

_OURS = ("lr", "weight_decay", "decay", "clip_norm")
_OF_TORCH = {"adam": ("Adam", "betas"), "adamw": ("AdamW", "betas"), "sgd": ("SGD", "momentum")}


def imported_optimizer(fields: Mapping[str, Any], path: Path, key_path: str) -> Mapping[str, Any]:
    """The fields of an optimiser that a file names by `package.module:name`, or of one of ours with clipped gradients.

    Others stay as they are.
    """
    name, address = str(fields.get("name")), str(fields.get("name"))
    arguments = {key: value for key, value in fields.items() if key not in ("name", *_OURS)}
    if name in _OF_TORCH and fields.get("clip_norm") is not None:
        address, own = f"torch.optim:{_OF_TORCH[name][0]}", _OF_TORCH[name][1]
        if all(value is None for key, value in arguments.items() if key not in ("betas", "momentum")):
            arguments = {own: list(arguments[own]) if own == "betas" else arguments[own]} if own in arguments else {}
    elif ":" not in name:
        return fields
    if address == "torch.optim:LBFGS":
        raise ParamsError(f"{path}: {key_path}.name is {name!r}, which needs several passes a step; the loop makes one")
    check_keywords(address, arguments, path, key_path)
    ours = {key: fields[key] for key in _OURS if key in fields}
    return {"name": "imported", "address": address, "arguments": arguments, **ours}


def check_recipe(recipe: RecipeSpec, path: Path, key_path: str) -> None:
    """Check the names and keywords of a recipe's transforms.

    Raises:
        ParamsError: torchvision has no such transform, or it takes no such keyword.
    """
    for part in ("transforms", "mix"):
        for index, one in enumerate(getattr(recipe, part) or ()):
            given = {key: value for key, value in one.items() if key != "name"}
            check_keywords(f"torchvision.transforms.v2:{one.get('name')}", given, path, f"{key_path}.{part}.{index}")
