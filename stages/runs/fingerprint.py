"""Computes the digest of the code that a run executes: `{module: sha256 of its source}` over a static import closure.

Everything that a run imports is included, wherever it is.  Comments, docstrings and blank lines don't count, so that
better comments invalidate nothing.  The digest is over the source text and not over a syntax tree or tokens, because
both differ between Python 3.11 and 3.13.  Fast paths (`stages.ops.fast`) are left out, because they are tested against
their equation, and so is `stages.run`, whose values are in the key.  An installed package that a run's code imports has
its version instead of a digest: `timm==1.0.31`.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import io
import os
import sys
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from stages import LOADED, is_installed, papers_folder
from stages.run import IMPORTED_MODEL

PACKAGE_ROOT = Path(__file__).resolve().parent.parent.parent

# A run executes these modules in addition to its model's, with everything that they import, by kind of data.
TRAINING_ROOTS = {
    "images": ("stages.training.session", "stages.training.images"),
    "table": ("stages.training.session", "stages.training.tables"),
    "text": ("stages.training.session", "stages.training.tokens"),
}

_FAST = "stages.ops.fast"
_KEYED_BY_VALUE = {"stages.run"}
# Their imports aren't followed: the first two choose among modules, and the chosen one is a root; the last imports only
# what its error messages need.
CHOOSING = {"stages.training.kinds", "stages.papers", "stages.datasets.packed"}
_PINNED = {"torch", "numpy", "safetensors"} | sys.stdlib_module_names  # needn't be searched for


def source_path(module: str) -> Path | None:
    """Return the file of a module of ours or a user's; None if it is installed, has no file, or isn't a module."""
    top, *names = module.split(".")
    if top != "stages":
        spec = None if is_pinned(top) else find_spec_of(module)
        return None if spec is None or not spec.has_location or spec.origin is None else Path(spec.origin)
    bases = [PACKAGE_ROOT.joinpath(top, *names)]
    if names[:1] == ["papers"] and names[1:]:
        bases.insert(0, papers_folder().joinpath(*names[1:]))
    candidates = [path for base in bases for path in (base.with_suffix(".py"), base / "__init__.py")]
    return next((path for path in candidates if path.is_file()), None)


@cache
def is_pinned(module: str) -> bool:
    """Return True if a module comes with Python or an installed package; False if it can't be found."""
    top = module.partition(".")[0]
    spec = None if top in _PINNED else _find(top)
    if spec is None:
        return top in _PINNED
    places = [spec.origin] if spec.has_location else [*(spec.submodule_search_locations or [])]
    return all(place is not None and is_installed(f"{place}{os.sep}") for place in places)


def find_spec_of(module: str) -> ModuleSpec | None:
    """Find a module's spec without importing anything."""
    names = module.split(".")
    spec = _find(names[0])
    for depth in range(2, len(names) + 1):
        if spec is None or spec.submodule_search_locations is None:
            return None
        places = list(spec.submodule_search_locations)
        if names[: depth - 1] == ["stages", "papers"]:
            places.insert(0, str(papers_folder()))
        spec = PathFinder.find_spec(".".join(names[:depth]), places)
    return spec


@cache
def _find(top: str) -> ModuleSpec | None:
    """Find as an import would, or next to `stages`."""
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # ValueError: `sys.modules` has an object that was never imported
        found = None
    return found or PathFinder.find_spec(top, [str(PACKAGE_ROOT)])


def significant_text(source: str) -> str:
    """Return `source` without comments, docstrings and blank lines; the rest is unchanged."""
    texts = source.splitlines()
    lines = [text.encode() for text in texts]  # syntax trees count columns in bytes
    spans = list[tuple[tuple[int, int], tuple[int, int]]]()  # line and column of the start and the end
    for token in tokenize.generate_tokens(io.StringIO(source).readline) if "#" in source else ():
        if token.type == tokenize.COMMENT:
            (line, start), (_, end) = token.start, token.end
            first, last = (len(texts[line - 1][:column].encode()) for column in (start, end))
            spans.append(((line, first), (line, last)))
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    tree = _tree(source)
    for node in (tree, *_statements(tree)):
        if isinstance(node, holders) and node.body and isinstance(node.body[0], ast.Expr):
            value = node.body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                assert value.end_lineno is not None and value.end_col_offset is not None, "parsed nodes have an end"
                spans.append(((value.lineno, value.col_offset), (value.end_lineno, value.end_col_offset)))
    for (first, start), (last, end) in sorted(spans, reverse=True):
        lines[first - 1 : last] = [lines[first - 1][:start] + lines[last - 1][end:]]
    return "\n".join(text for line in lines if (text := line.decode().rstrip()))


