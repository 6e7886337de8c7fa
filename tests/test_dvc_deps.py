"""DVC doesn't follow imports: `stages.code` does, and every stage of dvc.yaml depends on what it found for its verb."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stages.code import digests, modules_run, stage_codes

ROOT = Path(__file__).resolve().parent.parent
CODES = stage_codes()
# Modules that import by name: what they may find has to be among the roots of `stages.code`.
IMPORT_BY_NAME = {
    "analyse.py",  # the papers' findings
    "engine/local.py",  # the worker
    "papers/__init__.py",  # the paper's models
    "training/optimizer.py",  # the optimisers
}


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text())


def expanded_stages() -> Iterator[tuple[str, str, list[str]]]:
    """(name, command, deps) of every stage but `code`, `foreach` written out."""
    index = read("params.yaml")
    for name, stage in read("dvc.yaml")["stages"].items():
        if name == "code":
            continue
        if "foreach" not in stage:
            yield name, stage["cmd"], [str(dep) for dep in stage["deps"]]
            continue
        for key, item in index[stage["foreach"].strip("${}")].items():
            values = {"key": key, **{f"item.{field}": value for field, value in item.items()}}

            def fill(text: str, values: dict[str, Any] = values) -> str:
                return re.sub(r"\$\{([\w.]+)\}", lambda match: str(values[match[1]]), text)

            yield f"{name}@{key}", fill(stage["do"]["cmd"]), [fill(dep) for dep in stage["do"]["deps"]]


def test_every_stage_depends_on_the_code_of_its_verb_and_paper() -> None:
    experiments = read("params.yaml")["experiments"]
    for stage, command, deps in expanded_stages():
        verb, _, key = stage.partition("@")
        name = f"{verb}-{experiments[key]['paper']}" if key in experiments else verb
        assert [dep for dep in deps if dep.startswith(("stages", "data/code"))] == [f"data/code/{name}.json"], stage
        assert command.split()[:3] == ["python", "-m", f"stages.{verb}"], stage
        assert f"stages.{verb}" in CODES[name].roots


def test_code_depends_on_all_source_and_writes_what_the_others_read() -> None:
    code = read("dvc.yaml")["stages"]["code"]
    assert (code["deps"], code["outs"]) == (["stages"], ["data/code"])
    wanted = {dep for _, _, deps in expanded_stages() for dep in deps if dep.startswith("data/code/")}
    assert wanted == {f"data/code/{name}.json" for name in CODES}


def test_all_that_a_stage_loads_is_in_its_file(tmp_path: Path) -> None:
    # A process each, forked where the large packages are loaded already; one paper stands for all.
    script = """
import importlib, json, os, sys
import numpy, pydantic, sqlalchemy, torch
for name, roots in json.loads(sys.argv[1]).items():
    if os.fork() == 0:
        for root in roots:
            importlib.import_module(root)
        loaded = [module for module in sys.modules if module.split(".")[0] == "stages"]
        with open(f"{sys.argv[2]}/{name}.json", "w") as file:
            json.dump(loaded, file)
        os._exit(0)
    assert os.wait()[1] == 0, name
"""
    codes = {name: code for name, code in CODES.items() if "-" not in name or name.endswith("-dac")}
    roots = json.dumps({name: code.roots for name, code in codes.items()})
    subprocess.run([sys.executable, "-c", script, roots, str(tmp_path)], cwd=ROOT, check=True)
    for name, code in codes.items():
        loaded = set(json.loads((tmp_path / f"{name}.json").read_text()))
        assert len(loaded) > 3 and loaded <= digests(code).keys(), name


def test_imports_by_name_are_those_that_the_roots_cover() -> None:
    found = {
        path.relative_to(ROOT / "stages").as_posix()
        for path in (ROOT / "stages").rglob("*.py")
        if "import_module(" in path.read_text()
    }
    assert found == IMPORT_BY_NAME


def test_every_file_beside_the_modules_belongs_to_a_stage() -> None:
    beside = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "stages").rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert beside == {name for code in CODES.values() for name in digests(code) if "/" in name}


@pytest.mark.parametrize("name", ["train-dac", "evaluate-dac"])
def test_a_kernel_in_another_language_belongs_to_the_paper_that_runs_it(name: str) -> None:
    assert "stages/ops/dac_native.cpp" in digests(CODES[name])
    assert "stages/ops/dac_native.cpp" not in digests(CODES[name.replace("dac", "nmn")])


def test_a_paper_is_no_other_papers_business() -> None:
    papers = {module.split(".")[2] for module in modules_run(CODES["train-nmn"].roots) if module.count(".") > 2}
    assert papers & {"brownian", "dac", "hyperbf", "ninformer", "nmn"} == {"nmn"}
