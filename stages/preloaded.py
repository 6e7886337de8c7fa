"""Forks stages from one process that has loaded torch and the other libraries, so that a `dvc repro` loads them once.

`claimcheck repro` starts it, as a file: of our code it imports nothing, so each stage loads what is on the disk.  It
takes one call at a connection (`ask`): a line of JSON, sent with the child's standard input, output and error.  It
answers with lines too, the child's pid and its exit code; a connection that closes before is a caller that is gone, and
ends its child.  Standard library only, one thread (a fork lacks the others), and Linux alone.
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
"""Environment variable: the Unix socket on which such a process takes calls."""
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
# What the interpreter or a library reads when it is loaded, and a child could no longer change.
_READ_AT_START = ("PYTHON", "OMP_", "MKL_", "OPENBLAS_", "ATEN_", "TORCH", "LD_", "MALLOC_", "GLIBC_", "CUDA_")
_CALL_BYTES = 1 << 22
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that only a process of its own could still change."""
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_START)}


def ask(
    address: str,
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    files: Sequence[int] = (0, 1, 2),
) -> socket.socket:
    """A connection on which such a process was sent a call; `files` become the child's input, output and error.

    Raises:
        OSError: no process listens there.
    """
    call = {"module": module, "arguments": list(arguments), "cwd": os.getcwd(), "environment": dict(environment)}
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


def serve(address: str) -> None:
    """Load the libraries, then take calls at `address` until standard input ends and every child has ended.

    Who calls while they load waits, which takes less time than to load them once more.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a whole foreground: each stage answers it in its own way
    read = read_at_start(os.environ)  # later it holds what libraries put there, as Inductor does its cache
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the stages themselves want it
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(f"{address}.new")
    listener.listen()
    os.rename(f"{address}.new", address)  # it can't be found before it listens
    for library in LIBRARIES:
        with suppress(ImportError):  # a stage that needs it says so
            importlib.import_module(library)
    if threading.active_count() > 1:
        os.unlink(address)
        return  # its locks would be copied as it holds them; those of OpenBLAS and jemalloc end before a fork
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


def _take_call(
    caller: socket.socket, read: Mapping[str, str], selector: selectors.BaseSelector, children: set[socket.socket]
) -> None:
    """Fork for a caller whose variables are those that were `read` when the libraries were loaded."""
    call, files = _read_call(caller)
    if call is None or read_at_start(call["environment"]) != read:
        _close(files)
        caller.close()  # without a pid: the caller goes on by itself
        return
    ours = [caller, *(key.fileobj for key in selector.get_map().values() if isinstance(key.fileobj, socket.socket))]
    child = multiprocessing.get_context("fork").Process(target=_run, args=(ours, files), kwargs=call)
    child.start()
    _close(files)
    with suppress(OSError):  # a caller that is gone already, which the selector tells
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
    """The child has ended, or its caller, which says nothing once it has called."""
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
    cwd: str,
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
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    sys.path.insert(0, cwd)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(sys.argv[1])
