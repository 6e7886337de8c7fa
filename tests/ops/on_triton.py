"""Triton kernels without a GPU: run by Triton's interpreter, and compiled for an H100."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

# Said before Triton warns of it: a product followed by a sum may round once.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


@contextmanager
def interpreted(kernels: Path) -> Iterator[ModuleType]:
    """A module of kernels as Triton's interpreter runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        spec = importlib.util.spec_from_file_location(f"interpreted_{kernels.stem}", kernels)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module


def built_for_h100(
    kernel: Any,
    pointers: Mapping[str, str],
    constants: Mapping[str, object],
    *,
    aligned: tuple[str, ...] = (),
    num_warps: int = 4,
    num_stages: int = 1,
) -> tuple[str, int]:
    """PTX, and the bytes of stack that a thread takes: what doesn't fit its registers.

    `pointers`: the type of the numbers behind each argument that is an address; those and `aligned` divide by 16.
    """
    import triton

    signature = {arg: f"*{pointers[arg]}" if arg in pointers else "i32" for arg in kernel.arg_names}
    signature |= dict.fromkeys(constants, "constexpr")
    even = [place for place, arg in enumerate(kernel.arg_names) if arg in pointers or arg in aligned]
    source = triton.compiler.ASTSource(
        kernel, signature, dict(constants), {(place,): [["tt.divisibility", 16]] for place in even}
    )
    target = triton.backends.compiler.GPUTarget("cuda", 90, 32)
    built = triton.compile(source, target=target, options={"num_warps": num_warps, "num_stages": num_stages})
    assert "sm_90" in built.asm["ptx"]
    # As NVIDIA's tool beside Triton reads it.
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    used = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert used, said
    return built.asm["ptx"], int(used[2])
