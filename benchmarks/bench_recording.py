"""Goal: `record` builds the database from 40 times the published evidence, 6,760 results, within 10 s.

Each published line appears 40 times, with its own seeds, replicates and run keys; all are read, checked and judged.
Time is processor time of this process, which does all of it.  There is no peer.
Run: python -m benchmarks recording
"""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.timing import Line
from stages.recording import record
from stages.run import canonical_json
from stages.runs.evidence import EvidenceLine, evidence_files, read_lines, write_lines

TIMES = 40
APART = 100
"""Between the replicates of one copy and the next."""


def write_root(folder: Path) -> None:
    """Write the files that `record` reads below `folder`."""
    for name in ("params", "data/models"):
        shutil.copytree(name, folder / name)
    for name in ("params.yaml", "data/claims.csv", "data/claims-history.jsonl"):
        shutil.copy(name, folder / name)
    (folder / "data" / "evidence").mkdir()
    for path in evidence_files(Path("data/evidence")):
        lines = [copy for line in read_lines(path, EvidenceLine) for copy in copies(line, TIMES)]
        (folder / "data" / "evidence" / path.name).write_bytes(write_lines(lines))


def copies(line: EvidenceLine, times: int) -> Iterator[EvidenceLine]:
    """The line, and others that are like it but for seed, replicate and run key."""
    yield line
    for time_ in range(1, times):
        replicate = line.result.replicate + APART * time_
        seed = dict(line.result.spec["replicate"])
        spec = dict(line.result.spec) | {"replicate": seed | {"seed": seed["seed"] + APART * time_}}
        own = {"replicate": replicate, "run_key": hashlib.sha256(canonical_json(spec).encode()).hexdigest()}
        yield dataclasses.replace(
            line,
            result=dataclasses.replace(line.result, spec=spec, **own),
            cost=dataclasses.replace(line.cost, **own),
            release=None,
            digest=None,
        )


def measure() -> list[Line]:
    with tempfile.TemporaryDirectory() as name:
        write_root(Path(name))
        before = time.process_time()
        summary = record(Path(name), "data/results.db")
        taken = time.process_time() - before
    return [
        Line(
            what=f"`record` of {summary.results:,} results, {TIMES} times the published ones",
            peer="none",
            ours=f"{taken:.1f} s",
            value=taken,
            goal=10,
            at_most=True,
            unit="s",
        )
    ]
