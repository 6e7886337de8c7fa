"""Record what no run key covers but may change numbers: other code, environment variables, fast paths, the machine.

All of it is read from the running process, so no list of expected causes is needed.
"""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import re
import site
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from stages import LOADED
from stages.device import device_name, give_back_freed_memory
from stages.ops.fast.cpp import COMPILED
from stages.run import canonical_json
from stages.runs.fingerprint import (
    imported_modules,
    is_fast,
    is_pinned,
    module_digest,
    reachable,
    source_digest,
    source_path,
)

_VARIABLES = (
    *("ATEN_", "BLIS_ARCH", "CUBLAS", "CUDNN_", "DNNL_", "GLIBC_TUNABLES", "KMP_DETERMINISTIC", "LD_AUDIT"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "MKL_", "NPY_DISABLE_CPU", "NPY_ENABLE_CPU", "NVIDIA_TF32", "ONEDNN_"),
    *("OPENBLAS_CORETYPE", "TORCHINDUCTOR_CPP_", "TORCHINDUCTOR_EMULATE", "TORCH_ALLOW_TF32", "TRITON_F32"),
)
"""Beginnings of variables by which libraries choose instructions; the number of threads has a field of its own."""
_SHORT = re.compile(r"[\w.,:=+-]{1,40}")
_AT_START = ("sitecustomize", "usercustomize")
_UNWATCHED = ("__main__", "__mp_main__", "stages", "benchmarks", "service")
"""Loaded before our importer; what is in no run key has the revision of the result."""
_keyed: set[str] = set()
_real_folder = cache(os.path.realpath)  # thousands of loaded modules are in hundreds of folders


def describe_process(code: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return variables and code that neither the run key nor pinned packages cover; `code` is the key's."""
    # modules that an earlier run of this process loaded were in its key; packages are recognised by their folder
    _keyed.update(name for name, digest in code.items() if "==" not in digest)
    return {"modules": _other_modules() | _start_hooks(), "variables": describe_variables()}


def describe_fast_paths(taken: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return digests of each fast path's source, of all fast modules that it imports, and of its C++ and library."""
    return {name: {"module": _fast_source(name)} | COMPILED.get(name, {}) for name in sorted(taken)}


def digest(content: bytes) -> str:
    """Return twelve hexadecimal digits, like an environment's own digest."""
    return hashlib.sha256(content).hexdigest()[:12]


def _other_modules() -> dict[str, str]:
    """Return digests by top-level package; for a module of ours that another importer loaded, that importer's name."""
    found: dict[str, list[str]] = {}
    strange = {}
    for name, module in sorted(sys.modules.items()):
        path = getattr(module, "__file__", None)  # anything may be put into sys.modules
        if not isinstance(path, str) or name in _UNWATCHED:
            continue
        top = name.partition(".")[0]
        if top == "stages" or name in _keyed:
            if name not in LOADED:
                strange[name] = f"loaded by {type(getattr(module, '__loader__', None)).__name__}"
        elif top not in _UNWATCHED and not _is_pinned(top, path):
            content = Path(path).read_bytes() if os.path.isfile(path) else b""
            found.setdefault(top, []).append(f"{name} {digest(content)}")
    return {top: digest("\n".join(lines).encode()) for top, lines in found.items()} | strange


def _is_pinned(top: str, path: str) -> bool:
    """True for packages, code that they compile, and start-up modules that come with Python itself."""
    compiled = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if compiled and path.startswith(os.path.join(compiled, "")):
        return True
    if top in _AT_START:
        return Path(path).parent == Path(os.__file__).parent
    if not os.path.isabs(path):
        return is_pinned(top)  # torch has modules whose files don't exist
    real = os.path.realpath(path) if os.path.islink(path) else f"{_real_folder(os.path.dirname(path))}{os.sep}"
    return real.startswith(_package_folders())


@cache
def _package_folders() -> tuple[str, ...]:
    """Return the folders of this Python's packages; a folder on PYTHONPATH may hold a `random` or a `torch`, too."""
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    folders = [os.path.dirname(os.__file__), *site.getsitepackages([sys.prefix, sys.base_prefix]), *user]
    return tuple(os.path.realpath(folder) + os.sep for folder in folders)


@cache
def _start_hooks() -> dict[str, str]:
    """Return digests of `.pth` files that run code when Python starts and differ from every package's record."""
    found = {}
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    for folder in map(Path, [*site.getsitepackages(), *user]):
        for path in sorted(folder.glob("*.pth")):
            content = path.read_bytes()
            if re.search(rb"^import[ \t]", content, re.MULTILINE):
                own = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
                line = b"%b,sha256=%b," % (path.name.encode(), own)
                if not any(line in record.read_bytes() for record in folder.glob("*.dist-info/RECORD")):
                    found[path.name] = digest(content)
    return found


def describe_variables() -> dict[str, str]:
    """Return variables that may change numbers; long values and paths as digests, because they are published."""
    return {
        name: value if _SHORT.fullmatch(value) else digest(value.encode(errors="surrogateescape"))
        for name, value in sorted(os.environ.items())
        if name.startswith(_VARIABLES)
    }


def _fast_source(name: str) -> str:
    modules = reachable(
        [f"stages.ops.fast.{name}"], lambda module: [one for one in imported_modules(module) if is_fast(one)]
    )
    digests = {
        module: source_digest(LOADED[module].decode()) if module in LOADED else module_digest(path)
        for module in modules
        if (path := source_path(module)) is not None
    }
    return digest(canonical_json(digests).encode())


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return versions, device name, CPU capability, threads: everything known to change the last digits.

    A GPU's entry also says that its own generator, whose draws differ from a CPU's, drew crops and flips.
    """
    drawn = {} if device.type == "cpu" else {"augmentation_generator": device.type}
    return drawn | {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": str(torch.__version__),
        "device": device.type,
        "device_name": device_name(device),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "threads": torch.get_num_threads(),
        "system": platform.system(),
        "cores": os.cpu_count(),
    }


def reset_peak_memory(device: torch.device) -> None:
    """Restart `peak_memory_bytes`, so that each run of a process is measured by itself (Linux and CUDA)."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif os.access("/proc/self/clear_refs", os.W_OK):
        give_back_freed_memory()
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")  # proc(5): resets the peak resident set size


def peak_memory_bytes(device: torch.device) -> int:
    """CUDA: peak bytes of tensors on the device.  CPU: the process's largest resident size, Python included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource  # absent on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024)
