"""One folder per paper, which registers the paper; its `__all__` names the paper's models.

A paper with claims about trained networks has a module `observations`.  It has `MODELS`, the classes of networks that
it can measure, and `observe(model, images)`, with normalised images [B, C, S, S] and the model in evaluation mode.  If
`observe` has a third parameter `labels`, it gets the classes, int64 [B].  `IMAGES`, if given, is the number of test
images that it needs (None: all).  `evaluate` runs it on every trained network of these classes.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from stages.run import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor, nn


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


class Observations(Protocol):
    """The module `observations` of a paper."""

    MODELS: tuple[type[nn.Module], ...]

    def observe(self, model: nn.Module, images: Tensor) -> Observed: ...


@cache
def model_paths() -> tuple[str, ...]:
    """List `module:Class` of every model that a paper's package imports and names in `__all__`, without importing."""
    paths: set[str] = set()
    for package in Path(__file__).parent.glob("*/__init__.py"):
        body = ast.parse(package.read_text()).body
        exported = {
            name
            for node in body
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
            for name in ast.literal_eval(node.value)
        }
        for node in body:
            if isinstance(node, ast.ImportFrom):
                paths.update(f"{node.module}:{alias.name}" for alias in node.names if alias.name in exported)
    return tuple(sorted(paths))


def build_model(spec: ModelSpec) -> nn.Module:
    """Build the model that `spec` names, initialised from torch's global generator.

    Only names in `model_paths` are ever imported, so a spec from elsewhere can't run foreign code.

    Raises:
        ValueError: `spec.path` is not the path of a model, or the constructor rejects a value.
        TypeError: an argument is unknown or missing; the message names it.
    """
    if spec.path not in (known := model_paths()):
        raise ValueError(f"model path is {spec.path!r}; known: {', '.join(known)}")
    module, _, name = spec.path.partition(":")
    model_class = getattr(importlib.import_module(module), name)
    keywords = inspect.signature(model_class).parameters
    unknown = [key for key in spec.arguments if key not in keywords]
    missing = [
        key for key, keyword in keywords.items() if keyword.default is keyword.empty and key not in spec.arguments
    ]
    for problem, keys in (("unknown", unknown), ("missing", missing)):
        if keys:
            raise TypeError(f"{spec.path}: {problem} argument {', '.join(keys)}; it takes {', '.join(keywords)}")
    return model_class(**spec.arguments)


def find_observations(spec: ModelSpec) -> Observations | None:
    """Return the paper's module of observations inside trained networks; None if it doesn't cover the model.

    Raises:
        ValueError: `spec.path` is not the path of a model.
    """
    if spec.path not in model_paths():
        raise ValueError(f"model path is {spec.path!r}; known: {', '.join(model_paths())}")
    module, _, name = spec.path.partition(":")
    paper = module.split(".")[2]
    if not (Path(__file__).parent / paper / "observations.py").is_file():
        return None
    observations: Observations = importlib.import_module(f"stages.papers.{paper}.observations")
    is_about = issubclass(getattr(importlib.import_module(module), name), observations.MODELS)
    return observations if is_about else None
