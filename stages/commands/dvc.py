"""`python -m stages.commands.dvc repro …`: DVC, but it writes its lock file only every half minute and at the end.

DVC parses and writes the whole file after each stage, which takes a tenth of a second.  If this process is killed, the
stages since the last writing run again; together they took less than half a minute.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from dvc.cli import main
from dvc.repo import Repo, lock_repo
from dvc.stage import Stage

_SECONDS = 30.0


class _Lock:
    """Stages that ran and aren't in the lock file yet."""

    def __init__(self) -> None:
        self._stages: list[Stage] = []
        self._written = time.monotonic()

    def reproduce(self, stage: Stage, **options: Any) -> Stage | None:
        """Run a stage if it changed, as DVC does for each."""
        ran = stage.reproduce(**options)
        if ran is not None:
            self._stages.append(ran)
        if time.monotonic() - self._written > _SECONDS:
            self.write()
        return ran

    def write(self) -> None:
        if self._stages:
            self._stages[0].dvcfile.dump_stages(self._stages, update_pipeline=False)
        self._stages, self._written = [], time.monotonic()


_reproduce = Repo.reproduce


def _reproduce_with_few_writes(repo: Repo, *arguments: Any, **options: Any) -> list[Stage]:
    lock = _Lock()
    with lock_repo(repo), repo.scm_context():  # the latter says what to add to git
        try:
            found: list[Stage] = _reproduce(repo, *arguments, repro_fn=lock.reproduce, **options)
        finally:
            lock.write()
    return found


if __name__ == "__main__":
    Repo.reproduce = _reproduce_with_few_writes
    sys.exit(main(sys.argv[1:]))
