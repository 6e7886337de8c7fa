"""C++ beside a module is compiled when needed, and its threads are its process's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stages.ops import native, similarity_native

pytestmark = pytest.mark.skipif(native.load_library(similarity_native.SOURCE) is None, reason="no C++ compiler here")


def test_a_library_is_compiled_again_when_its_header_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    built = []
    for addition in ("", "", "// another"):
        header = tmp_path / "native.h"
        header.write_text(native._HEADER.read_text() + addition)
        with monkeypatch.context() as patch:
            patch.setattr(native, "_HEADER", header)
            assert native.load_library.__wrapped__(similarity_native.SOURCE) is not None
        built.append(len(list(tmp_path.rglob("*.so"))))
    assert built == [1, 1, 2]


def test_a_fork_has_threads_of_its_own() -> None:
    code = """
import os, sys, torch
from stages.ops.yat_attention import yat_attention
torch.set_num_threads(2)
q = torch.randn(1, 4, 8, 8)
yat_attention(q, q, q)
child = os.fork()
if child == 0:
    yat_attention(q, q, q)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
