"""`python -m stages.analyse`: what can be said of the papers without training, into `data/findings.jsonl`."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

from stages.finding import Finding
from stages.run import canonical_json
from stages.store import write_atomically

TARGET = Path("data/findings.jsonl")
_DIGITS = 9  # significant ones; processors differ in the last of a double's


def papers() -> list[str]:
    """Papers of which something can be said without training: those with a module `findings`."""
    return sorted(path.parent.name for path in (Path(__file__).parent / "papers").glob("*/findings.py"))


def main() -> int:
    lines, counts = [], {}
    for paper in papers():
        found: list[Finding] = import_module(f"stages.papers.{paper}.findings").findings()
        counts[paper] = Counter(finding.status for finding in found)
        for finding in found:
            computed = {name: float(f"{value:.{_DIGITS}g}") for name, value in finding.computed.items()}
            lines.append(canonical_json(dataclasses.asdict(finding) | {"paper": paper, "computed": computed}))
    write_atomically(TARGET, "".join(line + "\n" for line in lines).encode())
    for paper, count in counts.items():
        print(f"analyse: {paper}: {', '.join(f'{number} {status}' for status, number in sorted(count.items()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