@cache
def _tree(source: str) -> ast.Module:
    return ast.parse(source)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield every statement within a node, and the clauses that contain statements."""
    for field in ("body", "handlers", "cases", "orelse", "finalbody"):
        inside = getattr(node, field, ())
        for inner in inside if isinstance(inside, list) else ():
            yield inner
            yield from _statements(inner)


@cache
def imported_modules(module: str) -> set[str]:
    """Return the modules, ours or a user's, that `module` imports anywhere in its file; found without importing it.

    The import of any module of a user's package runs the package's own file first, so that is included.
    """
    found = {name for imported in _imports(module) for name in (imported.module, *imported.names)}
    for parts in [name.split(".") for name in found if not name.startswith("stages.")]:
        found |= {".".join(parts[:count]) for count in range(1, len(parts))}
    return {name for name in found if source_path(name) is not None}


@dataclass(frozen=True)
class _Import:
    """A module that an import statement names; `names` that it imports from there, which may be modules, too.

    An import is optional if the code handles its failure.
    """

    module: str
    names: tuple[str, ...]
    is_optional: bool


@cache
def _imports(module: str) -> tuple[_Import, ...]:
    path = source_path(module)
    if path is None or path.suffix != ".py":
        return ()
    statements, found = [*_statements(_tree(_source(path)))], []
    optional = {id(inner) for node in statements if _may_fail(node) for inner in _statements(node)}
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in statements:
        if isinstance(node, ast.Import):
            found += [_Import(alias.name, (), id(node) in optional) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            name = ".".join([*parents, *([node.module] if node.module else [])])
            found.append(_Import(name, tuple(f"{name}.{alias.name}" for alias in node.names), id(node) in optional))
    return tuple(found)


def _may_fail(node: ast.AST) -> bool:
    """Return True for a `try` that handles failed imports, and for code that only a type checker reads."""
    if isinstance(node, ast.Try):
        caught = {name for handler in node.handlers for name in ast.unparse(handler.type or node).split()}
        return any("ImportError" in name or "ModuleNotFoundError" in name for name in caught)
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def import_closure(roots: Iterable[str]) -> set[str]:
    """Return `roots` and everything that they import, directly or not, except installed packages and fast paths."""
    return reachable(
        roots,
        lambda module: [] if module in CHOOSING else [name for name in imported_modules(module) if not is_fast(name)],
    )


def is_fast(module: str) -> bool:
    """Return True for the package of fast paths and its modules, which are in no run key."""
    return f"{module}.".startswith(f"{_FAST}.")


def _is_module(name: str) -> bool:
    """Return True if there is such a module, or a package without a file of its own."""
    if source_path(name) is not None:
        return True
    if name.startswith("stages."):
        return PACKAGE_ROOT.joinpath(*name.split(".")).is_dir()
    return find_spec_of(name) is not None


def reachable(roots: Iterable[str], next_of: Callable[[str], Iterable[str]]) -> set[str]:
    """Return `roots` and everything that can be reached from them by `next_of`."""
    seen: set[str] = set()
    queue = list(roots)
    while queue:
        module = queue.pop()
        if module not in seen:
            seen.add(module)
            queue.extend(next_of(module))
    return seen


@cache
def source_digest(source: str) -> str:
    """Return sixteen hexadecimal digits over the source's significant text."""
    return hashlib.sha256(significant_text(source).encode()).hexdigest()[:16]


@cache
def module_digest(path: Path) -> str:
    """Return the digest of the source, or of a compiled module's bytes, because its source is unknown."""
    if path.suffix != ".py":
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return source_digest(_source(path))


@cache
def _source(path: Path) -> str:
    """Read a module's source.

    Raises:
        SyntaxError: it can't be parsed, or isn't text; the error names the file.
    """
    try:
        source = path.read_text(encoding="utf-8")
        _tree(source)
    except UnicodeDecodeError as error:
        raise SyntaxError(f"not UTF-8 at byte {error.start}", (str(path), None, None, None)) from None
    except SyntaxError as error:
        error.filename = str(path)
        raise
    return source


def code_fingerprint(roots: Iterable[str]) -> dict[str, str]:
    """Return `{module: digest}` over the import closure of `roots`, without modules that contain no code.

    Raises:
        ModuleNotFoundError: a root isn't a module, or an imported module can't be found.
    """
    roots = list(roots)
    for root in roots:
        if source_path(root) is None and (not is_pinned(root) or root.partition(".")[0] in sys.stdlib_module_names):
            raise ModuleNotFoundError(f"{root} is not a module below {PACKAGE_ROOT.name}/stages")
    closure = import_closure(roots) - _KEYED_BY_VALUE
    for module in sorted(closure):
        for imported in _imports(module):
            if not imported.is_optional and not is_pinned(imported.module) and not _is_module(imported.module):
                raise ModuleNotFoundError(
                    f"{source_path(module)}: imports {imported.module}, which can't be found, so the code that would "
                    "run is unknown: install it, put its folder on PYTHONPATH, or put it next to stages"
                )
    paths = {module: source_path(module) for module in sorted(closure)}
    digests = {module: module_digest(path) for module, path in paths.items() if path is not None}
    found = {module: digest for module, digest in digests.items() if digest != source_digest("")}
    return found | package_versions([*roots, *names_imported(closure - CHOOSING)])


def names_imported(modules: Iterable[str]) -> set[str]:
    """Return what import statements of `modules` name: modules, and names in them, which may be modules, too."""
    return {name for module in modules for one in _imports(module) for name in (one.module, *one.names)}


