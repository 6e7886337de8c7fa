"""Models and their keywords as written in the source: an arm's block is checked without loading torch."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from stages.papers import model_paths
from stages.params.schema import ParamsError, check_choice, hint
from stages.runs.fingerprint import source_path


def known_papers() -> list[str]:
    """Folders of `stages/papers`: the listing is the registry."""
    folder = Path(__file__).parent.parent / "papers"
    return sorted(path.parent.name for path in folder.glob("*/__init__.py"))


FROM_DATASET = ("image_size", "in_channels", "num_classes", "in_features", "context")


def model_path(paper: str, model: Mapping[str, Any], path: Path, key_path: str) -> str:
    """`module:Class` of an arm's model, its keywords checked against the constructor in the source.

    A paper's models are the classes that its package imports by `from … import Name` and lists in `__all__`.
    """
    modules = (known.split(":") for known in model_paths() if known.startswith(f"stages.papers.{paper}."))
    classes = {name: module for module, name in modules}
    if "name" not in model:
        raise ParamsError(f"{path}: {key_path}.name is missing; known: {', '.join(sorted(classes))}")
    check_choice(model["name"], classes, path, f"{key_path}.name")
    module = classes[model["name"]]
    signature = keyword_types(module, model["name"])
    wanted = {key: kind for key, kind in signature.items() if key not in FROM_DATASET}
    for key, value in model.items():
        if key == "name":
            continue
        if key not in wanted:
            raise ParamsError(f"{path}: unknown key {key_path}.{key}{hint(key, sorted(wanted))}")
        _check_type(value, wanted[key].kind, path, f"{key_path}.{key}")
    for key, parameter in wanted.items():
        if parameter.required and key not in model:
            raise ParamsError(f"{path}: {key_path}.{key} is missing; {model['name']} takes {', '.join(wanted)}")
    return f"{module}:{model['name']}"


@dataclass(frozen=True)
class Keyword:
    kind: str
    required: bool


@cache
def keyword_types(module: str, class_name: str) -> dict[str, Keyword]:
    """Keywords of a class's constructor, or of the first base that has one, as written in the source."""
    path = source_path(module)
    if path is None:
        return {}
    body = ast.parse(path.read_text(encoding="utf-8")).body
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                    pairs = zip(item.args.kwonlyargs, item.args.kw_defaults, strict=True)
                    return {
                        arg.arg: Keyword(ast.unparse(arg.annotation) if arg.annotation else "Any", default is None)
                        for arg, default in pairs
                    }
            return keyword_types(module, ast.unparse(node.bases[0])) if node.bases else {}
        if isinstance(node, ast.ImportFrom) and class_name in (alias.name for alias in node.names):
            return keyword_types(node.module or "", class_name)
    return {}


def _check_type(value: Any, kind: str, path: Path, key_path: str) -> None:
    accepted: dict[str, type | tuple[type, ...]] = {"int": int, "float": (int, float), "bool": bool, "str": str}
    wanted = accepted.get(kind)
    if wanted is None:
        return
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind != "bool"):
        raise ParamsError(f"{path}: {key_path} is {value!r}; expected {kind}")
