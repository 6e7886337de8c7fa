"""Forks stages from one process that has loaded torch, other libraries and our code, so that a repro loads them once.

`claimcheck repro` starts this file; so do tests, which name no verb and so load none of our code.  On each connection,
it takes one call (`ask`): a line of JSON, sent with the child's standard input, output and error.  It answers with two
lines, the child's pid and its exit code.  If the caller closes the connection earlier, the child is killed.  One thread
(a fork lacks the others), and only on Linux.

Our code is that of the working directory when the repro began.  `stages.params.stage_inputs` notices later edits.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import select
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import connection
from pathlib import Path

ADDRESS = "CLAIMCHECK_PRELOADED"
"""Environment variable with the Unix socket on which such a process takes calls."""
LIBRARIES = (
    "numpy",
    "PIL.Image",
    "pydantic.dataclasses",
    "rich.progress",
    "safetensors.numpy",
    "safetensors.torch",
    "scipy.stats",
    "sklearn.datasets",
    "sqlalchemy.dialects.sqlite",
    "sqlalchemy.orm",
    "torch._dynamo",  # the first step of an optimiser loads it
    "torch.utils.flop_counter",
    "yaml",
    "zoneinfo",
)
VERBS = ("evaluate", "fetch", "preprocess", "train")
"""Stages that run once for each experiment or data set."""
# Variables that the interpreter or a library reads only when it is loaded, so that a fork can't change them.
_READ_AT_START = ("PYTHON", "OMP_", "MKL_", "OPENBLAS_", "ATEN_", "TORCH", "LD_", "MALLOC_", "GLIBC_", "CUDA_")
_FORKS = multiprocessing.get_context("fork")
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a fork can't change."""
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_START)}


def ask(
    address: str,
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    files: Sequence[int] = (0, 1, 2),
    cwd: str | None = None,
) -> socket.socket:
    """Send a call and return its connection; `files` become the child's input, output and error.

    `cwd` is the process's folder (default: this process's), which the child keeps.

    Raises:
        OSError: no process listens there.
    """
    call = {"module": module, "arguments": list(arguments), "cwd": cwd or os.getcwd(), "environment": dict(environment)}
    content = json.dumps(call).encode() + b"\n"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.connect(address)
        sent = socket.send_fds(server, [content], files)
        server.sendall(content[sent:])
    except OSError:
        server.close()
        raise
    return server


def serve(address: str, verbs: Sequence[str]) -> None:
    """Load the libraries and the code of these verbs, then take calls until standard input and every child have ended.

    Calls wait while the libraries load, because loading them again would take longer.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all processes, and each stage handles it
    read = read_at_start(os.environ)  # before libraries add their own, as Inductor does
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the stages themselves do
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"{address}.new")
    listener.listen()
    os.rename(f"{address}.new", address)  # so that it exists only once it listens
    gc.disable()  # a third of the time of loading would go into looking for garbage
    for library in LIBRARIES:
        with suppress(ImportError):  # a stage that needs it reports that
            importlib.import_module(library)
    sys.path.insert(0, os.getcwd())
    with suppress(Exception):  # a stage whose code or parameters are at fault reports that
        for module in [*verbs, "worker"] if verbs else ():
            importlib.import_module(f"stages.{module}")
        if verbs:  # computing the digests would take each stage half a second, as importing does
            importlib.import_module("stages.params.stage_inputs").digest_all_code()
    for verb in verbs:
        sys.modules.pop(f"stages.{verb}", None)  # each runs as `__main__`
    if threading.active_count() > 1:
        os.unlink(address)
        return  # a fork would copy locks that another thread holds; threads of OpenBLAS and jemalloc end before a fork
    gc.freeze()
    gc.enable()
    compiling = _FORKS.Process(target=_compile_operators, daemon=True)
    if verbs:
        compiling.start()
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        caller, _ = listener.accept()
        _FORKS.Process(target=_supervise, args=(caller, listener, read)).start()
        caller.close()
    listener.close()
    os.unlink(address)
    for supervisor in {*multiprocessing.active_children()} - {compiling}:
        supervisor.join()


def _compile_operators() -> None:
    """Compile the C++ operators on the core that is idle until the first training."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # end with the server
    cpp = importlib.import_module("stages.ops.fast.cpp")
    for source in sorted(Path(__file__).parents[1].glob("ops/fast/*.cpp")):
        cpp.load_library(source)


def _supervise(caller: socket.socket, listener: socket.socket, read: Mapping[str, str]) -> None:
    """Fork for a caller in this folder whose variables are those that were `read` when the libraries were loaded.

    Others get no pid, so that they run the stage themselves.
    """
    listener.close()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # end with the server
    content, files = b"", list[int]()
    while not content.endswith(b"\n"):
        part, more, _, _ = socket.recv_fds(caller, 1 << 16, 3)
        if not part:
            return  # the caller is gone
        content, files = content + part, files + more
    call = json.loads(content)
    if call.pop("cwd") != os.getcwd() or read_at_start(call["environment"]) != read:
        return
    stage = _FORKS.Process(target=_run, args=(caller, files), kwargs=call)
    stage.start()
    for file in files:
        os.close(file)
    with suppress(OSError):  # the caller is gone already
        caller.sendall(f"{stage.pid}\n".encode())
    if stage.sentinel not in connection.wait([caller, stage.sentinel]):
        stage.kill()  # the caller, which sends nothing after its call, is gone
    stage.join()
    with suppress(OSError):
        caller.sendall(f"{stage.exitcode}\n".encode())


def _run(
    caller: socket.socket,
    files: Sequence[int],
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
) -> None:
    """Run `python -m module arguments` in the child; multiprocessing ends it as the interpreter would."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # end with the supervisor
    signal.signal(signal.SIGINT, signal.default_int_handler)
    caller.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
