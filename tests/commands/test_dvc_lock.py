"""A repro writes dvc.lock less often than DVC does, but with the same content."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project import REPOSITORY

STAGES = """
stages:
  one: {cmd: echo 1 > one, outs: [one]}
  two: {cmd: echo 2 > two, deps: [one], outs: [two]}
  three: {cmd: ls dvc.lock > seen; false, deps: [two], outs: [three]}
"""


@pytest.mark.parametrize(("module", "seen"), [("dvc", "dvc.lock\n"), ("stages.commands.dvc", "")])
def test_failing_repro_writes_the_stages_that_ran_into_the_lock(module: str, seen: str, tmp_path: Path) -> None:
    (tmp_path / "dvc.yaml").write_text(STAGES, encoding="utf-8")
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q", "--no-scm"], cwd=tmp_path, check=True)
    env = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-P", "-m", module, "repro"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 255 and "failed to reproduce 'three'" in done.stderr, done.stderr
    assert (tmp_path / "seen").read_text(encoding="utf-8") == seen
    lock = (tmp_path / "dvc.lock").read_text(encoding="utf-8")
    assert "  one:\n" in lock and "  two:\n" in lock and "three" not in lock
