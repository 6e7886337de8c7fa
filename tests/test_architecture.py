"""Allowed imports between packages, checked in the syntax trees; docs/architecture.md shows the same graph."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

VERBS = ("inputs", "fetch", "preprocess", "train", "evaluate", "analyse", "record", "report", "stage", "cli")

# part of `stages` -> the other parts that it may import
ALLOWED: dict[str, set[str]] = {
    "run": set(),
    "faults": set(),
    "texts": set(),
    "yaml_reader": {"texts"},
    "citation": {"texts"},
    "images": set(),
    "device": set(),
    "rules": set(),
    "runs": {"run", "faults"},
    "verdicts": {"rules"},
    "ops": set(),
    "optim": set(),
    "papers": {"run", "rules", "ops", "optim"},
    "params": {"run", "faults", "rules", "runs", "papers", "yaml_reader"},
    "datasets": {"faults", "images", "runs", "params", "texts"},
    "training": {"run", "device", "runs", "datasets", "ops", "papers"},
    "checkpoint": {"run", "faults", "ops", "papers"},
    "evaluation": {*("run", "faults", "device", "runs", "params", "datasets", "training", "papers", "checkpoint")},
    "scheduling": {"run", "faults", "device", "runs", "params", "datasets", "evaluation"},
    "results": {"faults", "rules", "runs", "verdicts"},
    "claims": {"run", "faults", "rules", "runs", "papers", "params", "verdicts", "texts"},
    "recording": {"run", "faults", "runs", "params", "papers", "datasets", "claims", "results", "verdicts"},
    "upkeep": {
        *("run", "faults", "citation", "device", "ops", "runs", "params", "datasets", "training", "checkpoint"),
        *("evaluation", "claims", "recording", "results", "yaml_reader"),
    },
    "reported": {"rules", "verdicts", "texts", "yaml_reader"},
    "commands": {
        *("faults", "run", "runs", "params", "datasets", "checkpoint", "evaluation", "scheduling", "results"),
        *("claims", "verdicts", "recording", "upkeep", "yaml_reader"),
    },
    "worker": {*("run", "device", "ops", "runs", "datasets", "training", "checkpoint", "evaluation")},
}
SERVICE_MAY_IMPORT = {
    *("stages.params.experiment", "stages.results", "stages.checkpoint", "stages.images", "stages.device"),
    *("stages.datasets.packed", "stages.citation"),
}
# part of `service` -> the other parts that it may import
SERVICE: dict[str, set[str]] = {
    "settings": set(),
    "slots": set(),
    "database": set(),
    "inference": {"slots", "database"},
    "http": {"settings", "slots", "database", "inference"},
    "pages": {"database"},
    "dependencies": {"settings", "slots", "database", "inference", "http", "pages"},
    "routes": {"settings", "slots", "database", "inference", "http", "pages", "dependencies"},
    "app": {"settings", "slots", "database", "inference", "http", "pages", "dependencies", "routes"},
    "__main__": {"settings", "inference", "http", "app"},
}
WITHOUT_TORCH = (
    *("run", "rules", "runs", "params", "verdicts", "reported", "claims", "results", "recording", "upkeep.proving"),
    *("scheduling.groups", "scheduling.leases", "scheduling.local", "scheduling.ray_bridge", "scheduling.ray_engine"),
    *("scheduling.ray_task", "scheduling.runner", "scheduling.journal", "fetch", "preprocess"),
)
# A worker starts with only these installed.
WORKER_PACKAGES = {"torch", "numpy", "safetensors"}


def python_files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """Return the package of a module: `stages.training.loop` belongs to `training`."""
    return module.split(".")[1] if "." in module else ""


@cache
def imports(path: Path, *, for_types: bool = True) -> frozenset[str]:
    """Return every module imported anywhere in the file, `from a import b` as both `a` and `a.b`.

    `for_types` includes imports below `if TYPE_CHECKING:`.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if node in guarded and not for_types:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path}:{node.lineno}: imports are absolute"
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(found)


@cache
def is_module(name: str) -> bool:
    base = ROOT.joinpath(*name.split("."))
    return base.with_suffix(".py").is_file() or base.is_dir()


def our_imports(path: Path, package: str = "stages") -> set[str]:
    return {name for name in imports(path) if name.startswith(f"{package}.") and is_module(name)}


