"""Start Python processes quickly as forks of `stages.commands.preloaded`, which has loaded all libraries, not our code.

`python` runs `-m module …`, `-c code …` or `-P file …` like a new process, with the code on its `PYTHONPATH`. Settings
that are read at startup (hash seed, torch's threads) are the server's, and `atexit` functions don't run: tests that
depend on these must start a real process.
"""

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stages.commands import preloaded
from tests.polling import wait_until

FOLDER = Path(__file__).parent
# Replaces `sys.executable` in children: asks the server unless torch has to read its settings again.
STAND_IN = """#!{python} -IS
import json, os, sys
if {read_at_start} != {{name: os.environ.get(name) for name in {read_at_start}}}:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
sys.path.append({folder_of_preloaded!r})
from preloaded import ask
call = dict(arguments=sys.argv[1:], cwd=os.getcwd(), env=dict(os.environ), before=None, executable={python!r})
with ask({address!r}, "forked", [json.dumps(call)], {environment}, cwd={folder!r}) as connection:
    sys.exit(int(connection.makefile("rb").read().split()[1]))
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
    folder, environment = _server()
    hook = None if before is None else (before.__module__, before.__qualname__)
    executable = str(folder / "python") if forks_too else sys.executable
    call = {"arguments": arguments, "cwd": str(cwd), "env": dict(env), "before": hook, "executable": executable}
    pipes = [os.pipe() for _ in ("output", "errors")]
    with open(os.devnull, "rb") as nothing:
        files = [nothing.fileno(), *(writer for _, writer in pipes)]
        connection = preloaded.ask(str(folder / "calls"), "forked", [json.dumps(call)], environment, files, str(FOLDER))
    with connection, connection.makefile("rb") as answer, ThreadPoolExecutor(len(pipes)) as pool:
        for _, writer in pipes:
            os.close(writer)
        output, errors = pool.map(_read, (reader for reader, _ in pipes))
        code = int(answer.read().split()[1])
    return subprocess.CompletedProcess([sys.executable, *arguments], code, output, errors)


def _read(pipe: int) -> str:
    with os.fdopen(pipe, encoding="utf-8") as file:
        return file.read()


@functools.cache
def _server() -> tuple[Path, dict[str, str]]:
    """Start the server, which ends with this process; return its folder and environment."""
    folder = Path(tempfile.mkdtemp(prefix="claimcheck-"))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    address = str(folder / "calls")
    read_at_start = {name: os.environ.get(name) for name in ("ATEN_CPU_CAPABILITY", "OMP_NUM_THREADS")}
    (folder / "python").write_text(
        STAND_IN.format(
            python=sys.executable,
            read_at_start=read_at_start,
            folder_of_preloaded=str(Path(preloaded.__file__).parent),
            address=address,
            environment=environment,
            folder=str(FOLDER),
        ),
        encoding="utf-8",
    )
    (folder / "python").chmod(0o700)
    command = [sys.executable, "-P", preloaded.__file__, address]
    process = subprocess.Popen(command, cwd=FOLDER, env=environment, stdin=subprocess.PIPE)

    def close() -> None:
        process.kill()
        process.communicate()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(close)
    wait_until(Path(address).exists)
    return folder, environment
