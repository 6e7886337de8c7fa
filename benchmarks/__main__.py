"""`python -m benchmarks [name …]`: every benchmark, or those named, as one table; without names also into docs.

Each `bench_<name>.py` has `measure()`, which gives the lines of its claim, in a process of its own: none inherits
another's memory, threads or replaced operators.  The table goes to docs/performance.md.
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

from benchmarks.timing import Line, machine, table
from stages.memory import keep_freed_memory

PAGE = Path("docs/performance.md")
INTRODUCTION = """# Performance

Written by `make bench`: each line times us and the peer in turn in one run, and compares medians. A benchmark's file in
`benchmarks/` says what both sides do. Times on a CPU are processor time; those marked "wall" are by the clock. The
[log](log.md) has what was tried and what holds back where a goal is missed.
"""


def main(names: list[str]) -> int:
    known = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
    if unknown := [name for name in names if name not in known]:
        print(f"benchmarks: no benchmark {unknown[0]!r}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as for a training: threads that wait use no processor time
    where = f"{datetime.date.today()}, {machine(torch.device('cpu'))}"
    lines: list[Line] = []
    for name in names or known:
        print(f"{name} …", file=sys.stderr, flush=True)
        # It keeps freed memory, as a training does: what touching memory anew costs is no side's own.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), keep_freed_memory) as process:
            lines += process.submit(import_module(f"benchmarks.bench_{name}").measure).result()
        if not names:  # after each, so that an end on the way leaves what was measured
            PAGE.write_text(f"{INTRODUCTION}\n{where}.\n\n{table(lines)}")
    print(f"{where}\n\n{table(lines)}", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
