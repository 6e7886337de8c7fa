"""The code and parameters that each stage of dvc.yaml uses, and a check that they didn't change while the stage ran.

`python -m stages.inputs` writes them down, one file each below `data/inputs/`; every other stage depends on its file.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from stages import STARTED_NS, papers_folder
from stages.params.callables import find_plugins
from stages.params.experiment import Params, load_params, plan_runs
from stages.params.metrics import OwnMetric
from stages.params.schema import known_papers
from stages.runs.fingerprint import (
    imported_modules,
    imported_modules_of,
    module_digest,
    names_imported,
    package_versions,
    reachable,
    source_path,
    unlike_loaded,
)

TARGET = Path("data/inputs")
_FOLDER = Path(__file__).parent.parent


@dataclass(frozen=True)
class StageInputs:
    """`roots`: modules where a stage's imports start, its verb and those found by name.  `files`: of papers' files."""

    roots: tuple[str, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()


def stage_inputs(params: Params) -> dict[str, StageInputs]:
    """Return every stage of dvc.yaml except `inputs` itself, by its name there."""
    packages = tuple(f"stages.papers.{paper}" for paper in known_papers())
    findings = tuple(f"{package}.findings" for package in packages if source_path(f"{package}.findings"))
    optimizers = tuple(f"stages.optim.{path.stem}" for path in _FOLDER.glob("optim/*.py") if path.stem != "__init__")
    everything = asdict(params)
    profile = {"profile": everything.pop("profile_name")} | everything["profiles"][params.profile_name]
    measuring = {
        name: [one["address"].partition(":")[0] for one in experiment["metrics"].values()]
        for name, experiment in everything["experiments"].items()
    }
    every_metric = sorted({module for modules in measuring.values() for module in modules})
    found = {
        "analyse": StageInputs(
            ("stages.analyse", *packages, *findings),
            {"margins": everything["verdicts"]["margins"], "printed": everything["profiles"]["paper"]}
            | {name: everything[name] for name in ("experiments", "datasets", "rates")},
        ),
        "record": StageInputs(("stages.record", *packages, *every_metric), everything, files=("*/*.yaml",)),
        "report": StageInputs(("stages.report",)),
    }
    readers = {plugin.name: plugin.address for plugin in find_plugins("readers") if plugin.address}
    for name, source in everything["datasets"].items():
        found[f"fetch@{name}"] = StageInputs(("stages.fetch",), {"dataset": source, "data": profile["data"]})
        address = readers.get(source["reader"], source["reader"])
        own = (address.partition(":")[0],) if ":" in address else ()
        found[f"preprocess@{name}"] = StageInputs(("stages.preprocess", *own), {"dataset": source})
    for name, experiment in everything["experiments"].items():
        package, metrics = f"stages.papers.{experiment['paper']}", experiment["metrics"]
        stacks = tuple(f"{package}.{path.stem}" for path in papers_folder().glob(f"{experiment['paper']}/*_stack.py"))
        trained = {"profile": profile, "experiment": {key: experiment[key] for key in experiment if key != "metrics"}}
        named = _named_modules(params, name)
        roots = "stages.train", "stages.worker", package, *stacks, *optimizers, *named
        found[f"train@{name}"] = StageInputs(roots, trained)
        observed = (f"{package}.observations",) if source_path(f"{package}.observations") else ()
        evaluated = ("stages.evaluate", package, *observed, *named, *measuring[name])
        settings = {"latency": profile["latency"], "test_rows": profile["test_rows"]}
        found[f"evaluate@{name}"] = StageInputs(evaluated, settings | ({"metrics": metrics} if metrics else {}))
    return found


def _named_modules(params: Params, name: str) -> list[str]:
    """Modules that an experiment's trainings have because its params name them."""
    experiment = params.experiments[name]
    planned = plan_runs(experiment, params.profile, params.datasets[experiment.dataset], every_role=True)
    specs = [run.spec.to_dict() for run in planned if run.name.replicate == 0]
    modules = {module for spec in specs for module in imported_modules_of(spec)}
    return sorted(modules | ({"stages.papers.imported"} if modules else set()))


def modules_run(roots: Iterable[str]) -> set[str]:
    """Return `roots`, all our modules that they import, directly or indirectly, and the packages that contain these."""
    return reachable(
        roots, lambda module: [*imported_modules(module), *([module.rpartition(".")[0]] * ("." in module))]
    )


@cache
def code_digests(roots: tuple[str, ...], files: tuple[str, ...]) -> Mapping[str, str]:
    """Return `{module or file: digest}` of the code that `roots` run, and of files that share a module's name (C++).

    Packages that a user's modules import have their version; the versions that ours need are pinned in requirements/.
    """
    found: dict[str, str] = {}
    users: list[str] = []
    for module in sorted(modules_run(roots)):
        path = source_path(module)
        if path is None:
            continue
        found[module] = module_digest(path)
        if path.is_relative_to(_FOLDER):
            found |= _file_digests(other for other in path.parent.glob(f"{path.stem}.*") if other.suffix != ".py")
        else:
            users.append(module)
    found |= package_versions([*roots, *names_imported(users)])
    return found | _file_digests(path for pattern in files for path in sorted(papers_folder().glob(pattern)))


def origin_of(metric: OwnMetric) -> dict[str, Any]:
    """Return the metric's definition and the digests of its `code`, for installed packages their versions."""
    return metric.definition | {"code": dict(code_digests((metric.address.partition(":")[0],), ()))}


def digest_all_code() -> None:
    """Read the code of all stages, so that forks of this process needn't."""
    for inputs in stage_inputs(load_params()).values():
        code_digests(inputs.roots, inputs.files)


def _file_digests(paths: Iterable[Path]) -> dict[str, str]:
    return {
        path.relative_to(_FOLDER.parent if path.is_relative_to(_FOLDER) else Path.cwd()).as_posix(): hashlib.sha256(
            path.read_bytes()
        ).hexdigest()[:16]
        for path in paths
        if path.is_file()
    }


def changed_meanwhile() -> list[str]:
    """List code that this process runs, or params that it reads, that differ from those recorded for its stage.

    Such edits during `dvc repro` would record the stage's outcome under the old code or params.  Empty outside of DVC,
    which names the stage in the environment.  A file older than both the record and this process is unchanged.
    """
    stage = os.environ.get("DVC_STAGE")
    path = TARGET / f"{stage}.json"
    if stage is None or not path.is_file():
        return []
    since, content = min(path.stat().st_mtime_ns, STARTED_NS), json.loads(path.read_text(encoding="utf-8"))
    edited = {
        module: digest
        for module, digest in content["code"].items()
        if (source := source_path(module)) is not None and source.stat().st_mtime_ns > since
    }
    changed = unlike_loaded(edited)
    files = [Path("params.yaml"), *Path("params").glob("*.yaml")]
    if any(file.stat().st_mtime_ns > since for file in files):
        inputs = stage_inputs(load_params()).get(stage)
        if inputs is None or json.loads(json.dumps(inputs.params)) != content["params"]:
            changed.append("params")
    return changed


def refuse_changed(verb: str) -> bool:
    """Print to stderr what changed in the meantime, if anything; return True if something did."""
    changed = changed_meanwhile()
    if changed:
        what = ", ".join(changed)
        print(f"{verb}: {what} changed while dvc repro ran; nothing is written, run dvc repro again", file=sys.stderr)
    return bool(changed)
