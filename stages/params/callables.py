"""Finds what other packages offer: callables named `package.module:name`, and plugins, which have short names for them.

A callable's keywords are read in its source, without importing anything, because importing timm or transformers takes
seconds, and every command reads the parameters.  What the source doesn't show (an open `**keywords`, a module that
loads its names late) is checked when the callable is called.

A distribution declares a plugin by an entry point: `name = "package.module:object"` in the group `claimcheck.<kind>`.
The name means that address and nothing else, so run keys have the address and the version of its distribution.  A
malformed entry point is listed with its fault, and refused where params name it.
"""

from __future__ import annotations

import ast
import os
import random
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from stages.runs.fingerprint import find_spec_of

ADDRESS = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")
"""`package.module:name`."""


@dataclass(frozen=True)
class Keyword:
    kind: str
    required: bool


@dataclass(frozen=True)
class Signature:
    """Keywords by name; `is_open`: it accepts any others, too."""

    keywords: dict[str, Keyword]
    is_open: bool = False


class UnknownCallable(ValueError):
    """There is no such module or name; `known` are the module's names."""

    def __init__(self, what: str, known: list[str]) -> None:
        super().__init__(what)
        self.known = known


@cache
def signature_of(address: str) -> Signature:
    """Return the keywords of `package.module:name`: a class's constructor, or a function and the class that it returns.

    Raises:
        UnknownCallable: there is no such module, or it has no such name.
    """
    module, _, name = address.partition(":")
    if not ADDRESS.fullmatch(address):
        raise UnknownCallable("expected package.module:name", [])
    if find_spec_of(module) is None:
        raise UnknownCallable(f"{module} can't be found; install it, or put its folder on PYTHONPATH", [])
    if found := _find(module, name):
        return _read(*found)
    if _is_lazy(module) or name in (names := _names(module)):  # or what is assigned to it can't be read
        return Signature({}, is_open=True)
    raise UnknownCallable(f"{module} has no {name!r}", sorted(one for one in names if one[0] != "_"))


def first_parameters(address: str, count: int) -> list[str] | None:
    """Return a function's first parameters; None for a class, or if the source doesn't show them."""
    module, _, name = address.partition(":")
    found = _find(module, name)
    if found is None or isinstance(found[1], ast.ClassDef):
        return None
    return [*_of_function(found[1].args).keywords][:count]


