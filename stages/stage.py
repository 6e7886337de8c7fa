"""`python -m stages.stage VERB …`: run `stages.VERB …` in a process that has already loaded torch, if there is one.

dvc.yaml uses it for its commands.  If `claimcheck repro` keeps a process that has loaded the libraries
(`stages.commands.preloaded`), the verb runs in a fork of it, otherwise in this process.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Sequence

from stages.commands.preloaded import ADDRESS, ask
from stages.scheduling.orphans import WATCHED, OrphanedStage, dvc_and_shells, exit_when_gone


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        print("usage: python -m stages.stage VERB …; the verbs are those of dvc.yaml", file=sys.stderr)
        return 2
    module = f"stages.{arguments[0]}"
    address = os.environ.get(ADDRESS)
    if address and os.path.exists(address):
        try:
            exit_when_gone(dvc_and_shells())  # the fork ends with this process
        except OrphanedStage as error:
            print(f"{arguments[0]}: {error}", file=sys.stderr)
            return 1
        code = run_preloaded(address, module, arguments[1:])
        if code is not None:
            return code
    sys.argv = [module, *arguments[1:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


def run_preloaded(address: str, module: str, arguments: Sequence[str]) -> int | None:
    """Run the module in a fork of the process at `address` and return its exit code; None if the call is refused."""
    environment = os.environ | {WATCHED: "1"}
    del environment[ADDRESS]
    on_interrupt = signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the fork exists, Ctrl-C only ends this process
    try:
        server = ask(address, module, arguments, environment)
        answers = server.makefile("rb")
        pid = answers.readline()
    except OSError:
        pid = b""
    if not pid:
        signal.signal(signal.SIGINT, on_interrupt)
        return None
    with server, answers:
        signal.signal(signal.SIGTERM, lambda *_: os.kill(int(pid), signal.SIGTERM))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to the fork, too
        code = answers.readline()
    if not code:
        print(f"{module}: the process that had loaded the libraries is gone, and this stage with it", file=sys.stderr)
        return os.EX_TEMPFAIL
    return int(code)


def run(arguments: Sequence[str]) -> int:
    """Run the verb; if a signal ended its process, end this one the same way, so that the parent sees it."""
    number = main(arguments)
    if number < 0:
        signal.signal(-number, signal.SIG_DFL)
        os.kill(os.getpid(), -number)
    return number


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
