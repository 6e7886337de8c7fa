"""Run specs, their keys, and the code digests in them, which cover everything that a run executes."""

import ast
import dataclasses
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages import LOADED
from stages.datasets.packed import Kind
from stages.faults import in_one_line
from stages.params.schema import known_papers
from stages.run import (
    AugmentationSpec,
    ModelSpec,
    OptimizerSpec,
    Protocol,
    Replicate,
    RunSpec,
    SplitSpec,
    changed_parts,
)
from stages.runs.fingerprint import (
    CHOOSING,
    PACKAGE_ROOT,
    TRAINING_ROOTS,
    code_fingerprint,
    import_closure,
    imported_modules,
    is_fast,
    is_pinned,
    module_digest,
    significant_text,
    source_path,
    unlike_loaded,
)
from stages.runs.store import home
from tests.preloaded import python
from tests.project import EXPERIMENT, REPOSITORY, copy_stages, environment, make_project

SPEC = RunSpec(
    model=ModelSpec(path="stages.papers.ninformer.vit:ViT", arguments={"dim": 16}),
    protocol=Protocol(optimizer=OptimizerSpec(name="adam", lr=0.001), batch_size=4, epochs=2, mean=(0.5,), std=(0.5,)),
    data_digest="d" * 64,
    replicate=Replicate(seed=0),
    code={"stages.training.loop": "1234"},
)


def test_key_is_pinned() -> None:
    """If this fails, every published key changes: only a change in the meaning of specs may do that."""
    assert SPEC.run_key == "9b3979ccd5623ac23c7db8953d158ddd2d38c5ef86c4574ba365673ef0a4c32e"


@given(
    lr=st.floats(1e-6, 1, allow_nan=False),
    epochs=st.integers(1, 500),
    seed=st.integers(0, 99),
    fold=st.none() | st.integers(0, 4),
    folds=st.none() | st.integers(2, 5),
    images=st.none() | st.integers(1, 50000),
)
def test_spec_survives_json(
    lr: float, epochs: int, seed: int, fold: int | None, folds: int | None, images: int | None
) -> None:
    protocol = dataclasses.replace(
        SPEC.protocol,
        optimizer=OptimizerSpec(name="adamw", lr=lr),
        epochs=epochs,
        split=SplitSpec(kind="folds", folds=folds),
        train_images=images,
    )
    spec = dataclasses.replace(SPEC, protocol=protocol, replicate=Replicate(seed=seed, fold=fold))
    again = RunSpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert again.run_key == spec.run_key


@pytest.mark.parametrize(
    "change",
    [
        {"data_digest": "e" * 64},
        {"replicate": Replicate(seed=1)},
        {"replicate": Replicate(seed=0, fold=0)},
        {"code": {"stages.training.loop": "1235"}},
        {"model": ModelSpec(path="stages.papers.ninformer.vit:ViT", arguments={"dim": 32})},
        {"protocol": dataclasses.replace(SPEC.protocol, precision="bfloat16")},
        {"protocol": dataclasses.replace(SPEC.protocol, augmentation=AugmentationSpec(crop_padding=1))},
        {"protocol": dataclasses.replace(SPEC.protocol, train_images=10)},
    ],
    ids=["data", "seed", "fold", "code", "model", "precision", "augmentation", "cut"],
)
def test_everything_that_affects_results_changes_the_key(change: dict[str, Any]) -> None:
    assert dataclasses.replace(SPEC, **change).run_key != SPEC.run_key


def test_changed_parts_are_listed_with_old_and_new_values() -> None:
    other = dataclasses.replace(
        SPEC,
        protocol=dataclasses.replace(SPEC.protocol, epochs=3, optimizer=OptimizerSpec(name="adam", lr=0.01)),
        code={"stages.training.loop": "1235"},
    )
    assert changed_parts(SPEC.to_dict(), other.to_dict()) == [
        "code of stages.training.loop",
        "protocol.epochs: 2 -> 3",
        "protocol.optimizer.lr: 0.001 -> 0.01",
    ]
    assert changed_parts(SPEC.to_dict(), SPEC.to_dict()) == []


