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
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path

import torch

from benchmarks.timing import HEADINGS, PLAYED, Line, machine, markdown, prepare, table

PAGE = Path("docs/performance.md")
INTRODUCTION = """# Performance

Written by `make bench`. Each line races us against the strongest thing that a competent user would write, in the same
type, with as many threads and after as much warming up; where several are natural all are measured, the fastest counts
and stands first. All sides take turns in one run, and medians are compared; a benchmark's file in `benchmarks/` says
what each does. Times on a CPU are processor time; those marked "wall" are by the clock. Each kind of processor has its
newest table; a played one is this machine with PyTorch, oneDNN, MKL and our C++ told to leave its better instructions
alone. The [log](log.md) has what was tried, [decision 0051](decisions/0051-honest-benchmarks.md) why it is so.
"""
LOST = "Where a peer is faster, or a goal is missed"


def main(names: list[str]) -> int:
    known = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
    if unknown := [name for name in names if name not in known]:
        print(f"benchmarks: no benchmark {unknown[0]!r}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in a training: waiting threads use no processor time
    if PLAYED == "avx2":  # the libraries that PyTorch calls have settings of their own
        os.environ.update(ONEDNN_MAX_CPU_ISA="AVX2", MKL_ENABLE_INSTRUCTIONS="AVX2")
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
    """The page with this section in place of the previous one for the same kind of machine, opened by what we lose."""
    _, *others = earlier.split("\n## ")
    own = (kind, LOST)
    kept = [f"\n## {other.rstrip()}\n" for other in others if other.partition("\n")[0] not in own]
    sections = [f"\n## {kind}\n\n{text}", *kept]
    return "".join([INTRODUCTION, f"\n## {LOST}\n\n{lost(sections)}", *sections])


def lost(sections: Sequence[str]) -> str:
    """The rows of all sections whose goal is missed, those with a faster peer first; or that there are none."""
    rows = []
    for section in sections:
        kind = section.strip().partition("\n")[0].removeprefix("## ")
        cells = [row.strip("| ").split(" | ") for row in section.splitlines() if row.startswith("| ")]
        rows += [(kind, *row) for row in cells if row[-1] in ("no", "slower")]
    rows.sort(key=lambda row: row[-1] != "slower")
    return markdown([("processor", *HEADINGS), *rows]) if rows else "Nowhere.\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