@cache
def _body(module: str) -> list[ast.stmt]:
    """Return the top-level statements of a module's source, and those in its `if` and `try`; none without source."""
    spec = find_spec_of(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return []
    try:
        queue = ast.parse(Path(spec.origin).read_bytes(), spec.origin).body
    except ValueError as error:  # it isn't text
        raise SyntaxError(str(error), (spec.origin, None, None, None)) from None
    for node in queue:  # which grows meanwhile
        if isinstance(node, ast.If | ast.Try | ast.ExceptHandler):
            queue += [*node.body, *getattr(node, "orelse", []), *getattr(node, "handlers", [])]
    return queue


@cache
def _is_lazy(module: str) -> bool:
    """Return True if a module creates its names on demand, or has no source."""
    words = "\n".join(ast.unparse(node) for node in _body(module))
    return not words or "def __getattr__(" in words or "_LazyModule(" in words


def _imported(module: str) -> Iterator[tuple[ast.ImportFrom, str]]:
    """Return the `from … import` statements, each with the full name of its module."""
    spec = find_spec_of(module)
    is_package = spec is not None and spec.submodule_search_locations is not None
    package = module if is_package else module.rpartition(".")[0]
    for node in _body(module):
        if isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            yield node, ".".join([*parents, *([node.module] if node.module else [])])


def _find(module: str, name: str) -> tuple[str, ast.ClassDef | ast.FunctionDef] | None:
    """Return the definition of a name and its module: this one, or one that the name or a star is imported from."""
    for node in _body(module):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return module, node
    imports = [*_imported(module)]
    for statement, source in imports:
        for alias in statement.names:
            if (alias.asname or alias.name) == name:
                return _find(source, alias.name)
    for statement, source in imports if not _is_lazy(module) else ():
        if statement.names[0].name == "*" and source != module and (found := _find(source, name)):
            return found
    return None


def _names(module: str) -> set[str]:
    """Return the names that a module defines or imports, including star imports."""
    found = {node.name for node in _body(module) if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    for node in _body(module):
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for statement, source in _imported(module):
        is_star = statement.names[0].name == "*"
        found |= _names(source) if is_star else {alias.asname or alias.name for alias in statement.names}
    return found


def _read(module: str, node: ast.ClassDef | ast.FunctionDef) -> Signature:
    if isinstance(node, ast.FunctionDef):
        own = _of_function(node.args)
        returned = _class_named(module, node.returns) if own.is_open else None
        if returned is None:
            return own
        rest = _read(*returned)  # the function may pass some of them itself
        given = {name: Keyword(one.kind, False) for name, one in rest.keywords.items()}
        return Signature(given | own.keywords, rest.is_open)
    bases = [found for base in node.bases if (found := _class_named(module, base))]
    constructor = next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
    if constructor is not None:
        config = next((one for one in constructor.args.args if one.arg == "config"), None)
        if found := _class_named(module, config.annotation if config else None):  # as transformers' models have it
            return _of_config(*found)
        return _of_function(constructor.args, skip=1)
    return _read(*bases[0]) if bases else Signature({}, is_open=bool(node.bases))


def _of_config(module: str, node: ast.ClassDef) -> Signature:
    """Return the fields of a configuration class and its bases; all accept `num_labels`, which isn't a field."""
    found = {"num_labels": Keyword("int", False)}
    for base in [*filter(None, (_class_named(module, base) for base in node.bases))]:
        found |= _of_config(*base).keywords
    if any(isinstance(one, ast.FunctionDef) and one.name == "__init__" for one in node.body):
        return Signature(found | _read(module, node).keywords, is_open=True)
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
    own = {ast.unparse(one.target): Keyword(ast.unparse(one.annotation), one.value is None) for one in fields}
    return Signature(found | own)


def _of_function(arguments: ast.arguments, skip: int = 0) -> Signature:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + [*arguments.defaults]
    pairs = [
        *[*zip(positional, defaults, strict=True)][skip:],
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    keywords = {
        one.arg: Keyword(ast.unparse(one.annotation) if one.annotation else "Any", default is None)
        for one, default in pairs
    }
    return Signature(keywords, arguments.kwarg is not None)


def _class_named(module: str, node: ast.expr | None) -> tuple[str, ast.ClassDef] | None:
    """Return the class that an annotation or a base names, if its source can be found."""
    name = node.value if isinstance(node, ast.Constant) else node.id if isinstance(node, ast.Name) else None
    found = _find(module, name) if isinstance(name, str) else None
    return (found[0], found[1]) if found and isinstance(found[1], ast.ClassDef) else None


KINDS = ("models", "optimizers", "schedules", "losses", "transforms", "metrics", "tasks", "readers")


@dataclass(frozen=True, order=True)
class Plugin:
    """An object that a distribution offers; `address` is its `package.module:name`, or empty if there is a `fault`."""

    kind: str
    name: str
    distribution: str
    version: str
    address: str
    fault: str = ""

    def __str__(self) -> str:
        return f"{self.distribution} {self.version} ({self.address or self.fault})"


def find_plugins(*kinds: str) -> list[Plugin]:
    """Return the installed plugins of some kinds, without importing them."""
    return sorted({plugin for distribution in metadata.distributions() for plugin in _offered_by(distribution, kinds)})


def _offered_by(distribution: metadata.Distribution, kinds: Iterable[str]) -> Iterator[Plugin]:
    """Yield the plugins of a distribution, unless another one of its name comes before it on the path."""
    text, group = distribution.read_text("entry_points.txt") or "", ""
    if "[claimcheck." not in text:
        return
    owner, version = distribution.metadata["Name"] or "unknown", distribution.metadata["Version"] or "unknown"
    if owner != "unknown" and metadata.distribution(owner).read_text("entry_points.txt") != text:
        return
    for line in map(str.strip, text.splitlines()):  # importlib's parser gives up at the first malformed line
        if line.startswith("[") and line.endswith("]"):
            group = line.strip("[]")
        elif group in [f"claimcheck.{kind}" for kind in kinds] and line and not line.startswith("#"):
            name, _, value = line.partition("=")
            address = ":".join(part.strip() for part in value.partition("[")[0].split(":"))  # without extras
            fault = "" if ADDRESS.fullmatch(address) else f"{line!r}; expected {name.strip()} = package.module:object"
            kind = group.removeprefix("claimcheck.")
            yield Plugin(kind, name.strip(), owner, version, "" if fault else address, fault)


@contextmanager
def _kept_open(name: str) -> Iterator[None]:
    """Let closing this standard stream only flush it, and restore the stream if another took its place."""
    stream = getattr(sys, name)
    if stream is not None:  # as it is in a process that began without one
        close, stream.close = stream.close, stream.flush
    try:
        yield
    finally:
        if stream is not None:
            stream.close = close
        setattr(sys, name, stream)


@contextmanager
def restored() -> Iterator[None]:
    """Restore the folder, environment variables and standard streams after users' code in this block."""
    folder, variables = os.getcwd(), dict(os.environ)
    with _kept_open("stdout"), _kept_open("stderr"):
        try:
            yield
        finally:
            os.chdir(folder)
            if dict(os.environ) != variables:
                os.environ.clear()
                os.environ.update(variables)


@contextmanager
def isolated() -> Iterator[None]:
    """Seed the global generators for users' code in this block; restore them and the process's other states afterwards.

    PyTorch's are among them if it is imported before the block.
    """
    import numpy as np  # every command imports this module

    states: list[tuple[Callable[[], Any], Callable[[Any], object]]] = [
        (random.getstate, random.setstate),
        (np.random.get_state, np.random.set_state),
    ]
    if (torch := sys.modules.get("torch")) is not None:
        states += [
            (torch.get_rng_state, torch.set_rng_state),
            (torch.get_default_dtype, torch.set_default_dtype),
            (lambda: None, torch.set_default_device),  # ours sets none
            (torch.get_num_threads, torch.set_num_threads),
            (torch.is_grad_enabled, torch.set_grad_enabled),
            (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
            (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
        ]
    before = [read() for read, _ in states]
    with restored(), np.errstate(), np.printoptions(), warnings.catch_warnings():
        try:
            random.seed(0)
            np.random.seed(0)
            if torch is not None:
                torch.manual_seed(0)
            yield
        finally:
            for (_, restore), state in zip(states, before, strict=True):
                restore(state)


def describe_guest(error: BaseException) -> str:
    """Return the kind, the first line and the place of an error in users' code, or in a package that this called."""
    frames = traceback.extract_tb(error.__traceback__)
    place = next((one for one in reversed(frames) if "site-packages" not in one.filename), frames[-1])
    reason = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {reason}; {Path(place.filename).name}, line {place.lineno}"
