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
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import Any

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
_CALL_BYTES = 1 << 22
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
    for library in LIBRARIES:
        with suppress(ImportError):  # a stage that needs it reports that
            importlib.import_module(library)
    _load_code(verbs)
    if threading.active_count() > 1:
        os.unlink(address)
        return  # a fork would copy locks that another thread holds; threads of OpenBLAS and jemalloc end before a fork
    gc.freeze()
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ, None)
        selector.register(sys.stdin, selectors.EVENT_READ, None)
        children: set[socket.socket] = set()
        open_for_calls = True
        while open_for_calls or children:
            for key, _ in selector.select():
                if key.fileobj is sys.stdin:
                    selector.unregister(sys.stdin)
                    selector.unregister(listener)
                    listener.close()
                    os.unlink(address)
                    open_for_calls = False
                elif key.fileobj is listener:
                    _take_call(listener.accept()[0], read, selector, children)
                else:
                    child, caller = key.data
                    _look_after(child, caller, selector, children)


def _load_code(verbs: Sequence[str]) -> None:
    """Import our code and compute its digests, because each stage would take half a second for both."""
    sys.path.insert(0, os.getcwd())
    with suppress(Exception):  # a stage whose code or parameters are at fault reports that
        for verb in verbs:
            importlib.import_module(f"stages.{verb}")
        if verbs:
            importlib.import_module("stages.worker")
            importlib.import_module("stages.params.stage_inputs").digest_all_code()
    for verb in verbs:
        sys.modules.pop(f"stages.{verb}", None)  # each runs as `__main__`


def _take_call(
    caller: socket.socket, read: Mapping[str, str], selector: selectors.BaseSelector, children: set[socket.socket]
) -> None:
    """Fork for a caller in this folder whose variables are those that were `read` when the libraries were loaded."""
    call, files = _read_call(caller)
    if call is None or call.pop("cwd") != os.getcwd() or read_at_start(call["environment"]) != read:
        _close(files)
        caller.close()  # without a pid, so that the caller runs the stage itself
        return
    ours = [caller, *(key.fileobj for key in selector.get_map().values() if isinstance(key.fileobj, socket.socket))]
    child = multiprocessing.get_context("fork").Process(target=_run, args=(ours, files), kwargs=call)
    child.start()
    _close(files)
    with suppress(OSError):  # the caller is gone already, which the selector reports
        caller.sendall(f"{child.pid}\n".encode())
    children.add(caller)
    selector.register(child.sentinel, selectors.EVENT_READ, (child, caller))
    selector.register(caller, selectors.EVENT_READ, (child, caller))


def _read_call(caller: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    caller.settimeout(10)
    content, files = b"", list[int]()
    try:
        while not content.endswith(b"\n") and len(content) < _CALL_BYTES:
            part, more, _, _ = socket.recv_fds(caller, 1 << 16, 3)
            files += more
            if not part:
                return None, files
            content += part
        caller.settimeout(None)
        return json.loads(content), files
    except (OSError, ValueError):
        return None, files


def _look_after(
    child: BaseProcess, caller: socket.socket, selector: selectors.BaseSelector, children: set[socket.socket]
) -> None:
    """Handle the end of a child or of its caller, which sends nothing after its call."""
    if caller not in children:
        return
    if child.exitcode is None:
        child.kill()
    child.join()
    with suppress(OSError):
        caller.sendall(f"{child.exitcode}\n".encode())
    selector.unregister(child.sentinel)
    selector.unregister(caller)
    children.remove(caller)
    caller.close()
    child.close()


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)


def _run(
    of_server: Sequence[socket.socket],
    files: Sequence[int],
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
) -> None:
    """Run `python -m module arguments` in the child; multiprocessing ends it as the interpreter would."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # end with the caller
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for connection in of_server:
        connection.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
