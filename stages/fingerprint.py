"""Digest of the code that a run executes: `{module: sha256 of its source}` over a static import closure.

Comments, docstrings and blank lines don't count, so that explaining the code invalidates nothing.  The source's own
text is hashed, not a dumped syntax tree or a list of tokens: both differ between Python 3.11 and 3.13.  Fast paths
(`*_native.py`) answer to their reference by test and are left out; so is `stages.run`, whose values are in the key.
"""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from stages import LOADED

PACKAGE_ROOT = Path(__file__).resolve().parent.parent

# What a run executes besides its model, each with everything that it imports: the loop and the task of its data.
TRAINING_ROOTS = {
    "images": ("stages.training.loop", "stages.training.images"),
    "table": ("stages.training.loop", "stages.training.tables"),
    "text": ("stages.training.loop", "stages.training.tokens"),
}

_KEYED_BY_VALUE = {"stages.run"}


def source_path(module: str) -> Path | None:
    """File of one of our modules, or None where the name is not ours (or is a package without a file of its own)."""
    base = PACKAGE_ROOT.joinpath(*module.split("."))
    for candidate in (base.with_suffix(".py"), base / "__init__.py"):
        if module.split(".")[0] == "stages" and candidate.is_file():
            return candidate
    return None


def significant_text(source: str) -> str:
    """`source` without comments, docstrings and blank lines; what is left stands as written."""
    lines = [line.encode() for line in source.splitlines()]  # syntax trees count columns in bytes
    for (first, start), (last, end) in sorted(_insignificant_spans(source), reverse=True):
        lines[first - 1 : last] = [lines[first - 1][:start] + lines[last - 1][end:]]
    return "\n".join(text for line in lines if (text := line.decode().rstrip()))


Span = tuple[tuple[int, int], tuple[int, int]]


def _insignificant_spans(source: str) -> list[Span]:
    """(line, byte column) of the start and the end of each comment and docstring."""
    lines = source.splitlines()
    spans: list[Span] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            (line, start), (_, end) = token.start, token.end
            text = lines[line - 1]
            spans.append(((line, len(text[:start].encode())), (line, len(text[:end].encode()))))
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, holders) and node.body and isinstance(node.body[0], ast.Expr):
            value = node.body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                assert value.end_lineno is not None and value.end_col_offset is not None, "parsed nodes have an end"
                spans.append(((value.lineno, value.col_offset), (value.end_lineno, value.end_col_offset)))
    return spans


@cache
def imported_modules(module: str) -> set[str]:
    """Our modules that `module` imports anywhere in its file, by reading it."""
    path = source_path(module)
    if path is None:
        return set()
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name for name in found if source_path(name) is not None}


def import_closure(roots: Iterable[str]) -> set[str]:
    """`roots` and everything of ours that they import, directly or not, without fast paths."""
    return reachable(roots, lambda module: [name for name in imported_modules(module) if not name.endswith("_native")])


def reachable(roots: Iterable[str], next_of: Callable[[str], Iterable[str]]) -> set[str]:
    """`roots` and everything that `next_of` leads to from them."""
    seen: set[str] = set()
    queue = list(roots)
    while queue:
        module = queue.pop()
        if module not in seen:
            seen.add(module)
            queue.extend(next_of(module))
    return seen


def source_digest(source: str) -> str:
    """Sixteen hexadecimal digits over the source's significant text."""
    return hashlib.sha256(significant_text(source).encode()).hexdigest()[:16]


@cache
def module_digest(path: Path) -> str:
    return source_digest(path.read_text())


def code_fingerprint(roots: Iterable[str]) -> dict[str, str]:
    """`{module: digest}` over the import closure of `roots`, without modules that hold no code.

    Raises:
        ModuleNotFoundError: a root is not a module of ours.
    """
    roots = list(roots)
    for root in roots:
        if source_path(root) is None:
            raise ModuleNotFoundError(f"{root} is not a module below {PACKAGE_ROOT.name}/stages")
    paths = {module: source_path(module) for module in sorted(import_closure(roots) - _KEYED_BY_VALUE)}
    digests = {module: module_digest(path) for module, path in paths.items() if path is not None}
    return {module: digest for module, digest in digests.items() if digest != source_digest("")}


@cache
def training_code(kind: str, model_path: str, optimizer: str) -> Mapping[str, str]:
    """Fingerprint of a training's code; an optimiser of ours is the module that bears its name.

    Raises:
        ModuleNotFoundError: the model's module is not one of ours.
    """
    own = f"stages.optim.{optimizer}"
    return code_fingerprint([*TRAINING_ROOTS[kind], model_path.split(":")[0], *([own] if source_path(own) else [])])


def kind_of(spec: Mapping[str, Any]) -> str:
    """Which kind of data a spec is of: images have a mean by channel, the model of a text its context."""
    if spec["protocol"].get("mean"):
        return "images"
    return "text" if "context" in spec["model"]["arguments"] else "table"


def code_today(spec: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Fingerprint that the training of `spec` has in this tree, whatever its own says; None where its model is gone."""
    try:
        return training_code(kind_of(spec), spec["model"]["path"], spec["protocol"]["optimizer"]["name"])
    except ModuleNotFoundError:
        return None


def changed_modules(spec: Mapping[str, Any]) -> list[str]:
    """Modules of a run's fingerprint whose source is another one now, or gone, and those that it lacks."""
    code, today = spec["code"], code_today(spec)
    paths = {module: source_path(module) for module in code}
    changed = {module for module, path in paths.items() if path is None or module_digest(path) != code[module]}
    return sorted(changed | (set(today or code) - set(code)))


def unlike_loaded(code: Mapping[str, str]) -> list[str]:
    """Modules of a run's fingerprint that this process has loaded from another source: what it runs isn't that code."""
    return sorted(
        module for module, digest in code.items() if module in LOADED and _digest_of(LOADED[module]) != digest
    )


@cache
def _digest_of(source: bytes) -> str:
    """A slot asks for the same modules at every run that it trains."""
    return source_digest(source.decode())
