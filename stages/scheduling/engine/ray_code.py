"""The code that trains, as a folder that Ray brings to each node: `stages/`, and a user's own packages in run keys."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from stages.run import RunSpec
from stages.runs.fingerprint import PACKAGE_ROOT, source_path
from stages.scheduling.engine.choice import EngineError

MOST_BYTES = 100 * 2**20
"""What Ray takes in a working directory without trouble."""


class TooMuchCode(EngineError):
    """More than Ray takes."""


def copy_code(specs: Iterable[RunSpec], folder: Path) -> None:
    """Copy what these runs need into `folder`.

    Raises:
        TooMuchCode: it is larger than Ray takes.
    """
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(PACKAGE_ROOT / "stages", folder / "stages", ignore=ignored)
    for top in sorted({module.partition(".")[0] for spec in specs for module in spec.code} - {"stages"}):
        path = source_path(top)
        if path is None:  # a package without a file of its own
            continue
        if path.name == "__init__.py":
            shutil.copytree(path.parent, folder / top, ignore=ignored)
        else:
            shutil.copy(path, folder / path.name)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if size > MOST_BYTES:
        largest = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
        raise TooMuchCode(
            f"the code to bring to the nodes has {size / 2**20:.0f} MiB, Ray takes {MOST_BYTES / 2**20:.0f}; the "
            f"largest file is {largest.relative_to(folder)}: keep data out of packages"
        )
