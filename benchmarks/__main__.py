"""`python -m benchmarks [name …]`: run all or the named benchmarks, and write their table to docs/performance.md.

The `measure()` of each `bench_<name>.py` returns the rows of its claim. It runs in a separate process, so that none
inherits another's memory, threads or replaced operators. The page has one table per kind of processor; rows of other
benchmarks stay if the versions are unchanged.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from pathlib import Path

import torch

from benchmarks.timing import HEADINGS, PLAYED, Line, machine, markdown, prepare

PAGE = Path("docs/performance.md")
INTRODUCTION = """# Performance

`make bench` writes this page; `benchmarks/bench_<name>.py` says what each benchmark does. We compare with the strongest
alternative that a competent user would write, with the same type, threads and warm-up. All sides run in turn; the ratio
is the median over rounds. If the goal is ≥, the ratio says how many times as fast we are; if ≤, it is our time or
memory as a multiple of theirs. Rows are float32 on one thread unless they say otherwise. Times are CPU time, except for
uploads (wall time). A *limit* is the best possible ratio, given the work that neither side can avoid. *Even* means that
the alternative won most rounds; *slower*, that it won all. Missed goals come first. *Emulated* means that the
processor's newer instructions were disabled. The [log](log.md) lists what we tried.
"""


def main(arguments: list[str]) -> int:
    known = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description=f"Measure and write {PAGE}.", epilog="Each benchmark takes some minutes."
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; all if none is named", default=[]
    )
    names: list[str] = parser.parse_args(arguments).names
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no benchmark {unknown[0]!r}; known: {', '.join(known)}")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in training: waiting threads use no CPU time
    if PLAYED == "avx2":  # PyTorch's libraries have their own settings
        os.environ.update(ONEDNN_MAX_CPU_ISA="AVX2", MKL_ENABLE_INSTRUCTIONS="AVX2")
    prepare()  # the kind of machine to optimise for
    kind, versions = machine(torch.device("cpu"))
    earlier = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
    kept = rows_of(earlier, kind, versions) if names else []
    measured: list[Sequence[str]] = []
    for name in names or known:
        print(f"{name} …", file=sys.stderr, flush=True)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), prepare) as process:
            lines: list[Line] = process.submit(import_module(f"benchmarks.bench_{name}").measure).result()
        measured += [line.cells() for line in lines]
        # after each benchmark, so that an early end keeps the measured rows
        PAGE.write_text(page(earlier, kind, versions, together(kept, measured)), encoding="utf-8")
    print(f"{kind}, {versions}\n\n{markdown([HEADINGS, *measured])}", end="")
    return 0


def together(kept: Sequence[Sequence[str]], measured: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Replace kept rows by measured ones of the same name, and append the new rows."""
    newest = {row[0]: row for row in measured}
    replaced = [newest.pop(row[0], row) for row in kept]
    return [*replaced, *newest.values()]


def page(earlier: str, kind: str, versions: str, rows: Sequence[Sequence[str]]) -> str:
    """Return the page with these rows as the table of this kind of processor, missed goals first."""
    order = ("slower", "even", "missed")
    ranked = sorted(rows, key=lambda row: next((i for i, word in enumerate(order) if word in row[-1]), len(order)))
    table = markdown([HEADINGS, *ranked])
    sections = {kind: f"{versions}. Last run: {datetime.date.today()}.\n\n{table}"}
    sections |= {name: text for name, text in _sections(earlier).items() if name != kind}
    return INTRODUCTION + "".join(f"\n## {name}\n\n{text}" for name, text in sections.items())


def rows_of(earlier: str, kind: str, versions: str) -> list[Sequence[str]]:
    """Return the page's rows of this kind of processor if they were measured with these versions."""
    text = _sections(earlier).get(kind, "")
    if not text.startswith(f"{versions}. "):
        return []
    return [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")][2:]


def _sections(text: str) -> dict[str, str]:
    found = {}
    for section in text.split("\n## ")[1:]:
        name, _, content = section.partition("\n")
        found[name] = f"{content.strip()}\n"
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
