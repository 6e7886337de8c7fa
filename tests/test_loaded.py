"""The code that a process has loaded is known for sure: an edit meanwhile, undone or not, leaves no wrong result
behind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stages import LOADED
from stages.runs.fingerprint import code_fingerprint, source_path, unlike_loaded
from tests.preloaded import python
from tests.project import EXPERIMENT, REPOSITORY, environment, make_project

MODEL = "stages/papers/ninformer/layers.py"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A project with its own code."""
    project = make_project(tmp_path / "project", epochs=1)
    shutil.copytree(REPOSITORY / "stages", project / "stages", ignore=shutil.ignore_patterns("__pycache__"))
    return project


def import_anew(project: Path, code: str) -> subprocess.CompletedProcess[str]:
    """The output of `code` in an interpreter that is started for it."""
    env = environment() | {"PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False)


def ask(project: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`python arguments` with the project's own code."""
    return python(*arguments, cwd=project, env=environment() | {"PYTHONPATH": str(project)} | variables)


def test_this_process_runs_what_lies_on_the_disk() -> None:
    code = code_fingerprint(["stages.verdicts"])
    assert set(code) & LOADED.keys() and unlike_loaded(code) == []
    assert unlike_loaded(dict.fromkeys(code, "0" * 16)) == sorted(set(code) & LOADED.keys())
    assert source_path("stages") is not None


def test_an_edit_within_a_second_that_keeps_the_length_is_seen(checkout: Path) -> None:
    """Bytecode that is checked by time would be taken for the new source."""
    path = checkout / "stages" / "device.py"
    path.write_text("x = 1\n")
    assert import_anew(checkout, "from stages.device import x; print(x)").stdout == "1\n"
    before = path.stat()
    path.write_text("x = 2\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert import_anew(checkout, "from stages.device import x; print(x)").stdout == "2\n"


def test_damaged_bytecode_is_made_anew(checkout: Path) -> None:
    path = checkout / "stages" / "device.py"
    path.write_text("x = 1\n")
    assert import_anew(checkout, "import stages.device").returncode == 0
    (cached,) = (path.parent / "__pycache__").glob("device.*.pyc")
    cached.write_bytes(cached.read_bytes()[:-3])
    assert import_anew(checkout, "from stages.device import x; print(x)").stdout == "1\n"


TRAIN_WITH_AN_EDIT = f"""
import re, sys, threading
from pathlib import Path
from stages.scheduling import runner
from stages.scheduling.engine import local
from stages.params.experiment import load_params
path = Path({MODEL!r})
source = path.read_text()
names = local.run_groups
def edit_first(*arguments):
    path.write_text(source.replace("GELU", "Tanh").replace("gelu", "tanh") + "EDITED = 1\\n")
    try:
        return names(*arguments)
    finally:
        path.write_text(source)
local.run_groups = edit_first
events = []
done = runner.train_experiment({EXPERIMENT!r}, load_params(), data=Path("data"), devices=["cpu"],
    report=events.append, stop=threading.Event())
print(done, [event.message for event in events if event.kind == "failed"])
"""


def test_a_training_that_loads_other_code_than_its_key_names_publishes_nothing(checkout: Path) -> None:
    """ReLU to Tanh between the fingerprint and the import, undone afterwards."""
    done = ask(checkout, "-c", TRAIN_WITH_AN_EDIT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("False ['run "), done.stdout
    assert "asks for other code than this process has loaded (stages.papers.ninformer.layers)" in done.stdout
    assert not list((checkout / "data" / "store" / "runs").glob("*/result.json"))
    assert ask(checkout, "-m", "stages.train", EXPERIMENT).returncode == 0, "and the next one trains"


def test_an_evaluation_by_other_code_is_refused(checkout: Path) -> None:
    assert ask(checkout, "-m", "stages.train", EXPERIMENT).returncode == 0
    path = checkout / MODEL
    source = path.read_text()
    path.write_text(source + "EDITED = 1\n")
    refused = ask(checkout, "-m", "stages.evaluate", EXPERIMENT)
    assert refused.returncode == 1 and "Traceback" not in refused.stderr
    assert "was trained by other code than evaluates it (stages.papers.ninformer.layers)" in refused.stderr
    assert not (checkout / "data" / "results").exists()
    path.write_text(source)
    assert ask(checkout, "-m", "stages.evaluate", EXPERIMENT).returncode == 0


def test_params_that_were_edited_while_dvc_ran_are_refused_at_the_end_of_a_stage(checkout: Path) -> None:
    assert ask(checkout, "-m", "stages.train", EXPERIMENT).returncode == 0
    assert ask(checkout, "-m", "stages.inputs").returncode == 0
    params, name = checkout / "params.yaml", f"evaluate@{EXPERIMENT}"
    content = params.read_text()
    params.write_text(content.replace("warmup: 1", "warmup: 0", 1))
    assert params.read_text() != content
    refused = ask(checkout, "-m", "stages.evaluate", EXPERIMENT, DVC_STAGE=name)
    assert refused.returncode == 1
    assert f"{name}: params changed while dvc repro ran; nothing is written, run dvc repro again" in refused.stderr
    assert not (checkout / "data" / "results").exists()
    params.write_text(content)
    again = ask(checkout, "-m", "stages.evaluate", EXPERIMENT, DVC_STAGE=name)
    assert again.returncode == 0, again.stderr
