"""Reads the protocol of an experiment: its fields, their numbers, and what they contradict together.

Optimisers, schedules and transforms may be those of other packages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter

from stages.params.callables import UnknownCallable, signature_of
from stages.params.schema import ParamsError, address_of, check_keywords, out_of_range, validate
from stages.run import OptimizerSpec, Protocol, RecipeSpec, ScheduleSpec

# Fields of the optimisers of `stages.optim`: those that are not set unless a file sets them.
_FIRST_ORDER_HAS_NO = tuple(
    field.name
    for field in dataclasses.fields(OptimizerSpec)
    if field.default is None and field.name not in ("decay", "clip_norm", "address", "arguments")
)


@cache
def protocol_schema() -> TypeAdapter[Protocol]:
    return TypeAdapter(Protocol)


def read_protocol(fields: Mapping[str, Any], path: Path, key_path: str) -> Protocol:
    """Read a protocol whose numbers allow training; the split's numbers are also checked together."""
    if isinstance(fields.get("optimizer"), Mapping):
        fields = {**fields, "optimizer": imported_optimizer(fields["optimizer"], path, f"{key_path}.optimizer")}
    if isinstance(fields.get("schedule"), Mapping):
        fields = {**fields, "schedule": imported_schedule(fields["schedule"], path, f"{key_path}.schedule")}
    protocol = validate(protocol_schema(), fields, path, key_path)
    if wrong := out_of_range(protocol):
        name, value, expected = wrong
        raise ParamsError(
            f"{path}: {key_path}.{name} is {list(value) if isinstance(value, tuple) else value}; {expected}"
        )
    split = protocol.split
    if split.kind == "folds" and (split.folds is None or split.folds < 2):
        raise ParamsError(f"{path}: {key_path}.split.folds is {split.folds}; expected at least 2")
    if split.kind == "fraction" and (split.fraction is None or not 0 < split.fraction < 1):
        raise ParamsError(f"{path}: {key_path}.split.fraction is {split.fraction}; expected a number between 0 and 1")
    optimizer = protocol.optimizer
    idle = [name for name in _FIRST_ORDER_HAS_NO if getattr(optimizer, name) is not None]
    if optimizer.name in ("adam", "adamw", "sgd") and idle:
        raise ParamsError(f"{path}: {key_path}.optimizer.{idle[0]} is set, but {optimizer.name} doesn't use it")
    if optimizer.name != "imported" and optimizer.clip_norm is not None:
        raise ParamsError(f"{path}: {key_path}.optimizer.clip_norm is set, but {optimizer.name} doesn't use it")
    if (optimizer.name == "imported") != (optimizer.address is not None):
        raise ParamsError(f"{path}: {key_path}.optimizer.name is {optimizer.name!r}; write its package.module:name")
    if protocol.recipe is not None:
        recipe = imported_recipe(protocol.recipe, path, f"{key_path}.recipe")
        protocol = dataclasses.replace(protocol, recipe=recipe)
    if protocol.contradiction and not key_path.startswith("profiles"):  # a profile may suit other experiments
        raise ParamsError(f"{path}: {key_path}: {protocol.contradiction}")
    schedule = protocol.schedule
    if (schedule.name == "imported") != (schedule.address is not None):
        raise ParamsError(f"{path}: {key_path}.schedule.name is {schedule.name!r}; write its package.module:name")
    if schedule.name == "steps" and (not schedule.milestones or schedule.factor is None):
        raise ParamsError(
            f"{path}: {key_path}.schedule is 'steps'; it needs milestones (parts of the run) and a factor"
        )
    if protocol.early_stop is not None and split.kind == "none":
        raise ParamsError(
            f"{path}: {key_path}.early_stop looks at validation images, but {key_path}.split.kind is 'none'"
        )
    return protocol


_OURS = ("lr", "weight_decay", "decay", "clip_norm")
_OPTIMIZERS, _SCHEDULES = (get_args(get_type_hints(spec)["name"]) for spec in (OptimizerSpec, ScheduleSpec))
_TRANSFORMS = "torchvision.transforms.v2"
_OF_TORCH = {"adam": ("Adam", "betas"), "adamw": ("AdamW", "betas"), "sgd": ("SGD", "momentum")}