def package_versions(modules: Iterable[str]) -> dict[str, str]:
    """Return `{package: distribution==version}` of installed packages among `modules`, except those always pinned."""
    foreign = {module for module in modules if module.partition(".")[0] not in _PINNED | {"stages"}}
    packages = sorted({_package_of(module) for module in foreign if is_pinned(module)})
    return {package: version for package in packages if (version := _version(package)) is not None}


@cache
def _package_of(module: str) -> str:
    """Return a module's top-level package or, in a namespace that distributions share, the first one with a file."""
    names = module.split(".")
    parents = (".".join(names[:depth]) for depth in range(1, len(names)))
    return next((parent for parent in parents if not _is_namespace(parent)), module)


def _is_namespace(package: str) -> bool:
    spec = find_spec_of(package)
    return spec is not None and spec.origin is None


@cache
def _version(package: str) -> str | None:
    top, _, inner = package.partition(".")
    try:
        if not inner:
            return f"{top}=={metadata.version(top)}"  # most packages have the name of their distribution
    except metadata.PackageNotFoundError:
        pass
    names = [] if _is_namespace(package) else metadata.packages_distributions().get(top, [])
    if inner:
        starts = tuple(package.replace(".", "/") + end for end in ("/", "."))
        names = [name for name in names if any(str(file).startswith(starts) for file in metadata.files(name) or ())]
    return f"{names[0]}=={metadata.version(names[0])}" if names else None


RECIPE, OPTIONS, TASKS = "stages.training.recipe", "stages.training.options", "stages.training.tasks"


def model_addresses(path: str, arguments: Mapping[str, Any]) -> list[str]:
    """Return `module:name` of a model and, if it is imported, of the callable that builds it."""
    return [path, *([arguments["address"]] if path == IMPORTED_MODEL else [])]


def imported_modules_of(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the modules that a spec names: those of its callables, its recipe, its options and its task."""
    protocol = spec["protocol"]
    names = model_addresses(**spec["model"])[1:]
    names += [protocol["optimizer"]["address"]] if "address" in protocol["optimizer"] else []
    recipe = protocol.get("recipe")
    names += [] if recipe is None else [RECIPE, *(["torchvision"] if {"transforms", "mix"} & recipe.keys() else [])]
    parts = [] if recipe is None else [*recipe.get("transforms", ()), *recipe.get("mix", ()), recipe.get("loss", {})]
    names += [one["name"] for one in parts if ":" in one.get("name", "")]
    schedule = [protocol["schedule"]["address"]] if "address" in protocol.get("schedule", {}) else []
    has_options = schedule or {"accumulate", "ema"} & protocol.keys() or protocol.get("precision") == "float16"
    names += [OPTIONS, *schedule] if has_options else []
    names += [TASKS] if "task" in spec else []
    names += [spec["task_class"]["name"]] if "task_class" in spec else []
    return tuple(name.partition(":")[0] for name in names)


@cache
def training_code(kind: str, model_path: str, optimizer: str, *others: str) -> Mapping[str, str]:
    """Return the fingerprint of a training's code; `others` are additional roots.

    Raises:
        ModuleNotFoundError: the model's module, or another one, can't be found.
    """
    own = f"stages.optim.{optimizer}"
    roots = [*TRAINING_ROOTS[kind], model_path.split(":")[0], *([own] if source_path(own) else []), *others]
    return code_fingerprint(roots)


def kind_of(spec: Mapping[str, Any]) -> str:
    """Return the kind of data of a spec: images have a mean per channel, and a text's model has a context."""
    if spec["protocol"].get("mean"):
        return "images"
    return "text" if "context" in spec["model"]["arguments"] else "table"


def code_today(spec: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Return the fingerprint that the training of `spec` has in this tree; None if it can't be trained."""
    try:
        optimizer = spec["protocol"]["optimizer"]["name"]
        return training_code(kind_of(spec), spec["model"]["path"], optimizer, *imported_modules_of(spec))
    except (ModuleNotFoundError, KeyError, TypeError):  # KeyError or TypeError: this isn't a spec
        return None


def changed_modules(spec: Mapping[str, Any]) -> list[str]:
    """Return the modules of a run's fingerprint whose source has changed or is gone, and those that it lacks."""
    code, today = spec["code"], code_today(spec)
    paths = {module: source_path(module) for module in code}
    digests = {module: module_digest(path) for module, path in paths.items() if path is not None}
    digests |= package_versions(module for module, path in paths.items() if path is None)
    changed = {module for module, digest in code.items() if digests.get(module) != digest}
    return sorted(changed | (set(today or code) - set(code)))


def unlike_loaded(code: Mapping[str, str]) -> list[str]:
    """Return the modules of a run's fingerprint that this process loaded from other source, and changed packages."""
    return sorted(
        module
        for module, digest in code.items()
        if (module in LOADED and source_digest(LOADED[module].decode()) != digest)
        or ("==" in digest and package_versions([module]).get(module) != digest)
    )
