"""Verbs as separate processes that need not import everything anew: forked from one that has imported it once.

`Preloaded` starts `python -m tests.preloaded`, which has one thread, reads one call per line, forks and answers with
exit status and output.  A child runs the module as `python -m` would; settings that the interpreter reads at its start
(hash seed, threads of torch) are those of the parent.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import selectors
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

MODULES = ("stages.cli", "stages.evaluate", "stages.inputs", "stages.preprocess", "stages.record", "stages.report")


class Preloaded:
    """The process that forks.  Use as a context manager."""

    def __enter__(self) -> Preloaded:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.preloaded"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()

    def call(
        self,
        module: str,
        *arguments: str,
        cwd: Path,
        env: Mapping[str, str],
        before: Callable[[], None] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """`python -m module arguments`; `before` (a function of a module) is called in the child first."""
        hook = None if before is None else [before.__module__, before.__qualname__]
        question = {"module": module, "arguments": arguments, "cwd": str(cwd), "env": dict(env), "before": hook}
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.write(json.dumps(question) + "\n")
        self._server.stdin.flush()
        answer = json.loads(self._server.stdout.readline())
        return subprocess.CompletedProcess([module, *arguments], **answer)


def _serve() -> None:
    for module in MODULES:
        importlib.import_module(module)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)


def _answer(question: Mapping[str, Any]) -> dict[str, Any]:
    pipes = {name: os.pipe() for name in ("stdout", "stderr")}
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, (_, writer) in enumerate(pipes.values(), start=1):
            os.dup2(writer, number)
        os._exit(_run(**question))
    output = dict.fromkeys(pipes, b"")
    with selectors.DefaultSelector() as selector:
        for name, (reader, writer) in pipes.items():
            os.close(writer)
            selector.register(reader, selectors.EVENT_READ, name)
        while selector.get_map():
            for key, _ in selector.select():
                part = os.read(key.fd, 1 << 16)
                output[key.data] += part
                if not part:
                    selector.unregister(key.fd)
                    os.close(key.fd)
    _, status = os.waitpid(child, 0)
    return {"returncode": os.waitstatus_to_exitcode(status)} | {name: text.decode() for name, text in output.items()}


def _run(
    module: str, arguments: Sequence[str], cwd: str, env: Mapping[str, str], before: tuple[str, str] | None
) -> int:
    """Runs in the child; returns its exit status."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if before is not None:
        getattr(importlib.import_module(before[0]), before[1])()
    sys.argv = [module, *arguments]
    sys.modules.pop(module, None)  # what is run is `__main__`
    status: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code
    except BaseException:  # noqa: BLE001  (as the interpreter does at its end)
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status if isinstance(status, int) else int(status is not None)


if __name__ == "__main__":
    _serve()
