"""Reports of long tests: `make soak` writes `docs/soak/<name>.json`, which is committed."""

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.project import REPOSITORY, captured


def write_soak_report(name: str, facts: dict[str, Any]) -> bool:
    """Write `facts` with date, revision and machine to `CLAIMCHECK_SOAK_REPORTS`; return False if that isn't set."""
    folder = os.environ.get("CLAIMCHECK_SOAK_REPORTS")
    if not folder:
        return False
    report = {
        **facts,
        "date": datetime.now(UTC).date().isoformat(),
        "revision": revision(),
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "processor": processor(),
            "cores": os.cpu_count(),
            "load": [round(load, 1) for load in os.getloadavg()],
            "python": platform.python_version(),
        },
    }
    path = Path(folder) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return True


def revision() -> str | None:
    """Return the commit, marked if files other than these reports and `dvc.lock` differ; None outside a repository."""
    commit = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--", ".", ":!docs/soak", ":!dvc.lock")
    return commit + ("-dirty" if changed else "") if commit else None


def _git(*arguments: str) -> str:
    return captured(["git", *arguments], cwd=REPOSITORY).stdout.strip()


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
