"""`python -m stages.code`: which of our source each stage of dvc.yaml runs, a file each below `data/code/`.

DVC doesn't follow imports, and looks at every dependency by itself, at every repro.  So one stage depends on the
folder `stages`, follows the imports of all others, and writes down module and digest; a stage depends on its file.
Comments and docstrings don't count, as in a run key.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from stages.fingerprint import imported_modules, module_digest, source_path

TARGET = Path("data/code")
_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class StageCode:
    """Where a stage's imports start: its verb, and what that finds by name.  `files`: patterns of what it reads."""

    roots: tuple[str, ...]
    files: tuple[str, ...] = ()


def stage_codes() -> dict[str, StageCode]:
    """Every file of `data/code`: a verb's, or `<verb>-<paper>` where the verb runs the models of one paper."""
    packages = {path.parent.name: f"stages.papers.{path.parent.name}" for path in _FOLDER.glob("papers/*/__init__.py")}
    findings = tuple(f"{package}.findings" for package in packages.values() if source_path(f"{package}.findings"))
    optimizers = tuple(f"stages.optim.{path.stem}" for path in _FOLDER.glob("optim/*.py") if path.stem != "__init__")
    codes = {
        "fetch": StageCode(("stages.fetch",)),
        "preprocess": StageCode(("stages.preprocess",)),
        "analyse": StageCode(("stages.analyse", *findings)),
        "record": StageCode(("stages.record", *packages.values()), files=("papers/*/*.yaml",)),
        "report": StageCode(("stages.report",)),
    }
    for paper, package in packages.items():
        codes[f"train-{paper}"] = StageCode(("stages.train", "stages.worker", package, *optimizers))
        codes[f"evaluate-{paper}"] = StageCode(("stages.evaluate", package))
    return codes


_imported = cache(imported_modules)


def modules_run(roots: Iterable[str]) -> set[str]:
    """`roots`, all of ours that they import, directly or not, and the packages in which these lie."""
    seen: set[str] = set()
    queue = list(roots)
    while queue:
        module = queue.pop()
        if module not in seen:
            seen.add(module)
            queue.extend(_imported(module))
            queue.extend([module.rpartition(".")[0]] * ("." in module))
    return seen


def digests(code: StageCode) -> dict[str, str]:
    """`{module or file: digest}` of what a stage runs, with what bears a module's name beside it (C++, say)."""
    found: dict[str, str] = {}
    for module in modules_run(code.roots):
        path = source_path(module)
        if path is None:
            continue
        found[module] = module_digest(path)
        found |= _file_digests(other for other in path.parent.glob(f"{path.stem}.*") if other.suffix != ".py")
    return found | _file_digests(path for pattern in code.files for path in _FOLDER.glob(pattern))


def _file_digests(paths: Iterable[Path]) -> dict[str, str]:
    return {
        path.relative_to(_FOLDER.parent).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path in paths
        if path.is_file()
    }


def main() -> int:
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir(parents=True)
    codes = stage_codes()
    for name, code in codes.items():
        (TARGET / f"{name}.json").write_text(json.dumps(digests(code), indent=1, sort_keys=True) + "\n")
    print(
        f"code: {len(codes)} stages and papers, {len(modules_run(r for c in codes.values() for r in c.roots))} modules"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