SOURCE = '''"""What it is."""
import math  # for pi

def area(r):
    """πr²"""
    # the formula
    return f"{math.pi * r**2} # not a comment"
'''
BARE = 'import math\ndef area(r):\n    return f"{math.pi * r**2} # not a comment"'


def test_only_code_and_strings_are_significant() -> None:
    assert significant_text(SOURCE) == BARE
    assert significant_text(SOURCE.replace("r**2", "r**3")) != BARE
    assert significant_text(SOURCE.replace("# not", "# nota")) != BARE
    assert significant_text('def f():\n    """a\n    é"""; return "ü"\n') == 'def f():\n    ; return "ü"'


def tokens_that_count(source: str) -> str:
    """An independent computation: all tokens except comments and docstrings, without white space."""
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None
    }
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    kept = [token.string for token in tokens if token.type != tokenize.COMMENT and token.start not in docstrings]
    return "".join("".join(kept).split())


def test_only_comments_and_docstrings_are_removed() -> None:
    for path in (PACKAGE_ROOT / "stages").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        assert "".join(significant_text(source).split()) == tokens_that_count(source), path


def test_closure_follows_imports_and_includes_the_model() -> None:
    closure = import_closure([*TRAINING_ROOTS["images"], "stages.papers.ninformer.ninformer"])
    assert {
        "stages.training.images",
        "stages.training.protocol",
        "stages.ops.normalize",
        "stages.papers.ninformer.layers",
        "stages.papers.ninformer.mlp_mixer",
    } <= closure
    assert "stages.papers.ninformer.local_vit" not in closure, "another arm's model isn't included"


def test_run_keys_include_operators_but_not_their_fast_paths() -> None:
    closure = import_closure(["stages.papers.hyperbf.hyperbf", "stages.papers.dac.resnet_v1"])
    assert {"stages.ops.rbf", "stages.ops.dac", "stages.ops.precision"} <= closure
    assert is_fast("stages.ops.fast.dac") and "stages.ops.fast.dac" in imported_modules("stages.ops.dac")
    assert not any(is_fast(module) for module in closure)
    assert not is_fast("fast") and not is_fast("mine.ops.fast.dac") and not is_fast("stages.ops.faster")


@pytest.mark.parametrize(("kind", "model"), [("images", "ninformer.vit"), ("table", "dac.mlp"), ("text", "nmn.gpt")])
def test_closure_includes_every_module_that_training_loads(kind: Kind, model: str) -> None:
    """The interpreter's own imports must be in the static closure."""
    roots = [*TRAINING_ROOTS[kind], f"stages.papers.{model}"]
    script = f"import sys, {', '.join(roots)}; print(*[m for m in sys.modules if m.startswith('stages.')])"
    done = python("-c", script, cwd=PACKAGE_ROOT, env=os.environ)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    packages = {name for name in loaded if (PACKAGE_ROOT / Path(*name.split("."))).is_dir()}
    # A paper's package imports all its models; tests compare fast paths with their references.
    siblings = import_closure([f"stages.papers.{model.partition('.')[0]}"])
    fast = {name for name in loaded if is_fast(name)}
    # Modules that choose others import all of them; the chosen one is a root.
    others = import_closure(name for module in CHOOSING for name in imported_modules(module))
    assert set(loaded) - packages - siblings - fast - others <= import_closure(roots)


def test_standard_library_module_is_refused() -> None:
    with pytest.raises(ModuleNotFoundError, match="os is not a module"):
        code_fingerprint(["os"])


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_digests_are_equal_across_python_versions(version: str) -> None:
    roots = [*TRAINING_ROOTS["images"], "stages.papers.ninformer.local_vit"]
    script = f"from stages.runs.fingerprint import code_fingerprint as f; print(f({roots!r}))"
    found = shutil.which(f"python{version}")
    if found is None or subprocess.run([found, "--version"], capture_output=True, check=False).returncode:
        pytest.skip(f"no python{version} on this machine")
    other = subprocess.run([found, "-c", script], capture_output=True, text=True, check=True, cwd=PACKAGE_ROOT)
    assert other.stdout.strip() == str(code_fingerprint(roots))


