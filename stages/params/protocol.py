"""Reads the protocol of an experiment: its fields, their numbers, and what they contradict together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from stages.params.foreign import imported_optimizer, imported_recipe, imported_schedule
from stages.params.schema import ParamsError, out_of_range, validate
from stages.run import OptimizerSpec, Protocol

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
