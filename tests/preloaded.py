"""Start Python processes quickly by forking a server that has imported every library but none of our code.

`python` runs `-m module …`, `-c code …` or `-P file …` like a new process, with the code on its `PYTHONPATH`. The
single-threaded server reads one call per line, forks, and returns exit status and output. Settings that are read at
startup (hash seed, torch's threads) are the server's, and `atexit` functions don't run: tests that depend on
these must start a real process.
"""

import functools
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import selectors
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

LIBRARIES = (
    "numpy",
    "PIL.Image",
    "pydantic.dataclasses",
    "pydantic.main",
    "rich.progress",
    "safetensors.numpy",
    "safetensors.torch",
    "scipy.stats",
    "sqlalchemy.dialects.sqlite",
    "sqlalchemy.orm",
    "torch._dynamo",  # imported by the first optimiser step
    "torch.utils.flop_counter",
    "yaml",
    "zoneinfo",
)


# Replaces `sys.executable` in children: asks the server unless torch has to read its settings again.
_STAND_IN = """#!{python} -IS
import json, os, socket, sys
if {read_at_start} != {{name: os.environ.get(name) for name in {read_at_start}}}:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({calls!r})
    call = dict(arguments=sys.argv[1:], cwd=os.getcwd(), env=dict(os.environ), before=None, forks_too=False)
    server.sendall(json.dumps(call).encode() + b"\\n")
    answer = json.loads(b"".join(iter(lambda: server.recv(65536), b"")))
sys.stdout.write(answer["stdout"])
sys.stderr.write(answer["stderr"])
sys.exit(answer["returncode"])
"""


def python(
    *arguments: str,
    cwd: Path,
    env: Mapping[str, str],
    before: Callable[[], None] | None = None,
    forks_too: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run `python arguments`; `before`, a function of a module, is called in the child first.

    If `forks_too`, the child's own uses of `sys.executable` are forked from the same server.
    """
    hook = None if before is None else (before.__module__, before.__qualname__)
    question = {"arguments": arguments, "cwd": str(cwd), "env": dict(env), "before": hook, "forks_too": forks_too}
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    try:
        server.stdin.write(json.dumps(question) + "\n")
        server.stdin.flush()
        answer = json.loads(server.stdout.readline())
    except BaseException:  # a timed-out test leaves its answer unread
        server.kill()
        server.communicate()
        _server.cache_clear()
        raise
    return subprocess.CompletedProcess([sys.executable, *arguments], **answer)


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Start the server, which exits when its stdin, and so this process, closes."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-P", __file__]
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _serve() -> None:
    for library in LIBRARIES:
        importlib.import_module(library)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lack the other threads"
    assert "stages" not in sys.modules
    gc.freeze()
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as calls:
        calls.bind(f"{folder}/calls")
        calls.listen()
        _stand_in(Path(folder)).write_text(
            _STAND_IN.format(
                python=sys.executable,
                read_at_start={name: os.environ.get(name) for name in ("ATEN_CPU_CAPABILITY", "OMP_NUM_THREADS")},
                calls=calls.getsockname(),
            )
        )
        _stand_in(Path(folder)).chmod(0o700)
        for line in sys.stdin:
            print(json.dumps(_answer(json.loads(line), calls)), flush=True)
    os._exit(0)  # skip the orderly exit, which takes half a second


def _stand_in(folder: Path) -> Path:
    return folder / "python"


def _answer(question: Mapping[str, Any], calls: socket.socket) -> dict[str, Any]:
    """Run the call in a child and serve the calls that the child makes meanwhile."""
    pipes = {name: os.pipe() for name in ("stdout", "stderr")}
    writers = [writer for _, writer in pipes.values()]
    own = {**question, "stand_in": _stand_in(Path(calls.getsockname()).parent) if question["forks_too"] else None}
    del own["forks_too"]
    child = multiprocessing.get_context("fork").Process(target=_run, args=(writers,), kwargs=own)
    child.start()
    output = dict.fromkeys(pipes, b"")
    with selectors.DefaultSelector() as selector:
        for name, (reader, writer) in pipes.items():
            os.close(writer)
            selector.register(reader, selectors.EVENT_READ, name)
        selector.register(calls, selectors.EVENT_READ)
        while len(selector.get_map()) > 1:
            for key, _ in selector.select():
                if key.fileobj is calls:
                    with calls.accept()[0] as caller, caller.makefile("rb") as sent:
                        caller.sendall(json.dumps(_answer(json.loads(sent.readline()), calls)).encode())
                    continue
                part = os.read(key.fd, 1 << 16)
                output[key.data] += part
                if not part:
                    selector.unregister(key.fd)
                    os.close(key.fd)
    child.join()
    return {"returncode": child.exitcode} | {name: text.decode() for name, text in output.items()}


def _run(
    writers: Sequence[int],
    arguments: Sequence[str],
    cwd: str,
    env: Mapping[str, str],
    before: tuple[str, str] | None,
    stand_in: Path | None,
) -> None:
    """Run in the child; multiprocessing exits with the same status as the interpreter."""
    for number, writer in enumerate(writers, start=1):
        os.dup2(writer, number)
        os.close(writer)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.dont_write_bytecode = bool(env.get("PYTHONDONTWRITEBYTECODE"))
    option, what, *sys.argv[1:] = arguments
    roots = [str(Path(root).absolute()) for root in env.get("PYTHONPATH", "").split(os.pathsep) if root]
    sys.path[:0] = [*{"-m": [cwd], "-c": [""], "-P": []}[option], *roots]
    importlib.invalidate_caches()
    if stand_in is not None:
        sys.executable = str(stand_in)
    if before is not None:
        getattr(importlib.import_module(before[0]), before[1])()
    if option == "-m":
        sys.modules.pop(what, None)  # `before` may have imported the module that now runs as `__main__`
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    elif option == "-P":
        sys.argv[0] = what
        runpy.run_path(what, run_name="__main__")
    else:
        sys.argv[0] = "-c"
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), vars(sys.modules["__main__"]))


if __name__ == "__main__":
    _serve()
