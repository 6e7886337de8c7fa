"""One folder per paper, which registers the paper; its `__all__` names the paper's models."""

from __future__ import annotations

import ast
import importlib
import inspect
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from stages.run import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor, nn

    from stages.observation import Observed


class Observations(Protocol):
    """The module `observations` of a paper (`stages.observation`)."""

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
