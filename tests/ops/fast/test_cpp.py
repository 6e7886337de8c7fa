"""C++ sources are compiled when needed, and their threads belong to their own process."""

import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from stages.ops.fast import attention, cpp
from tests.polling import wait_until
from tests.preloaded import python
from tests.project import REPOSITORY

pytestmark = pytest.mark.skipif(cpp.load_library(attention.SOURCE) is None, reason="no C++ compiler here")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A source with one function, which compiles quickly."""
    source = tmp_path / "small.cpp"
    source.write_text('#include "cpp.h"\nextern "C" int seven() { return 7; }', encoding="utf-8")
    return source


def test_changed_header_recompiles_the_library(tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built = []
    for addition in ("", "", "// another"):
        header = tmp_path / "cpp.h"
        header.write_text(cpp._HEADER.read_text(encoding="utf-8") + addition, encoding="utf-8")
        with monkeypatch.context() as patch:
            patch.setattr(cpp, "_HEADER", header)
            assert cpp.load_library.__wrapped__(small) is not None
        built.append(len(list(tmp_path.rglob("*.so"))))
    assert built == [1, 1, 2]


def test_concurrent_users_of_a_library_compile_it_once(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, compiled = tmp_path / "c++", tmp_path / "compiled"
    real = next(name for name in cpp._COMPILERS if shutil.which(name))
    note = f'case "$*" in *-shared*) sleep 0.3; echo once >>{compiled};; esac'
    compiler.write_text(f'#!/bin/sh\n{note}\nexec {real} "$@"\n', encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with ThreadPoolExecutor(3) as pool:  # opens the lock separately, like a process
        libraries = [*pool.map(cpp.load_library.__wrapped__, [small] * 3)]
    assert all(library is not None and library.seven() == 7 for library in libraries)
    assert compiled.read_text(encoding="utf-8") == "once\n"


def test_killed_compiling_process_does_not_block_others(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler, started = tmp_path / "c++", tmp_path / "started"
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *-shared*) touch {started}; exec sleep 60;; esac\necho version\n', encoding="utf-8"
    )
    compiler.chmod(0o755)
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "CXX": str(compiler), "PATH": os.environ["PATH"]}
    script = (
        f"from pathlib import Path; from stages.ops.fast.cpp import load_library; load_library(Path({str(small)!r}))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=REPOSITORY, env=environment, start_new_session=True
    ) as one:
        wait_until(started.exists)
        one.kill()  # its compiler continues
        one.wait()
        try:
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
            library = cpp.load_library.__wrapped__(small)
            assert library is not None and library.seven() == 7
        finally:
            os.killpg(one.pid, signal.SIGKILL)


@pytest.mark.parametrize("home", ["a file", "none"])
def test_libraries_are_stored_in_temporary_files_without_a_home(
    home: str, tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even root can't write to this home, because its `.cache` is a file."""
    (tmp_path / "home").write_text("", encoding="utf-8")
    (tmp_path / "temporary").mkdir()
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    if home == "none":

        def homeless() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    library = cpp.load_library.__wrapped__(small)
    assert library is not None and library.seven() == 7
    (folder,) = (tmp_path / "temporary").iterdir()
    assert folder.name == f"claimcheck-{os.getuid()}" and folder.stat().st_mode & 0o077 == 0
    assert len(list(folder.glob("*.so"))) == 1


def test_folder_writable_by_others_is_not_trusted(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "home").write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"claimcheck-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    assert cpp.load_library.__wrapped__(small) is None
    assert "set XDG_CACHE_HOME" in capsys.readouterr().err and not list(folder.iterdir())


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names of x86's processors")
@pytest.mark.parametrize(("capability", "march"), [("default", "x86-64"), ("avx2", "x86-64-v3"), ("avx512", "native")])
def test_code_targets_the_processor_that_pytorch_emulates(
    capability: str, march: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", capability)
    assert f"-march={march}" in cpp._flags()


@pytest.mark.parametrize("given", ["", "shared"])
def test_compiled_steps_are_cached_by_real_and_emulated_processor(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines of different kinds may share a disk."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folders = []
    for processor, played in (("one", "AVX512"), ("one", "AVX2"), ("other", "AVX512"), ("one", "AVX512")):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", given and str(tmp_path / given))
        monkeypatch.setattr(cpp, "_processor", lambda processor=processor: processor)
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda played=played: played)
        for _ in range(2):  # the second time as in a child
            cpp.keep_compiled_steps_apart()
        folders.append(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]))
    assert len(set(folders)) == 3 and folders[0] == folders[-1]
    assert {folder.parent for folder in folders} == {tmp_path / (given or f"torchinductor_{os.getuid()}")}


def test_fork_has_its_own_threads() -> None:
    code = """
import os, sys, torch
from stages.ops.yat import yat_attention
torch.set_num_threads(2)
q = torch.randn(1, 4, 8, 8)
yat_attention(q, q, q)
child = os.fork()
if child == 0:
    yat_attention(q, q, q)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = python("-c", code, cwd=REPOSITORY, env=os.environ)
    assert done.returncode == 0, done.stderr
