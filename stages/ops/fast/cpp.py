"""Compile a module's C++ file for this processor when it is first needed, and cache the library.

If that fails, `load_library` reports it once and returns None, and callers fall back to PyTorch's operators.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_HEADER = Path(__file__).with_suffix(".h")
_COMPILERS = ("c++", "g++", "clang++")
# No -ffast-math: NaNs must propagate, or a diverged training would continue.
_FLAGS = ("-std=c++17", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
# PyTorch's variable that limits its own instruction set limits our C++, too.
_LESSER_PROCESSORS = {"default": "x86-64", "avx2": "x86-64-v3"}
TAKEN: set[str] = set()
"""Modules of the fast paths that ran since a training cleared this: no run key has them, so the result names them."""
COMPILED: dict[str, dict[str, str]] = {}
"""By the name of a loaded library, the digests of its C++ and of the bytes that were loaded."""


@cache
def load_library(source: Path) -> ctypes.CDLL | None:
    """Load the library of a C++ file, compiling it if needed; None on failure.  `cpp.h` is its only header of ours."""
    compiler = os.environ.get("CXX") or next((name for name in _COMPILERS if shutil.which(name)), None)
    if compiler is None:
        return None
    try:
        version = subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout
        code = [path.read_bytes() for path in (source, _HEADER)]
        parts = [*code, version, " ".join(_flags()).encode(), _processor().encode()]
        built = _library_path(f"{source.stem}-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}.so")
        if not built.is_file():
            with _alone(built.with_name(f"{source.stem}.lock")):
                if not built.is_file():
                    _compile(compiler, source, built)
        digests = {"source": b"|".join(code), "library": built.read_bytes()}
        COMPILED[source.stem] = {name: hashlib.sha256(content).hexdigest()[:12] for name, content in digests.items()}
        return ctypes.CDLL(str(built))
    except (OSError, subprocess.CalledProcessError) as error:
        reason = error.stderr.decode(errors="replace") if isinstance(error, subprocess.CalledProcessError) else error
        print(f"{source.name}: can't be compiled, using PyTorch's operators: {reason}", file=sys.stderr)
        return None


def call(source: Path, name: str, *arguments: Tensor | float | Sequence[int] | None) -> int:
    """Call a function of a loaded library and return its result, if it has one.

    Tensors are passed as data pointers, None as a null pointer, an integer as `long`, a sequence as a `long` array.
    """
    library = load_library(source)
    assert library is not None, "the caller has asked for it"
    TAKEN.add(source.stem)
    answer: int = getattr(library, name)(*map(_as_c, arguments))
    return answer


def _as_c(argument: Tensor | float | Sequence[int] | None) -> Any:
    match argument:
        case None:
            return ctypes.c_void_p(None)
        case Tensor():
            return ctypes.c_void_p(argument.data_ptr())
        case float():
            return ctypes.c_float(argument)
        case int():
            return ctypes.c_long(argument)
    return (ctypes.c_long * len(argument))(*argument)


def is_plain(*tensors: Tensor, dtype: torch.dtype = torch.float32, compiled: bool = False) -> bool:
    """True if all are real tensors of `dtype` on a CPU, in eager PyTorch with at most a backward pass.

    Tracing, exports, `torch.func`, forward-mode differentiation and lazily negated views need PyTorch's operators.
    `compiled` also accepts tracing by `torch.compile`, for callers that have registered operators.
    """
    are_plain = all(
        tensor.dtype == dtype
        and tensor.device.type == "cpu"
        and tensor.numel() > 0
        and type(tensor) in (Tensor, torch.nn.Parameter)
        for tensor in tensors
    )
    if torch.compiler.is_compiling():  # the dispatcher resolves negated views before it calls an operator
        return are_plain and compiled and not torch.compiler.is_exporting()
    is_watched = (
        torch._C._is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
    )
    return are_plain and not is_watched and not any(tensor.is_neg() for tensor in tensors)


def is_single(tensor: Tensor) -> bool:
    """True for float32 on a CPU, traced or not."""
    return tensor.device.type == "cpu" and tensor.dtype == torch.float32


def require_single(name: str, tensors: Sequence[Tensor]) -> None:
    """Raise `TypeError` if operator `name` received anything else."""
    if unfit := [f"{tensor.dtype} on {tensor.device}" for tensor in tensors if not is_single(tensor)]:
        raise TypeError(f"{name} got {', '.join(unfit)}; expected torch.float32 on cpu alone")


def in_rows(tensor: Tensor) -> Tensor:
    """Return the tensor with a contiguous last dimension, copied if necessary."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def head_strides(*tensors: Tensor) -> list[int]:
    """Return the strides of sample, head and row of each tensor [B, H, T, E]."""
    return [stride for tensor in tensors for stride in tensor.stride()[:3]]


