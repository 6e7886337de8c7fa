"""`python -m benchmarks [name …]`: runs every benchmark, or those named, as one table, and writes it to docs.

Each `bench_<name>.py` has `measure()`, which returns the lines of its claim and runs in a separate process: none
inherits another's memory, threads or replaced operators.  The table goes to docs/performance.md, which has one per kind
of processor; lines of benchmarks that weren't named stay there, each with its date, if the versions are the same.
"""

from __future__ import annotations

import datetime
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path

import torch

from benchmarks.timing import HEADINGS, PLAYED, Line, machine, markdown, prepare

PAGE = Path("docs/performance.md")
INTRODUCTION = """# Performance

Written by `make bench`. Each line races us against the strongest thing that a competent user would write, in the same
type, with as many threads and after as much warming up; where several are natural all are measured, the fastest counts
and stands first. All sides take turns in one run, and medians are compared; a benchmark's file in `benchmarks/` says
what each does. Times on a CPU are processor time; those marked "wall" are by the clock. Each kind of processor has its
newest table; a played one is this machine with PyTorch, oneDNN, MKL and our C++ told to leave its better instructions
alone. "At most" is what the figure would be if all cost nothing but what both sides need: the peer's matrix products,
its convolutions, the conversion of a batch's bytes, answers without a server. In brackets stand the lowest and the
highest round; "slower" is what was slower in every round, "even" what was so in most. The [log](log.md) has what was
tried, [decision 0051](decisions.md#0051) why it is so.
"""
COLUMNS = (*HEADINGS, "on")
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
    earlier = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
    kept = rows_of(earlier, kind, versions) if names else []
    measured: list[Sequence[str]] = []
    for name in names or known:
        print(f"{name} …", file=sys.stderr, flush=True)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), prepare) as process:
            lines: list[Line] = process.submit(import_module(f"benchmarks.bench_{name}").measure).result()
        measured += [(*line.cells(), str(datetime.date.today())) for line in lines]
        # after each, so that an early end keeps the measured ones
        PAGE.write_text(page(earlier, kind, versions, together(kept, measured)), encoding="utf-8")
    print(f"{kind}, {versions}\n\n{markdown([COLUMNS, *measured])}", end="")
    return 0


def together(kept: Sequence[Sequence[str]], measured: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """The kept rows with measured ones in the place of those of the same name and setting, and the new ones after."""
    newest = {tuple(row[:2]): row for row in measured}
    replaced = [newest.pop(tuple(row[:2]), row) for row in kept]
    return [*replaced, *newest.values()]


def page(earlier: str, kind: str, versions: str, rows: Sequence[Sequence[str]]) -> str:
    """The page with these rows in place of the previous ones of this kind of processor, opened by what we lose."""
    others = {name: text for name, text in _sections(earlier).items() if name not in (kind, LOST)}
    sections = {kind: f"{versions}.\n\n{markdown([COLUMNS, *rows])}"} | others
    written = "".join(f"\n## {name}\n\n{text}" for name, text in sections.items())
    return f"{INTRODUCTION}\n## {LOST}\n\n{lost(sections)}{written}"


def rows_of(earlier: str, kind: str, versions: str) -> list[Sequence[str]]:
    """The rows of this kind of processor on the page, if they were measured with these versions."""
    text = _sections(earlier).get(kind, "")
    return _rows(text) if text.startswith(f"{versions}.\n") else []


def lost(sections: Mapping[str, str]) -> str:
    """The rows of all sections whose goal is missed, those with a faster peer first, then the even ones; or that there
    are none.
    """
    verdict = COLUMNS.index("met")
    rows = [(kind, *row) for kind, text in sections.items() for row in _rows(text) if row[verdict] != "yes"]
    rows.sort(key=lambda row: {"slower": 0, "even": 1}.get(row[1 + verdict], 2))
    return markdown([("processor", *COLUMNS), *rows]) if rows else "Nowhere.\n"


def _sections(text: str) -> dict[str, str]:
    found = {}
    for section in text.split("\n## ")[1:]:
        name, _, content = section.partition("\n")
        found[name] = f"{content.strip()}\n"
    return found


def _rows(text: str) -> list[Sequence[str]]:
    cells = [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in text.splitlines() if line[:2] == "| "]
    return [row for row in cells[2:] if len(row) == len(COLUMNS)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
