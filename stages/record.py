"""`python -m stages.record`: build `data/results.db` from result lines, evidence, claims and params.

It also builds the database that CLAIMCHECK_DATABASE names, a file or a URL.  DVC tracks `data/results.db`; the service
may read another one.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

from sqlalchemy.engine import make_url

from stages.claims import ClaimsError
from stages.faults import Mistake, in_one_line
from stages.params.stage_inputs import refuse_changed
from stages.recording.builder import record

TRACKED = "data/results.db"


@in_one_line("record")
def main() -> int:
    if refuse_changed("record"):
        return 1
    databases = dict.fromkeys([TRACKED, os.environ.get("CLAIMCHECK_DATABASE", TRACKED)])
    gc.disable()  # a fifth of the time would go into looking for garbage among millions of numbers
    try:
        return max(write(database) for database in databases)
    finally:
        gc.enable()


def write(database: str) -> int:
    """Build `database` and print a summary; returns 1 if it can't be built."""
    shown = make_url(database).render_as_string() if "://" in database else database
    try:
        summary = record(Path(), database)
    except (Mistake, ClaimsError) as error:
        print(f"record: {error}\nrecord: {shown} stays as it was", file=sys.stderr)
        return 1
    for note in summary.notes:
        print(f"record: {note}", file=sys.stderr)
    print(
        f"record: {shown}: {summary.results} results ({summary.selected} enter comparisons), "
        f"{summary.checkpoints} checkpoints, {summary.claims} claims, {summary.findings} of them computed"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