def in_parts(count: int, work: Callable[[slice], None]) -> None:
    """Run `work` on slices of 0 to `count`, one per PyTorch thread; the slices depend only on the number of threads."""
    parts = min(torch.get_num_threads(), count)
    edges = [count * index // parts for index in range(parts + 1)]
    own, *others = (slice(start, end) for start, end in pairwise(edges))
    futures = [_pool(parts - 1).submit(work, other) for other in others]
    work(own)
    for future in futures:
        future.result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Thread pool, cached because starting threads takes longer than a small layer."""
    return ThreadPoolExecutor(threads)


# A forked process has none of the pool's threads.
os.register_at_fork(after_in_child=_pool.cache_clear)


def _flags() -> tuple[str, ...]:
    if platform.machine() not in ("x86_64", "AMD64"):
        return (*_FLAGS, "-march=native")
    processor = _LESSER_PROCESSORS.get(os.environ.get("ATEN_CPU_CAPABILITY", ""), "native")
    return (*_FLAGS, f"-march={processor}", "-mprefer-vector-width=512")  # by default GCC uses half a register


def _compile(compiler: str, source: Path, built: Path) -> None:
    """Compile next to `built`, then rename, so that other processes never see a partial file."""
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        part = Path(folder) / built.name
        subprocess.run(
            [compiler, *_flags(), f"-I{_HEADER.parent}", "-shared", "-fPIC", str(source), "-o", str(part)],
            capture_output=True,
            check=True,
        )
        part.replace(built)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold a file lock, so that one process compiles and the others use its result."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _library_path(name: str) -> Path:
    """Path of a compiled library, existing or not; an existing one may be in a read-only folder."""
    with suppress(RuntimeError):
        if (kept := _home_cache() / name).is_file():
            return kept
    return cache_folder() / name


def cache_folder() -> Path:
    """Return the folder of this user's compiled files: the user's cache or, if that isn't writable, a temporary one.

    Raises:
        PermissionError: another user could write to the folder.
    """
    with suppress(OSError, RuntimeError):
        folder = _home_cache()
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    folder = Path(tempfile.gettempdir()) / f"claimcheck-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} isn't this user's alone, and ~/.cache can't be written to; set XDG_CACHE_HOME")
    return folder


def keep_compiled_steps_apart() -> None:
    """Give `torch.compile` a cache folder for this processor and the capability that PyTorch uses on it.

    PyTorch's cache keys include neither, although it compiles with -march=native and for the capability.  On another
    processor that shares the folder, such code would crash or compute something else.
    """
    given = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}")
    played = torch.backends.cpu.get_cpu_capability()
    own = hashlib.sha256(f"{_processor()}|{played}".encode()).hexdigest()[:16]
    if given.name != own:  # equal if a parent process has done this
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(given / own)


def _home_cache() -> Path:
    """Return the folder in the user's cache; RuntimeError if the user has no home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "claimcheck"


def _processor() -> str:
    """Describe the properties that -march=native depends on: machines may share a home folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_answers: dict[tuple[str, bool], bool] = {}
_trying = threading.Lock()


def agrees_here(claim: str, fast: Callable[[], Iterable[Tensor]], plain: Callable[[], Iterable[Tensor]]) -> bool:
    """True if both functions produce the same tensors; if not, a warning says so with `claim`, a text for users.

    The answer is cached per oneDNN setting, because PyTorch's routines depend on it.
    """
    key = claim, torch._C._get_mkldnn_enabled()
    if (known := _answers.get(key)) is not None:
        return known
    with _trying, torch.inference_mode(False), torch.enable_grad():
        if key not in _answers:
            _answers[key] = all(same_bits(*pair) for pair in zip(fast(), plain(), strict=True))
            if not _answers[key]:
                capability = torch.backends.cpu.get_cpu_capability()
                what = f"not PyTorch's bit by bit on this processor ({capability}), using PyTorch's operators"
                print(f"{claim}: {what}", file=sys.stderr)
    return _answers[key]


def same_bits(found: Tensor, wanted: Tensor) -> bool:
    """True if dtype, shape, strides and all bits are equal, including the sign of zero; all NaNs are equal."""
    if (found.dtype, found.shape, found.stride()) != (wanted.dtype, wanted.shape, wanted.stride()):
        return False
    if not wanted.is_floating_point():
        return torch.equal(found, wanted)
    bits = _BITS[wanted.itemsize]
    found, wanted = found.detach(), wanted.detach()
    return torch.equal(*(each.masked_fill(each.isnan(), torch.nan).view(bits) for each in (found, wanted)))


@cache
def all_numbers() -> Tensor:
    """Return all 65,536 bfloat16 numbers, in the order of their bits."""
    with torch.inference_mode(False):
        return torch.arange(1 << 16, dtype=torch.int32, device="cpu").to(torch.int16).view(torch.bfloat16)
