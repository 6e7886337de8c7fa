"""`python -m stages.stage VERB …`: what `python -m stages.VERB …` does, without loading torch where `repro` has.

dvc.yaml names its commands so.  Where `claimcheck repro` keeps a process that has loaded the libraries
(`stages.preloaded`), the verb runs in a fork of that one; everywhere else it runs here.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Sequence

from stages.preloaded import ADDRESS, ask
from stages.scheduling.engine.local import WATCHED, OrphanedStage, dvc_and_shells, end_with


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        print("usage: python -m stages.stage VERB …; the verbs are those of dvc.yaml", file=sys.stderr)
        return 2
    module = f"stages.{arguments[0]}"
    address = os.environ.get(ADDRESS)
    if address and os.path.exists(address):
        try:
            end_with(dvc_and_shells())  # and with this process ends the one that works for it
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
    """The exit code of the module in a fork of the process at `address`; None where it doesn't take the call."""
    environment = os.environ | {WATCHED: "1"}
    del environment[ADDRESS]
    on_interrupt = signal.signal(signal.SIGINT, signal.SIG_DFL)  # while it loads, there is nothing to stop but this
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
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches the fork as it reaches this one
        code = answers.readline()
    if not code:
        print(f"{module}: the process that had loaded the libraries is gone, and this stage with it", file=sys.stderr)
        return os.EX_TEMPFAIL
    return int(code)


def run(arguments: Sequence[str]) -> int:
    """Do the verb; end as its process did, if that was by a signal, which the waiting parent shall see."""
    number = main(arguments)
    if number < 0:
        signal.signal(-number, signal.SIG_DFL)
        os.kill(os.getpid(), -number)
    return number


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
