"""`.ci/setup`: which part of the lock it installs, and what it says where the machine won't do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def setup(
    *arguments: str, env: dict[str, str] | None = None, script: Path = ROOT / ".ci/setup"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(script), *arguments], env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False
    )


def package_names(lines: str) -> set[str]:
    return set(re.findall(r"^([A-Za-z0-9._-]+)==", lines, re.MULTILINE))


def locked() -> str:
    return (ROOT / "requirements.lock").read_text()


def test_the_default_installs_the_lock_to_the_byte() -> None:
    assert setup("lines", "locked").stdout == locked()


def test_the_small_install_leaves_out_torch_and_cuda_alone() -> None:
    left_out = package_names(locked()) - package_names(setup("lines", "cpu").stdout)
    assert {name for name in left_out if not name.startswith(("nvidia-", "cuda-"))} == {
        "torch",
        "torchvision",
        "triton",
    }
    assert "nvidia-cudnn-cu13" in left_out


def test_what_is_left_of_the_lock_keeps_its_hashes() -> None:
    for text in re.split(r"\n(?=[A-Za-z0-9])", setup("lines", "cpu").stdout):
        assert "--hash=sha256:" in text
        assert text in locked()


def test_serving_leaves_out_the_tools_of_tests_and_checks() -> None:
    left_out = package_names(locked()) - package_names(setup("lines", "locked", "serving").stdout)
    assert {"pytest", "mypy", "ruff", "playwright"} <= left_out
    assert not {"torch", "fastapi", "dvc", "pillow", "uv"} & left_out


def test_an_unknown_backend_is_refused_with_the_choices() -> None:
    done = setup("install", "gpu")
    assert (done.returncode, done.stderr) == (1, "setup: TORCH_BACKEND is 'gpu'; known: locked, cpu\n")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The script in a folder of its own, so that a mistaken success can't touch this clone's environment."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/setup", tmp_path / ".ci/setup")
    for name in ("requirements.in", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def stand_in(folder: Path, name: str, body: str) -> dict[str, str]:
    """An environment whose PATH finds a command `name` of ours first."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    (bin_folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (bin_folder / name).chmod(0o755)
    return {"PATH": f"{bin_folder}:{os.environ['PATH']}"}


def test_a_full_disk_is_noticed_before_anything_is_made(copy: Path) -> None:
    env = stand_in(copy, "df", "printf 'Filesystem 1024-blocks Used Available\\n/dev/x 9 9 1024000\\n'")
    done = setup("install", env=env, script=copy / ".ci/setup")
    assert done.returncode == 1
    assert "1000 MiB of disk are free here, 8000 MiB are needed; TORCH_BACKEND=cpu needs 2500 MiB" in done.stderr
    assert not (copy / ".venv").exists()


def test_an_old_python_is_refused_by_its_version(copy: Path) -> None:
    body = 'test "$1" = --version && echo "Python 3.9.2"; test "$1" = --version'
    done = setup("install", env=stand_in(copy, "python3", body), script=copy / ".ci/setup")
    assert (done.returncode, done.stderr[:48]) == (1, "setup: Python 3.9.2 is too old, 3.11 or later is")


def test_a_python_without_venv_names_the_package(copy: Path) -> None:
    body = 'case "$2" in *ensurepip*) exit 1;; esac'
    done = setup("install", env=stand_in(copy, "python3", body), script=copy / ".ci/setup")
    assert (done.returncode, "apt install python3-venv" in done.stderr) == (1, True)


def test_a_small_pytorch_that_cannot_be_had_says_what_can(copy: Path) -> None:
    """Here with an installer that has every package but that one."""
    tools = copy / ".venv" / "bin"
    tools.mkdir(parents=True)
    (tools / "python").write_text("#!/bin/sh\n")
    (tools / "uv").write_text('#!/bin/sh\ncase "$*" in *--torch-backend*) exit 2;; esac\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    done = setup("install", "cpu", script=copy / ".ci/setup")
    assert done.returncode == 1
    assert "without TORCH_BACKEND=cpu the locked one is installed" in done.stderr
