"""`python -m stages.record`: build `data/results.db` from result lines, evidence, claims and params."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stages.evidence import EvidenceError
from stages.experiment import ParamsError
from stages.recording import LedgerError, RecordError, record
from stages.results import ResultsUnavailable


def main() -> int:
    place = os.environ.get("CLAIMCHECK_DATABASE", "data/results.db")
    try:
        summary = record(Path(), place)
    except (EvidenceError, LedgerError, ParamsError, RecordError, ResultsUnavailable) as error:
        print(f"record: {error}\nrecord: {place} stays as it was", file=sys.stderr)
        return 1
    for note in summary.notes:
        print(f"record: {note}", file=sys.stderr)
    print(
        f"record: {place}: {summary.results} results ({summary.selected} enter comparisons), "
        f"{summary.checkpoints} checkpoints, {summary.claims} claims, {summary.findings} of them computed"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