@pytest.mark.parametrize(
    ("content", "said"), [(b"def f(:\n", r"line 1: .*invalid syntax"), (b"x = '\xff'\n", "not UTF-8 at byte 5")]
)
def test_unparsable_module_is_reported_in_one_line(
    content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.py"
    path.write_bytes(content)

    @in_one_line("inputs")
    def verb() -> int:
        module_digest(path)
        return 0

    assert verb() == 1
    assert re.fullmatch(
        rf"inputs: {path}.*{said}; fix it, or restore it \(`git checkout {path}`\), .*\n", capsys.readouterr().err
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A project with its own code."""
    project = make_project(tmp_path / "project", epochs=1)
    copy_stages(project)
    return project


def import_anew(project: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Return the output of `code` in a new interpreter."""
    env = environment() | {"PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False)


def ask(project: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `python arguments` with the project's own code."""
    return python(*arguments, cwd=project, env=environment() | {"PYTHONPATH": str(project)} | variables)


def test_loaded_code_equals_the_files_on_disk() -> None:
    code = code_fingerprint(["stages.verdicts"])
    assert set(code) & LOADED.keys() and unlike_loaded(code) == []
    assert unlike_loaded(dict.fromkeys(code, "0" * 16)) == sorted(set(code) & LOADED.keys())
    assert source_path("stages") is not None


def test_quick_edit_of_equal_length_is_noticed(checkout: Path) -> None:
    """Bytecode validated by time and size would hide the new source."""
    path = checkout / "stages" / "device.py"
    path.write_text("x = 1\n", encoding="utf-8")
    assert import_anew(checkout, "from stages.device import x; print(x)").stdout == "1\n"
    before = path.stat()
    path.write_text("x = 2\n", encoding="utf-8")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert import_anew(checkout, "from stages.device import x; print(x)").stdout == "2\n"


def test_damaged_bytecode_is_recompiled(checkout: Path) -> None:
    path = checkout / "stages" / "device.py"
    path.write_text("x = 1\n", encoding="utf-8")
    assert import_anew(checkout, "import stages.device").returncode == 0
    (cached,) = (path.parent / "__pycache__").glob("device.*.pyc")
    cached.write_bytes(cached.read_bytes()[:-3])
    assert import_anew(checkout, "from stages.device import x; print(x)").stdout == "1\n"


def test_stage_refuses_params_that_changed_while_dvc_ran(checkout: Path) -> None:
    assert ask(checkout, "-m", "stages.train", EXPERIMENT).returncode == 0
    assert ask(checkout, "-m", "stages.inputs").returncode == 0
    params, name = checkout / "params.yaml", f"evaluate@{EXPERIMENT}"
    content = params.read_text(encoding="utf-8")
    params.write_text(content.replace("repeats: 1", "repeats: 2", 1), encoding="utf-8")
    assert params.read_text(encoding="utf-8") != content
    refused = ask(checkout, "-m", "stages.evaluate", EXPERIMENT, DVC_STAGE=name)
    assert refused.returncode == 1
    assert f"{name}: params changed while dvc repro ran; nothing is written, run dvc repro again" in refused.stderr
    assert not (checkout / "data" / "results").exists()
    params.write_text(content, encoding="utf-8")
    again = ask(checkout, "-m", "stages.evaluate", EXPERIMENT, DVC_STAGE=name)
    assert again.returncode == 0, again.stderr


EDITED = """
import pathlib, subprocess, sys
from stages import device
from stages.params.stage_inputs import changed_meanwhile
path = pathlib.Path(device.__file__)
path.write_text(path.read_text() + sys.argv[1])
subprocess.run([sys.executable, "-m", "stages.inputs"], check=True, stdout=subprocess.DEVNULL)
print(changed_meanwhile())
"""


@pytest.mark.parametrize(("added", "changed"), [("x = 1\n", "['stages.device']\n"), ("# a comment\n", "[]\n")])
def test_code_that_was_edited_between_loading_and_inputs_counts_as_changed(
    checkout: Path, added: str, changed: str
) -> None:
    done = ask(checkout, "-c", EDITED, added, DVC_STAGE=f"train@{EXPERIMENT}")
    assert (done.stdout, done.stderr) == (changed, "")


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
def with_mine(tmp_path: Path) -> Path:
    """A project with its own code, whose ViT uses a layer of a user's package next to `stages`."""
    project = make_project(tmp_path / "project", epochs=1, steps_per_epoch=1)
    copy_stages(project)
    (project / "mine").mkdir()
    (project / "mine" / "__init__.py").write_text("NAME = 'mine'\n", encoding="utf-8")
    (project / "mine" / "layers.py").write_text(LAYERS, encoding="utf-8")
    (project / "mine" / "helpers.py").write_text("SLOPE = 0.01\n", encoding="utf-8")
    use(project, "Leaky()", "from mine.layers import Leaky")
    return project


def use(project: Path, layer: str, statement: str) -> None:
    """Append `layer` to the ViT's MLPs."""
    source = shutil.copy(REPOSITORY / VIT, project / VIT).read_text(encoding="utf-8")
    plain = "FeedForward(dim=dim, hidden_dim=mlp_dim, dropout=dropout)"
    assert source.count(plain) == source.count("from torch import") == 1
    source = source.replace(plain, f"nn.Sequential({plain}, {layer})")
    (project / VIT).write_text(source.replace("from torch import", f"{statement}\nfrom torch import"), encoding="utf-8")


def train(project: Path) -> str:
    done = ask(project, "-m", "stages.train", EXPERIMENT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def spec_of(project: Path, arm: str) -> dict[str, str]:
    folder = project / "data" / "runs" / EXPERIMENT
    runs = json.loads((folder / "runs.json").read_text(encoding="utf-8"))["runs"]
    key = next(run["run_key"] for run in runs if run["arm"] == arm)
    code: dict[str, str] = json.loads((folder / key / "spec.json").read_text(encoding="utf-8"))["code"]
    return code


def test_users_module_is_in_the_key_and_its_edit_retrains(with_mine: Path) -> None:
    train(with_mine)
    assert {"mine", "mine.layers", "mine.helpers"} <= spec_of(with_mine, "vit").keys()
    assert not {"mine.layers"} & spec_of(with_mine, "ninformer").keys(), "it doesn't import the module"
    assert "0 to train" in train(with_mine)
    (with_mine / "mine" / "helpers.py").write_text("SLOPE = 0.01  # explained\n", encoding="utf-8")
    assert "0 to train" in train(with_mine)
    (with_mine / "mine" / "helpers.py").write_text("SLOPE = 0.5\n", encoding="utf-8")
    said = train(with_mine)
    assert "vit.0: to train, code of mine.helpers" in said and "ninformer.0: taken from the store" in said


def test_users_package_elsewhere_is_in_the_key_and_a_missing_one_refused(with_mine: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (with_mine / "mine").rename(tmp_path / "elsewhere" / "mine")
    refused = ask(with_mine, "-m", "stages.train", EXPERIMENT)
    assert refused.returncode == 1 and "Traceback" not in refused.stderr
    assert f"{EXPERIMENT}.vit can't be trained: " in refused.stderr
    assert "vit.py: imports mine.layers, which can't be found" in refused.stderr
    both = os.pathsep.join([str(with_mine), str(tmp_path / "elsewhere")])
    done = ask(with_mine, "-m", "stages.train", EXPERIMENT, PYTHONPATH=both)
    assert done.returncode == 0, done.stderr
    assert "mine.helpers" in spec_of(with_mine, "vit")


def test_editing_a_users_module_during_training_publishes_nothing(with_mine: Path) -> None:
    script = f"""
import threading
from pathlib import Path
from stages.scheduling import runner
from stages.scheduling import local
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
runner.train_experiment({EXPERIMENT!r}, load_params(), devices=["cpu"],
    report=events.append, stop=threading.Event(), only=["vit.0"])
print([event.message for event in events if event.kind == "failed"])
"""
    done = ask(with_mine, "-c", script)
    assert "asks for other code than this process has loaded (mine.helpers)" in done.stdout, done.stdout + done.stderr
    assert not list((with_mine / "data" / "store" / "runs").glob("*/result.json"))


def test_dynamically_imported_layer_is_refused(with_mine: Path) -> None:
    use(with_mine, 'import_module("mine.layers").Leaky()', "from importlib import import_module")
    done = ask(with_mine, "-m", "stages.train", EXPERIMENT, "--runs", "vit.0")
    assert done.returncode == 1
    assert "has layers of mine.layers, which its key doesn't cover" in done.stdout + done.stderr


def test_stage_inputs_include_the_users_package(with_mine: Path) -> None:
    done = ask(with_mine, "-m", "stages.inputs")
    assert done.returncode == 0, done.stderr
    for verb in ("train", "evaluate"):
        content = json.loads((with_mine / "data" / "inputs" / f"{verb}@{EXPERIMENT}.json").read_text(encoding="utf-8"))
        assert {"mine", "mine.layers", "mine.helpers"} <= content["code"].keys(), verb


def test_change_in_how_the_worker_computes_changes_the_key(with_mine: Path) -> None:
    """The module that flushes denormals and builds networks is in every run's key."""
    train(with_mine)
    session = with_mine / "stages" / "training" / "session.py"
    source = session.read_text(encoding="utf-8")
    assert source.count("torch.set_flush_denormal(True)") == 1
    session.write_text(
        source.replace("torch.set_flush_denormal(True)", "torch.set_flush_denormal(False)"), encoding="utf-8"
    )
    assert train(with_mine).count("to train, code of stages.training.session") == 2


def test_worker_module_itself_does_not_handle_data_or_layers() -> None:
    """`stages.training.session` does."""
    tree = (REPOSITORY / "stages" / "worker.py").read_text(encoding="utf-8")
    assert [
        word for word in ("flush_denormal", "build_model", "make_task", "read_rows", "manual_seed") if word in tree
    ] == []


def test_installed_packages_and_standard_library_are_pinned() -> None:
    assert all(is_pinned(name) for name in ("os", "json.decoder", "torch.nn", "pydantic", "yaml", "_struct"))
    assert not is_pinned("tests") and source_path("torch.nn") is None and source_path("os.path") is None
    assert not is_pinned("no_such_module") and source_path("no_such_module") is None


def test_relative_imports_and_parent_packages_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "relative_example"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "top.py").write_text("X = 1\n", encoding="utf-8")
    (package / "inner" / "__init__.py").write_text("from . import leaf\n", encoding="utf-8")
    (package / "inner" / "leaf.py").write_text("from .. import top\nfrom ..top import X\n", encoding="utf-8")
    (package / "maybe.py").write_text(
        "try:\n    import not_there\nexcept ImportError:\n    not_there = None\n", encoding="utf-8"
    )
    (package / "never.py").write_text("import not_there\n", encoding="utf-8")
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
def test_package_init_files_contain_only_names(package: str) -> None:
    """They run with each module but aren't in any key, because papers' packages import all their models."""
    body = ast.parse((REPOSITORY / "stages" / package / "__init__.py").read_text(encoding="utf-8")).body
    assert {type(node) for node in body} <= {ast.Expr, ast.ImportFrom, ast.Assign}
    assert [ast.unparse(node.targets[0]) for node in body if isinstance(node, ast.Assign)] in ([], ["__all__"])


@pytest.mark.parametrize(
    "copy", [".dvc/tmp/exps/tmp1", ".dvc/tmp/exps/standalone/tmp1", ".dvc/tmp/exps/tmp1/paper", ""]
)
def test_temporary_copy_of_dvc_uses_the_projects_store(
    copy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / copy).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path / copy)
    assert home().absolute() == tmp_path / ("paper/data" if copy.endswith("paper") else "data")
