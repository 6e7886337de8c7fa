"""DVC follows no imports: `stages.inputs` does, and a stage of dvc.yaml depends on the file that it writes for it."""

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
# Modules that import by name: what they may find has to be among the roots of `stages.params.stage_inputs`.
IMPORT_BY_NAME = {
    "analyse.py",  # the papers' findings
    "preloaded.py",  # libraries alone
    "scheduling/engine/groups.py",  # engines
    "scheduling/engine/local.py",  # the worker
    "runs/object_store.py",  # the package of object stores
    "scheduling/engine/ray_bridge.py",  # Ray
    "scheduling/engine/ray_task.py",  # the worker
    "proving/driver.py",  # in no stage: what another revision's tree calls the same
    "papers/__init__.py",  # the paper's models
    "training/stacked.py",  # stacks a model's networks
    "training/optimizer.py",  # the optimisers
    "optim/imported.py",  # what params name
    "papers/imported/model.py",  # what params name
    "training/recipe.py",  # torchvision
}


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text())


def expanded_stages() -> Iterator[tuple[str, str, list[str]]]:
    """(name, command, deps) of every stage but `inputs`, `foreach` written out."""
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


def test_every_stage_depends_on_its_own_inputs_and_on_no_source() -> None:
    stages = list(expanded_stages())
    assert {name for name, _, _ in stages} == INPUTS.keys()
    for name, command, deps in stages:
        own = [dep for dep in deps if not dep.startswith("data/") or dep.startswith("data/inputs/")]
        assert own == [f"data/inputs/{name}.json"]
        assert command.split()[:4] == ["python", "-m", "stages.stage", INPUTS[name].roots[0].removeprefix("stages.")]


def test_inputs_depends_on_all_source_and_all_params() -> None:
    inputs = read("dvc.yaml")["stages"]["inputs"]
    assert (inputs["deps"], inputs["outs"]) == (["stages", "params", "params.yaml"], ["data/inputs"])


def test_all_that_a_stage_loads_is_in_its_file() -> None:
    # One data set and experiment stand for all.
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
    listed = {name for inputs in INPUTS.values() for name in code_digests(inputs.roots, inputs.files)}
    assert beside == {name for name in listed if "/" in name}


@pytest.mark.parametrize("verb", ["train", "evaluate"])
def test_a_kernel_in_another_language_belongs_to_the_paper_that_runs_it(verb: str) -> None:
    assert "stages/ops/fast/dac.cpp" in code_digests(INPUTS[f"{verb}@dac-vgg-cifar10"].roots, ())
    assert "stages/ops/fast/dac.cpp" not in code_digests(INPUTS[f"{verb}@nmn-resnet-cifar10"].roots, ())


def test_what_looks_inside_trained_networks_belongs_to_evaluation_and_to_no_run_key() -> None:
    for name, paper in (("hyperbf-cifar10", "hyperbf"), ("brownian-cifar10", "brownian"), ("nmn-mnist", "nmn")):
        module = f"stages.papers.{paper}.observations"
        assert module in code_digests(INPUTS[f"evaluate@{name}"].roots, ())
        assert module not in code_digests(INPUTS[f"train@{name}"].roots, ())
        models = code_fingerprint([f"stages.papers.{paper}"])  # of all architectures together
        assert len(models) > 1 and module not in models
    assert not any("observations" in module for module in code_digests(INPUTS["evaluate@ninformer-mnist"].roots, ()))


def test_a_paper_is_no_other_papers_business() -> None:
    modules = modules_run(INPUTS["train@nmn-resnet-cifar10"].roots)
    assert {module.split(".")[2] for module in modules if module.startswith("stages.papers.")} == {"nmn"}


def test_a_stage_has_the_parameters_that_it_uses_and_no_others() -> None:
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