@cache
def closure(module: str) -> set[str]:
    """Return `module` and all our modules imported with it, including parent packages."""
    seen: set[str] = set()
    queue = [module]
    while queue:
        name = queue.pop()
        if name in seen:
            continue
        seen.add(name)
        if "." in name:
            queue.append(name.rpartition(".")[0])
        base = ROOT.joinpath(*name.split("."))
        path = base.with_suffix(".py") if base.with_suffix(".py").is_file() else base / "__init__.py"
        if path.is_file():
            queue.extend(our_imports(path))
    return seen


def third_party(module: str) -> set[str]:
    """Return the third-party packages imported anywhere in the closure of `module`."""
    found = set()
    for name in closure(module):
        base = ROOT.joinpath(*name.split("."))
        path = base.with_suffix(".py") if base.with_suffix(".py").is_file() else base / "__init__.py"
        if path.is_file():
            found.update(imported.split(".")[0] for imported in imports(path, for_types=False))
    return found - sys.stdlib_module_names - {"stages"}


@pytest.mark.parametrize(("package", "rows"), [("stages", {*ALLOWED, *VERBS}), ("service", {*SERVICE})])
def test_every_package_has_a_row_and_every_row_a_package(package: str, rows: set[str]) -> None:
    assert {part_of(module_name(path)) for path in python_files(package)} - {""} == rows


def test_module_imports_only_what_its_row_allows() -> None:
    for path in python_files("stages"):
        part = part_of(module_name(path))
        allowed = (
            {*ALLOWED, *(("stage",) if part == "cli" else ())} if part in VERBS else ALLOWED.get(part, set()) | {part}
        )
        assert {part_of(name) for name in our_imports(path)} - {""} <= allowed, path


@pytest.mark.parametrize(("package", "rows"), [("stages", ALLOWED), ("service", SERVICE)])
def test_allowed_imports_are_all_used(package: str, rows: dict[str, set[str]]) -> None:
    used: dict[str, set[str]] = {part: set() for part in rows}
    for path in python_files(package):
        if (part := part_of(module_name(path))) in rows:
            used[part] |= {part_of(name) for name in our_imports(path, package)} - {"", part}
    assert used == rows


@pytest.mark.parametrize("rows", [ALLOWED, SERVICE], ids=["stages", "service"])
def test_packages_have_no_import_cycles(rows: dict[str, set[str]]) -> None:
    TopologicalSorter(rows).prepare()


def test_service_imports_seven_modules_of_stages() -> None:
    inside = {module for module in SERVICE_MAY_IMPORT if (ROOT / module.replace(".", "/")).is_dir()}
    for path in python_files("service"):
        others = {name for name in our_imports(path) if name.rpartition(".")[0] not in inside}
        assert others <= SERVICE_MAY_IMPORT, path


def test_nothing_in_stages_imports_the_service() -> None:
    assert {path.name: our_imports(path, "service") for path in python_files("stages")} == {
        path.name: set() for path in python_files("stages")
    }


def test_papers_never_import_each_other() -> None:
    for path in python_files("stages/papers"):
        own = module_name(path).split(".")[2:3]
        others = {name.split(".")[2] for name in our_imports(path) if name.startswith("stages.papers.")} - {
            *own,
            "finding",
        }
        assert not others, f"{path.relative_to(ROOT)} imports {others}"


def test_package_does_not_import_torch() -> None:
    modules = [module_name(path) for path in python_files("stages")]
    for part in WITHOUT_TORCH:
        members = [name for name in modules if f"{name}.".startswith(f"stages.{part}.")]
        assert members
        assert [name for name in members if third_party(name) & {"torch", "torchvision", "timm"}] == [], part


def test_worker_needs_three_packages() -> None:
    assert third_party("stages.worker") <= WORKER_PACKAGES


def slow_to_import(modules: str, *more: str) -> str:
    """Return the slow libraries (half a second each), and those in `more`, that importing `modules` loads."""
    slow = {"torch", "scipy.special", "scipy.stats", "scipy.optimize", *more}
    code = f"import sys, {modules}; print(sorted({slow} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def test_importing_light_modules_is_fast_and_silent() -> None:
    """SciPy imports its submodules on first use."""
    assert slow_to_import(", ".join(f"stages.{part}" for part in (*WITHOUT_TORCH, "cli"))) == "[]\n"


def test_command_starts_without_loading_the_database() -> None:
    """Only commands that read it import SQLAlchemy."""
    assert slow_to_import("stages.cli", "sqlalchemy") == "[]\n"


def test_server_does_not_import_torch() -> None:
    """Only its worker processes do."""
    assert slow_to_import("service.app, service.__main__") == "[]\n"