def imported_optimizer(fields: Mapping[str, Any], path: Path, key_path: str) -> Mapping[str, Any]:
    """Return the fields of an optimiser from another package, or of one of ours with clipped gradients.

    Others stay as they are.
    """
    name, address = str(fields.get("name")), str(fields.get("name"))
    arguments = {key: value for key, value in fields.items() if key not in ("name", *_OURS)}
    if name in _OF_TORCH and fields.get("clip_norm") is not None:
        address, own = f"torch.optim:{_OF_TORCH[name][0]}", _OF_TORCH[name][1]
        if all(value is None for key, value in arguments.items() if key not in ("betas", "momentum")):
            arguments = {own: list(arguments[own]) if own == "betas" else arguments[own]} if own in arguments else {}
    elif name in _OPTIMIZERS or "name" not in fields:
        return fields
    else:
        address = address_of("optimizers", name, set(_OPTIMIZERS) - {"imported"}, path, f"{key_path}.name")
    if address == "torch.optim:LBFGS":
        raise ParamsError(
            f"{path}: {key_path}.name is {name!r}, which needs several passes per step; the loop makes one"
        )
    check_keywords(address, arguments, path, key_path)
    ours = {key: fields[key] for key in _OURS if key in fields}
    return {"name": "imported", "address": address, "arguments": arguments, **ours}


def imported_schedule(fields: Mapping[str, Any], path: Path, key_path: str) -> Mapping[str, Any]:
    """Return the fields of a schedule from another package; ours are returned unchanged."""
    name = str(fields.get("name", "constant"))
    if name in _SCHEDULES:
        return fields
    address = address_of("schedules", name, set(_SCHEDULES) - {"imported"}, path, f"{key_path}.name")
    if address.endswith(":ReduceLROnPlateau"):
        raise ParamsError(
            f"{path}: {key_path}.name is {name!r}, which depends on a metric; expected a schedule of the step alone"
        )
    arguments = {key: value for key, value in fields.items() if key != "name"}
    check_keywords(address, arguments, path, key_path, given=("optimizer", "last_epoch"))
    return {"name": "imported", "address": address, "arguments": arguments}


def imported_recipe(recipe: RecipeSpec, path: Path, key_path: str) -> RecipeSpec:
    """Return the recipe with the address of its loss, and of each transform that isn't torchvision's.

    Raises:
        ParamsError: there is no such loss or transform, it takes no such keyword, or it is listed with the wrong ones.
    """
    found: dict[str, Any] = {}
    for part in ("transforms", "mix"):
        for index, one in enumerate(getattr(recipe, part) or ()):
            place, name, given = f"{key_path}.{part}.{index}", str(one.get("name")), dict(one)
            given.pop("name", None)
            address = name if ":" in name else f"{_TRANSFORMS}:{name}"
            try:
                signature_of(address)
            except UnknownCallable as error:
                if ":" not in name:
                    name = address = address_of("transforms", name, error.known, path, f"{place}.name")
            check_keywords(address, given, path, place)
            mixes = "num_classes" in signature_of(address).keywords
            if mixes != (part == "mix"):
                other = "mix, because it mixes images" if mixes else "transforms, because it mixes no images"
                raise ParamsError(f"{path}: {place}.name is {name!r}, which belongs in {key_path}.{other}")
            found[part] = (*found.get(part, ()), {**one, "name": name})
    if recipe.loss is not None:
        address = address_of("losses", str(recipe.loss.get("name")), (), path, f"{key_path}.loss.name")
        given = {key: value for key, value in recipe.loss.items() if key != "name"}
        check_keywords(address, given, path, f"{key_path}.loss")
        if recipe.label_smoothing is not None or recipe.class_weights is not None:
            raise ParamsError(f"{path}: {key_path}.loss is set; leave out label_smoothing and class_weights")
        found["loss"] = {**given, "name": address}
    return dataclasses.replace(recipe, **found)


def check_recipe(recipe: RecipeSpec, source: Any, path: Path) -> None:
    """Check that all of a recipe is defined for the task of a data set of images.

    Raises:
        ParamsError: something isn't.
    """
    if (task := source.task) is None:
        return
    learns = "it has a task_class, which defines the loss" if source.task_class else ""
    has_masks, mixed = task == "segmentation", [str(one["name"]) for one in recipe.mix or ()]
    foreign = [str(one["name"]) for one in recipe.transforms or () if ":" in str(one["name"])]
    wrong = [
        (task == "regression" and recipe.class_weights, "class_weights", "numbers have no classes"),
        (not has_masks and recipe.label_smoothing, "label_smoothing", "it is for one class of several"),
        (has_masks and mixed, "mix", "mixed pictures have no mask"),
        ({*mixed} - {"MixUp"}, "mix", "only MixUp mixes labels and numbers in the same proportions as pictures"),
        (has_masks and foreign, "transforms", "only those of torchvision are known to move masks with their pictures"),
        (has_masks and recipe.loss, "loss", "it doesn't know which pixels count"),
        *((learns and getattr(recipe, name), name, learns) for name in ("class_weights", "label_smoothing", "loss")),
    ]
    for is_wrong, field, reason in wrong:
        if is_wrong:
            raise ParamsError(f"{path}: protocol.recipe.{field} is set, but the data are for {task}: {reason}")
