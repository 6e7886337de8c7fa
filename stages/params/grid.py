"""Expands the arms of an experiment file: what one inherits from another, and grids.

    resnet{depth}: {role: baseline, title: "ResNet{depth}", grid: {depth: [20, 32]}, model: {name: ResNetV1, width: 16}}

stands for two arms, resnet20 and resnet32, whose models get `depth` as a keyword.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Role = Literal["baseline", "proposed", "ablation", "sensitivity"]


class ArmTemplate(BaseModel):
    """An arm as the file has it.

    `like` names an arm above, whose model and protocol hold where this one says nothing; `against` the arm that it is
    compared with; `grid` has lists of values of the model's keywords, every combination of which is an arm.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    role: Role
    title: str
    like: str | None = None
    against: str | None = None
    grid: dict[str, list[Any]] = {}
    model: dict[str, Any] = {}
    protocol: dict[str, Any] = {}


def expand_arms(templates: Mapping[str, ArmTemplate]) -> dict[str, ArmTemplate]:
    """Arms by name, in the order of the file, without `like` and `grid`.

    Raises:
        ValueError: a name twice, an unknown name after `like` or `against`, or a name in braces that no grid has.
    """
    arms: dict[str, ArmTemplate] = {}
    for pattern, template in templates.items():
        for values in _combinations(template.grid):
            name, title, like, against = (
                _fill(text, values, pattern) for text in (pattern, template.title, template.like, template.against)
            )
            assert name is not None and title is not None, "only like and against may be left out"
            if name in arms:
                raise ValueError(f"arms.{pattern}: {name} stands twice; its name needs every key of its grid in braces")
            if like is not None and like not in arms:
                raise ValueError(f"arms.{pattern}.like is {like!r}; known above it: {', '.join(arms)}")
            base = arms[like] if like is not None else None
            arms[name] = ArmTemplate(
                role=template.role,
                title=title,
                against=against,
                model={**(base.model if base else {}), **template.model, **values},
                protocol={**(base.protocol if base else {}), **template.protocol},
            )
    for name, arm in arms.items():
        if arm.against is not None and arm.against not in arms:
            raise ValueError(f"arms.{name}.against is {arm.against!r}; known: {', '.join(arms)}")
    return arms


def _combinations(grid: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _fill(text: str | None, values: Mapping[str, Any], pattern: str) -> str | None:
    try:
        return None if text is None else text.format(**values)
    except (KeyError, IndexError, ValueError):
        raise ValueError(f"arms.{pattern}: {text!r} has braces for {', '.join(values) or 'no grid'} only") from None
