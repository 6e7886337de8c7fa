"""C++ beside a module, compiled for this processor when first needed and kept for the next time.

A fast path, never the only one: without a compiler, or where it fails, `load_library` says so once and gives None.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

_COMPILERS = ("c++", "g++", "clang++")
# No -ffast-math: a NaN has to stay one, or a training that diverges would go on.
_FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")


@cache
def load_library(source: Path) -> ctypes.CDLL | None:
    """The shared library of a C++ file without dependencies; None where it can't be had."""
    compiler = os.environ.get("CXX") or next((name for name in _COMPILERS if shutil.which(name)), None)
    if compiler is None:
        return None
    try:
        version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
        parts = [source.read_bytes(), version, " ".join(_FLAGS).encode(), _processor().encode()]
        built = _cache_folder() / f"{source.stem}-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}.so"
        if not built.is_file():
            _compile(compiler, source, built)
        return ctypes.CDLL(str(built))
    except (OSError, subprocess.CalledProcessError) as error:
        reason = error.stderr.decode(errors="replace") if isinstance(error, subprocess.CalledProcessError) else error
        print(f"{source.name}: can't be compiled, using PyTorch's operators: {reason}", file=sys.stderr)
        return None


def call(source: Path, name: str, *arguments: Tensor | float | None) -> None:
    """Call a function of a library that is there: a tensor as its memory, None as no memory, an integer as `long`."""
    library = load_library(source)
    assert library is not None, "the caller has asked for it"
    kinds: dict[type, Any] = {float: ctypes.c_float, int: ctypes.c_long, bool: ctypes.c_long}
    getattr(library, name)(
        *(
            ctypes.c_void_p(None if value is None else value.data_ptr())
            if value is None or isinstance(value, Tensor)
            else kinds[type(value)](value)
            for value in arguments
        )
    )


def _compile(compiler: str, source: Path, built: Path) -> None:
    """Compile beside `built` and rename: another process sees all of it or nothing."""
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        part = Path(folder) / built.name
        subprocess.run(
            [compiler, *_FLAGS, "-shared", "-fPIC", str(source), "-o", str(part)], capture_output=True, check=True
        )
        part.replace(built)


def _cache_folder() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "claimcheck"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _processor() -> str:
    """What -march=native depends on: a home folder may be shared between machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))
