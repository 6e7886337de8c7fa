"""DVC doesn't follow imports: `stages.inputs` writes a file of inputs for each stage of dvc.yaml to depend on."""

import dataclasses
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stages.params.experiment import load_params
from stages.params.stage_inputs import code_digests, modules_run, stage_inputs
from stages.runs.fingerprint import code_fingerprint
from tests.preloaded import python

ROOT = Path(__file__).resolve().parent.parent
PARAMS = load_params(ROOT)
INPUTS = stage_inputs(PARAMS)
# Modules that import by name: their possible targets must be roots of `stages.params.stage_inputs`.
IMPORT_BY_NAME = {
    "analyse.py",  # papers' findings
    "commands/preloaded.py",  # libraries and stages
    "scheduling/groups.py",  # engines
    "scheduling/local.py",  # worker
    "runs/object_store.py",  # object-store package
    "scheduling/ray_bridge.py",  # Ray
    "scheduling/ray_task.py",  # worker
    "reported/command.py",  # the application
    "upkeep/exporting.py",  # packages of exports
    "upkeep/driver.py",  # in no stage: the code of another revision
    "papers/__init__.py",  # papers' models
    "evaluation/scores.py",  # metrics of other packages: `measuring` in stage_inputs
    "training/tasks.py",  # tasks of other packages: `named` in stage_inputs
    "training/stacked.py",  # stacks
    "training/protocol.py",  # optimisers
    "training/options.py",  # schedules
    "datasets/manifest.py",  # readers
    "optim/imported.py",  # callables that params name
    "papers/imported/model.py",  # callables that params name
    "training/recipe.py",  # torchvision
}


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def expanded_stages() -> Iterator[tuple[str, str, list[str]]]:
    """(name, command, deps) of every stage except `inputs`, with `foreach` expanded."""
    index = read("params.yaml")
    for name, stage in read("dvc.yaml")["stages"].items():
        if name == "inputs":
            continue
        if "foreach" not in stage:
            yield name, stage["cmd"], [str(dep) for dep in stage["deps"]]
            continue
        for key, item in index[stage["foreach"].strip("${}")].items():
            values = {"key": key, **{f"item.{field}": value for field, value in item.items()}}

            def fill(text: str, values: dict[str, Any] = values) -> str:
                return re.sub(r"\$\{([\w.]+)\}", lambda match: str(values[match[1]]), text)

            yield f"{name}@{key}", fill(stage["do"]["cmd"]), [fill(dep) for dep in stage["do"]["deps"]]


def test_every_stage_depends_on_its_inputs_file_and_no_source() -> None:
    stages = list(expanded_stages())
    assert {name for name, _, _ in stages} == INPUTS.keys()
    for name, command, deps in stages:
        own = [dep for dep in deps if not dep.startswith("data/") or dep.startswith("data/inputs/")]
        assert own == [f"data/inputs/{name}.json"]
        assert command.split()[:4] == ["python", "-m", "stages.stage", INPUTS[name].roots[0].removeprefix("stages.")]


def test_inputs_stage_depends_on_all_source_and_params() -> None:
    inputs = read("dvc.yaml")["stages"]["inputs"]
    assert (inputs["deps"], inputs["outs"]) == (["stages", "params", "params.yaml"], ["data/inputs"])


def test_everything_that_a_stage_loads_is_in_its_file() -> None:
    # One data set and one experiment represent all.
    script = """
import importlib, json, sys
for root in sys.argv[1:]:
    importlib.import_module(root)
print(json.dumps([module for module in sys.modules if module.split(".")[0] == "stages"]))
"""
    chosen = {name: INPUTS[name] for name in INPUTS if name.partition("@")[2] in ("", "mnist", "dac-vgg-cifar10")}
    assert len(chosen) == 7
    for name, inputs in chosen.items():
        done = python("-c", script, *inputs.roots, cwd=ROOT, env=os.environ)
        assert done.returncode == 0, done.stderr
        loaded = set(json.loads(done.stdout))
        assert len(loaded) > 3 and loaded <= code_digests(inputs.roots, inputs.files).keys(), name


def test_roots_cover_all_modules_that_import_by_name() -> None:
    found = {
        path.relative_to(ROOT / "stages").as_posix()
        for path in (ROOT / "stages").rglob("*.py")
        if "import_module(" in path.read_text(encoding="utf-8")
    }
    assert found == IMPORT_BY_NAME


def test_every_non_python_file_belongs_to_a_stage() -> None:
    others = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "stages").rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    listed = {name for inputs in INPUTS.values() for name in code_digests(inputs.roots, inputs.files)}
    assert others == {name for name in listed if "/" in name}


@pytest.mark.parametrize("verb", ["train", "evaluate"])
def test_cpp_kernel_belongs_only_to_papers_that_use_it(verb: str) -> None:
    assert "stages/ops/fast/dac.cpp" in code_digests(INPUTS[f"{verb}@dac-vgg-cifar10"].roots, ())
    assert "stages/ops/fast/dac.cpp" not in code_digests(INPUTS[f"{verb}@nmn-resnet-cifar10"].roots, ())


def test_observation_code_is_in_evaluation_but_in_no_run_key() -> None:
    for name, paper in (("hyperbf-cifar10", "hyperbf"), ("brownian-cifar10", "brownian"), ("nmn-mnist", "nmn")):
        module = f"stages.papers.{paper}.observations"
        assert module in code_digests(INPUTS[f"evaluate@{name}"].roots, ())
        assert module not in code_digests(INPUTS[f"train@{name}"].roots, ())
        models = code_fingerprint([f"stages.papers.{paper}"])  # all architectures together
        assert len(models) > 1 and module not in models
    assert not any("observations" in module for module in code_digests(INPUTS["evaluate@ninformer-mnist"].roots, ()))


def test_stage_of_a_paper_excludes_other_papers_code() -> None:
    modules = modules_run(INPUTS["train@nmn-resnet-cifar10"].roots)
    assert {module.split(".")[2] for module in modules if module.startswith("stages.papers.")} == {"nmn"}


def test_stage_depends_only_on_parameters_that_it_uses() -> None:
    smoke = dataclasses.replace(PARAMS, profile_name="smoke")
    latency = dataclasses.replace(smoke.profile, latency=dataclasses.replace(smoke.profile.latency, repeats=99))
    overrides = dataclasses.replace(smoke.profile, overrides={"epochs": 99})
    mnist = dataclasses.replace(smoke.datasets["mnist"], train=99)
    changes: dict[str, dict[str, Any]] = {
        "latency": {"profiles": {**smoke.profiles, "smoke": latency}},
        "overrides": {"profiles": {**smoke.profiles, "smoke": overrides}},
        "another profile": {"profiles": {**smoke.profiles, "paper": overrides}},
        "data set": {"datasets": {**smoke.datasets, "mnist": mnist}},
    }
    before = stage_inputs(smoke)
    entered = {}
    for change, fields in changes.items():
        after = stage_inputs(dataclasses.replace(smoke, **fields))
        entered[change] = {name.partition("@")[0] for name in after if after[name].params != before[name].params}
    assert entered == {
        "latency": {"train", "evaluate", "record"},
        "overrides": {"train", "record"},
        "another profile": {"analyse", "record"},
        "data set": {"analyse", "fetch", "preprocess", "record"},
    }
