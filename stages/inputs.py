"""`python -m stages.inputs`: code and parameters of every other stage of dvc.yaml, a file each below `data/inputs/`.

DVC doesn't follow imports, and at every repro it looks at each dependency by itself and parses a params file anew for
each stage.  So one stage depends on all source and all params, and writes down what of them each other stage uses:
modules with their digests (comments and docstrings don't count, as in a run key) and the parameters, checked.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from stages.experiment import Params, ParamsError, load_params
from stages.faults import in_one_line, named
from stages.fingerprint import imported_modules, module_digest, reachable, source_path
from stages.signature import known_papers

TARGET = Path("data/inputs")
_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class StageInputs:
    """`roots`: where a stage's imports start, its verb and what it finds by name.  `files`: patterns of files read."""

    roots: tuple[str, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()


def stage_inputs(params: Params) -> dict[str, StageInputs]:
    """Every stage of dvc.yaml but `inputs` itself, by its name there."""
    packages = tuple(f"stages.papers.{paper}" for paper in known_papers())
    findings = tuple(f"{package}.findings" for package in packages if source_path(f"{package}.findings"))
    optimizers = tuple(f"stages.optim.{path.stem}" for path in _FOLDER.glob("optim/*.py") if path.stem != "__init__")
    everything = asdict(params)
    profile = {"profile": everything.pop("profile_name")} | everything["profiles"][params.profile_name]
    found = {
        "analyse": StageInputs(("stages.analyse", *findings), {"margins": everything["verdicts"]["margins"]}),
        "record": StageInputs(("stages.record", *packages), everything, files=("papers/*/*.yaml",)),
        "report": StageInputs(("stages.report",)),
    }
    for name, source in everything["datasets"].items():
        found[f"fetch@{name}"] = StageInputs(("stages.fetch",), {"dataset": source, "data": profile["data"]})
        found[f"preprocess@{name}"] = StageInputs(("stages.preprocess",), {"dataset": source})
    for name, experiment in everything["experiments"].items():
        package = f"stages.papers.{experiment['paper']}"
        fast = tuple(f"{package}.{path.stem}" for path in _FOLDER.glob(f"papers/{experiment['paper']}/*_native.py"))
        trained = {"profile": profile, "experiment": experiment}
        found[f"train@{name}"] = StageInputs(("stages.train", "stages.worker", package, *fast, *optimizers), trained)
        observed = (f"{package}.observations",) if source_path(f"{package}.observations") else ()
        evaluated = ("stages.evaluate", package, *observed)
        found[f"evaluate@{name}"] = StageInputs(evaluated, {"latency": profile["latency"]})
    return found


def modules_run(roots: Iterable[str]) -> set[str]:
    """`roots`, all of ours that they import, directly or not, and the packages in which these lie."""
    return reachable(
        roots, lambda module: [*imported_modules(module), *([module.rpartition(".")[0]] * ("." in module))]
    )


@cache
def code_digests(roots: tuple[str, ...], files: tuple[str, ...]) -> Mapping[str, str]:
    """`{module or file: digest}` of what `roots` run, with what bears a module's name beside it (C++, say)."""
    found: dict[str, str] = {}
    for module in sorted(modules_run(roots)):
        path = source_path(module)
        if path is None:
            continue
        found[module] = module_digest(path)
        found |= _file_digests(other for other in path.parent.glob(f"{path.stem}.*") if other.suffix != ".py")
    return found | _file_digests(path for pattern in files for path in sorted(_FOLDER.glob(pattern)))


def _file_digests(paths: Iterable[Path]) -> dict[str, str]:
    return {
        path.relative_to(_FOLDER.parent).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path in paths
        if path.is_file()
    }


@in_one_line("inputs")
def main() -> int:
    try:
        found = stage_inputs(load_params())
    except ParamsError as error:
        print(f"inputs: {error}", file=sys.stderr)
        return 1
    if TARGET.exists():
        shutil.rmtree(TARGET)
    TARGET.mkdir(parents=True)
    for name, inputs in found.items():
        content = {"params": inputs.params, "code": code_digests(inputs.roots, inputs.files)}
        # Not sorted: the order of arms in a file is the order in which they are trained and shown.
        path = TARGET / f"{name}.json"
        with named(path):
            path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"inputs: {len(found)} stages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
