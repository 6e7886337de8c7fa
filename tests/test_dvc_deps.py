"""DVC doesn't follow imports: so every module that a stage runs has to lie inside the `deps` that dvc.yaml lists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stages.analyse import papers
from stages.fingerprint import import_closure, source_path

ROOT = Path(__file__).resolve().parent.parent


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text())


def expanded_stages() -> Iterator[tuple[str, str, list[str]]]:
    """(name, command, deps) of every stage, `foreach` written out."""
    index = read("params.yaml")
    for name, stage in read("dvc.yaml")["stages"].items():
        if "foreach" not in stage:
            yield name, stage["cmd"], [str(dep) for dep in stage["deps"]]
            continue
        for key, item in index[stage["foreach"].strip("${}")].items():
            values = {"key": key, **{f"item.{field}": value for field, value in item.items()}}

            def fill(text: str, values: dict[str, Any] = values) -> str:
                return re.sub(r"\$\{([\w.]+)\}", lambda match: str(values[match[1]]), text)

            yield f"{name}@{key}", fill(stage["do"]["cmd"]), [fill(dep) for dep in stage["do"]["deps"]]


def modules_run(command: str, stage: str) -> set[str]:
    """Import closure of the command's module, and what it finds by name: worker, paper of the models."""
    match = re.match(r"python -m (stages\.\w+)", command)
    assert match, f"{stage}: {command!r} doesn't run a verb of stages"
    closure = import_closure([match[1]])
    if "stages.analyse" in closure:
        closure = import_closure([*closure, *(f"stages.papers.{paper}.findings" for paper in papers())])
    if "stages.engine.local" in closure:
        closure = import_closure([*closure, "stages.worker"])
    if closure & {"stages.checkpoint", "stages.worker"}:
        paper = read("params.yaml")["experiments"][stage.split("@")[1]]["paper"]
        closure = import_closure([*closure, f"stages.papers.{paper}"])
    return closure


def missing_from(deps: list[str], modules: set[str]) -> set[str]:
    listed = [ROOT / dep for dep in deps]
    paths = {name: source_path(name) for name in modules if name != "stages"}
    return {
        name
        for name, path in paths.items()
        if path is not None and not any(path == dep or path.is_relative_to(dep) for dep in listed)
    }


STAGES = list(expanded_stages())


@pytest.mark.parametrize(("stage", "command", "deps"), STAGES, ids=[stage for stage, _, _ in STAGES])
def test_the_import_closure_of_a_stage_lies_inside_its_deps(stage: str, command: str, deps: list[str]) -> None:
    assert missing_from(deps, modules_run(command, stage)) == set()


def test_every_code_dependency_exists() -> None:
    deps = {dep for _, _, deps in STAGES for dep in deps if dep.startswith("stages/")}
    assert {dep for dep in deps if not (ROOT / dep).exists()} == set()


def test_a_dependency_left_out_is_noticed() -> None:
    modules = import_closure(["stages.evidence"])
    assert missing_from(["stages/evidence.py"], modules) == {"stages.run"}
