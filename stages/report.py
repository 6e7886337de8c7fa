"""`python -m stages.report`: tables of all results into `data/report/`; with `--docs`, into `docs/`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from stages.claims import ClaimsError
from stages.faults import in_one_line
from stages.recording.reporting import write_docs, write_report


@in_one_line("report", ClaimsError)
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m stages.report", description=__doc__)
    parser.add_argument(
        "--docs",
        action="store_true",
        help="write docs/results.md from evidence alone",
    )
    options = parser.parse_args(arguments)
    if options.docs:
        written = [write_docs(Path(), Path("docs/results.md"))]
    else:
        written = write_report(os.environ.get("CLAIMCHECK_DATABASE", "data/results.db"), Path("data/report"))
    others = f" and {len(written) - 1} files next to it" if len(written) > 1 else ""
    print(f"report: {written[0]}{others}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
