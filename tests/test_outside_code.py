"""Code that a run executes is in its key wherever it lies: the worker's number-making part, a user's own packages."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from stages.params.schema import known_papers
from stages.runs.fingerprint import code_fingerprint, import_closure, imported_modules, is_pinned, source_path
from tests.preloaded import python
from tests.project import EXPERIMENT, REPOSITORY, environment, make_project

VIT = Path("stages/papers/ninformer/vit.py")
LAYERS = '''"""A layer of one's own."""
from __future__ import annotations

import torch
from torch import nn

from .helpers import SLOPE


class Leaky(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x, SLOPE * x)
'''


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A project with its own code, whose ViT takes a layer from a user's package beside `stages`."""
    project = make_project(tmp_path / "project", epochs=1, steps_per_epoch=1)
    shutil.copytree(REPOSITORY / "stages", project / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    (project / "mine").mkdir()
    (project / "mine" / "__init__.py").write_text("NAME = 'mine'\n")
    (project / "mine" / "layers.py").write_text(LAYERS)
    (project / "mine" / "helpers.py").write_text("SLOPE = 0.01\n")
    use(project, "Leaky()", "from mine.layers import Leaky")
    return project


def use(project: Path, layer: str, statement: str) -> None:
    """Put `layer` behind the ViT's MLPs."""
    source = shutil.copy(REPOSITORY / VIT, project / VIT).read_text()
    plain = "FeedForward(dim=dim, hidden_dim=mlp_dim, dropout=dropout)"
    assert source.count(plain) == source.count("from torch import") == 1
    source = source.replace(plain, f"nn.Sequential({plain}, {layer})")
    (project / VIT).write_text(source.replace("from torch import", f"{statement}\nfrom torch import"))


def ask(project: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = environment() | {"PYTHONPATH": str(project)} | variables
    return python(*arguments, cwd=project, env=env)


def train(project: Path) -> str:
    done = ask(project, "-m", "stages.train", EXPERIMENT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def spec_of(project: Path, arm: str) -> dict[str, str]:
    folder = project / "data" / "runs" / EXPERIMENT
    runs = json.loads((folder / "runs.json").read_text())["runs"]
    key = next(run["run_key"] for run in runs if run["arm"] == arm)
    code: dict[str, str] = json.loads((folder / key / "spec.json").read_text())["code"]
    return code


def test_a_users_module_is_in_the_key_and_an_edit_there_trains_anew(checkout: Path) -> None:
    train(checkout)
    assert {"mine", "mine.layers", "mine.helpers"} <= spec_of(checkout, "vit").keys()
    assert not {"mine.layers"} & spec_of(checkout, "ninformer").keys(), "which doesn't import it"
    assert "0 to train" in train(checkout)
    (checkout / "mine" / "helpers.py").write_text("SLOPE = 0.01  # explained\n")
    assert "0 to train" in train(checkout)
    (checkout / "mine" / "helpers.py").write_text("SLOPE = 0.5\n")
    said = train(checkout)
    assert "vit.0: to train, code of mine.helpers" in said and "ninformer.0: taken from the store" in said


def test_a_package_elsewhere_on_the_path_is_keyed_too_and_a_missing_one_refused(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (checkout / "mine").rename(tmp_path / "elsewhere" / "mine")
    refused = ask(checkout, "-m", "stages.train", EXPERIMENT)
    assert refused.returncode == 1 and "Traceback" not in refused.stderr
    assert f"{EXPERIMENT}.vit can't be trained: " in refused.stderr
    assert "vit.py: imports mine.layers, which can't be found" in refused.stderr
    both = os.pathsep.join([str(checkout), str(tmp_path / "elsewhere")])
    done = ask(checkout, "-m", "stages.train", EXPERIMENT, PYTHONPATH=both)
    assert done.returncode == 0, done.stderr
    assert "mine.helpers" in spec_of(checkout, "vit")


def test_an_edit_of_a_users_module_while_it_trains_publishes_nothing(checkout: Path) -> None:
    script = f"""
import threading
from pathlib import Path
from stages.scheduling import runner
from stages.scheduling.engine import local
from stages.params.experiment import load_params
path = Path("mine/helpers.py")
run_groups = local.run_groups
def edit_first(*arguments):
    path.write_text("SLOPE = 0.5\\n")
    try:
        return run_groups(*arguments)
    finally:
        path.write_text("SLOPE = 0.01\\n")
local.run_groups = edit_first
events = []
runner.train_experiment({EXPERIMENT!r}, load_params(), data=Path("data"), devices=["cpu"],
    report=events.append, stop=threading.Event(), only=["vit.0"])
print([event.message for event in events if event.kind == "failed"])
"""
    done = ask(checkout, "-c", script)
    assert "asks for other code than this process has loaded (mine.helpers)" in done.stdout, done.stdout + done.stderr
    assert not list((checkout / "data" / "store" / "runs").glob("*/result.json"))


def test_a_layer_that_is_imported_by_name_is_refused(checkout: Path) -> None:
    use(checkout, 'import_module("mine.layers").Leaky()', "from importlib import import_module")
    done = ask(checkout, "-m", "stages.train", EXPERIMENT, "--runs", "vit.0")
    assert done.returncode == 1
    assert "has layers of mine.layers, which its key doesn't cover" in done.stdout + done.stderr


def test_what_a_stage_runs_of_a_users_package_is_in_its_file(checkout: Path) -> None:
    done = ask(checkout, "-m", "stages.inputs")
    assert done.returncode == 0, done.stderr
    for verb in ("train", "evaluate"):
        content = json.loads((checkout / "data" / "inputs" / f"{verb}@{EXPERIMENT}.json").read_text())
        assert {"mine", "mine.layers", "mine.helpers"} <= content["code"].keys(), verb


def test_the_worker_makes_no_number_that_the_key_doesnt_cover(checkout: Path) -> None:
    """Where denormals are flushed and networks are built is in the key of every run."""
    train(checkout)
    session = checkout / "stages" / "training" / "session.py"
    source = session.read_text()
    assert source.count("torch.set_flush_denormal(True)") == 1
    session.write_text(source.replace("torch.set_flush_denormal(True)", "torch.set_flush_denormal(False)"))
    assert train(checkout).count("to train, code of stages.training.session") == 2


def test_the_worker_itself_touches_neither_rows_nor_layers() -> None:
    """Its work with networks is in `stages.training.session`; it may check whether weights are finite."""
    tree = (REPOSITORY / "stages" / "worker.py").read_text()
    assert [
        word for word in ("flush_denormal", "build_model", "make_task", "read_rows", "manual_seed") if word in tree
    ] == []


def test_installed_packages_and_the_library_are_pinned() -> None:
    assert all(is_pinned(name) for name in ("os", "json.decoder", "torch.nn", "pydantic", "yaml", "_struct"))
    assert not is_pinned("tests") and source_path("torch.nn") is None and source_path("os.path") is None
    assert not is_pinned("no_such_module") and source_path("no_such_module") is None


def test_relative_imports_and_parents_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "relative_example"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "top.py").write_text("X = 1\n")
    (package / "inner" / "__init__.py").write_text("from . import leaf\n")
    (package / "inner" / "leaf.py").write_text("from .. import top\nfrom ..top import X\n")
    (package / "maybe.py").write_text("try:\n    import not_there\nexcept ImportError:\n    not_there = None\n")
    (package / "never.py").write_text("import not_there\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert imported_modules("relative_example.inner.leaf") == {"relative_example", "relative_example.top"}
    assert import_closure(["relative_example.inner"]) == {
        "relative_example",
        "relative_example.inner",
        "relative_example.inner.leaf",
        "relative_example.top",
    }
    assert "relative_example.maybe" in code_fingerprint(["relative_example.maybe"])
    with pytest.raises(ModuleNotFoundError, match=r"never\.py: imports not_there, which can't be found"):
        code_fingerprint(["relative_example.never"])


NAMES_ONLY = ("ops", "optim", "training", *(f"papers/{name}" for name in known_papers()))


@pytest.mark.parametrize("package", NAMES_ONLY)
def test_packages_on_the_way_hold_names_alone(package: str) -> None:
    """A package's file runs with each of its modules; the papers' import each other's models and are in no key."""
    body = ast.parse((REPOSITORY / "stages" / package / "__init__.py").read_text()).body
    assert {type(node) for node in body} <= {ast.Expr, ast.ImportFrom, ast.Assign}
    assert [ast.unparse(node.targets[0]) for node in body if isinstance(node, ast.Assign)] in ([], ["__all__"])
