"""`python -m benchmarks [name …]`: runs every benchmark, or those named, as one table; without names also writes it to
docs.

Each `bench_<name>.py` has `measure()`, which returns the lines of its claim and runs in a separate process: none
inherits another's memory, threads or replaced operators.  The table goes to docs/performance.md, which has one per kind
of machine.
"""

from __future__ import annotations

import datetime
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path

import torch

from benchmarks.timing import Line, machine, prepare, table

PAGE = Path("docs/performance.md")
INTRODUCTION = """# Performance

Written by `make bench`: each line times us and the peer in turn in one run, and compares medians. A benchmark's file in
`benchmarks/` says what both sides do. Times on a CPU are processor time; those marked "wall" are by the clock. The
[log](log.md) has what was tried and what holds back where a goal is missed. Each kind of machine has its newest table.
"""


def main(names: list[str]) -> int:
    known = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
    if unknown := [name for name in names if name not in known]:
        print(f"benchmarks: no benchmark {unknown[0]!r}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in a training: waiting threads use no processor time
    prepare()  # the kind of machine this is for
    kind, versions = machine(torch.device("cpu"))
    when = f"{datetime.date.today()}, {versions}."
    earlier = PAGE.read_text() if PAGE.is_file() else ""
    lines: list[Line] = []
    for name in names or known:
        print(f"{name} …", file=sys.stderr, flush=True)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), prepare) as process:
            lines += process.submit(import_module(f"benchmarks.bench_{name}").measure).result()
        if not names:  # after each, so that an early end keeps the measured ones
            PAGE.write_text(page(earlier, kind, f"{when}\n\n{table(lines)}"))
    print(f"{kind}, {when}\n\n{table(lines)}", end="")
    return 0


def page(earlier: str, kind: str, text: str) -> str:
    """The page with this section in place of the previous one for the same kind of machine."""
    _, *others = earlier.split("\n## ")
    kept = [f"\n## {other.rstrip()}\n" for other in others if not other.startswith(f"{kind}\n")]
    return "".join([INTRODUCTION, f"\n## {kind}\n\n{text}", *kept])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
