"""`data/runs/<experiment>/runs.json`: the arm and the replicate of each outcome in the folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from stages.runs.store import write_atomically


class DamagedRunList(ValueError):
    """A `runs.json` that can't be read; `train` rewrites it."""


@dataclass(frozen=True, kw_only=True)
class ListedRun:
    """One row of `runs.json`: a run with its arm and replicate.

    `digest`: of the outcome's files, so that whatever depends on the list depends on all that it lists; "" in lists of
    older versions.
    """

    arm: str
    role: str
    replicate: int
    run_key: str
    digest: str = ""


@dataclass(frozen=True, kw_only=True)
class RunList:
    """`data/runs/<experiment>/runs.json`: what was requested, under which profile, and its runs.

    `missing`: labels, `<arm>.<replicate>`, of runs that have no outcome.
    """

    experiment: str
    dataset: str
    profile: str
    cut: str
    runs: tuple[ListedRun, ...]
    missing: tuple[str, ...] = ()


def read_run_list(folder: Path) -> RunList | None:
    """Read the run list of an experiment's folder; None if there is none.

    Raises:
        DamagedRunList: it can't be read.
    """
    path = folder / "runs.json"
    if not path.is_file():
        return None
    try:
        fields = json.loads(path.read_bytes())
        runs, missing = tuple(ListedRun(**run) for run in fields["runs"]), tuple(fields.get("missing", ()))
        return RunList(**fields | {"runs": runs, "missing": missing})
    except (ValueError, KeyError, TypeError):
        raise DamagedRunList(f"{path}: damaged; `python -m stages.train {folder.name}` writes it anew") from None


def write_run_list(folder: Path, run_list: RunList) -> None:
    fields = asdict(run_list)
    if not run_list.missing:
        del fields["missing"]
    write_atomically(folder / "runs.json", (json.dumps(fields, indent=1) + "\n").encode())
