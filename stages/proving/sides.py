"""The two sides of a comparison: a revision's files in their own folder, and processes that train with them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.faults import Mistake
from stages.runs.revisions import GitError, ask_git, refusal, run_git

DRIVER = Path("stages/proving/driver.py")


class EquivalenceError(Mistake, ValueError):
    """The two codes can't be compared, or give different numbers; the message says where."""


@dataclass(frozen=True)
class Side:
    """A revision, its files and the driver that runs them."""

    revision: str
    tree: Path
    driver: Path

    def fingerprints(self, questions: Sequence[tuple[str, str, str]]) -> list[Mapping[str, str] | None]:
        """Fingerprints of trainings by kind of data, model and optimiser; None if this revision has no such model.

        Raises:
            EquivalenceError: the revision's code fails to answer.
        """
        output = self.tree.with_name(f"{self.tree.name}-codes.json")
        self._run({"codes": [list(question) for question in questions], "output": str(output)})
        answers: list[Mapping[str, str] | None] = json.loads(output.read_text(encoding="utf-8"))
        return answers

    def train(
        self, trainings: Sequence[Mapping[str, Any]], threads: Sequence[int], more_env: Mapping[str, str] | None = None
    ) -> list[list[dict[str, Any]]]:
        """The results of each training, by number of threads, one after another in one process.

        Raises:
            EquivalenceError: the process fails; if a training fails, its answer says so.
        """
        output = self.tree.with_name(f"{self.tree.name}-output-{'-'.join(sorted(more_env or {}))}")
        self._run({"trainings": list(trainings), "threads": list(threads), "output": str(output)}, more_env)
        return [
            [
                json.loads((output / str(count) / f"{number}.json").read_text(encoding="utf-8"))
                for number in range(len(trainings))
            ]
            for count in threads
        ]

    def _run(self, job: Mapping[str, Any], more_env: Mapping[str, str] | None = None) -> None:
        job_file = self.tree.with_name(f"{self.tree.name}-job.json")
        job_file.write_text(json.dumps({**job, "tree": str(self.tree)}), encoding="utf-8")
        env = {name: value for name, value in os.environ.items() if name != "CLAIMCHECK_HOME"}
        env |= {
            "PYTHONPATH": os.pathsep.join([str(self.tree), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_WAIT_POLICY": "PASSIVE",
            **(more_env or {}),
        }
        command = [sys.executable, "-P", str(self.driver), str(job_file)]
        done = subprocess.run(
            command, cwd=self.tree, env=env, capture_output=True, check=False, encoding="utf-8", errors="replace"
        )
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise EquivalenceError(f"the code of {self.revision[:12]} fails: {said[-1]}")


def check_out(root: Path, revision: str, folder: Path) -> str:
    """Put all files of `revision`, given by any of its names, into `folder`; returns its full name.

    Raises:
        EquivalenceError: there is no such revision, or no git.
    """
    if words := refusal(root):
        raise EquivalenceError(f"both codes are taken from git, and {words}")
    name = ask_git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if not name:
        raise EquivalenceError(f"{revision!r} is no revision of this clone; `git log` lists them")
    try:
        packed = run_git(root, "archive", "--format=tar", name)
    except GitError as error:
        raise EquivalenceError(str(error)) from None
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return name


def first_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """Where two trainings first differ, in words; None if they are identical bit by bit."""
    return next(_differences(before, after), None)


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    scores, tensors = (list(zip(before[name], after[name], strict=False)) for name in ("scores", "tensors"))
    for number in range(max(len(scores), len(tensors))):
        found = []
        if number < len(tensors):
            found += [f"tensor {name}" for name in _parted(*tensors[number])[:1]]
        if number < len(scores):
            found += [f"its {name} so far {_values(name, *scores[number])}" for name in _parted(*scores[number])[:1]]
        if found:
            yield f"step {number + 1}: {', '.join(found)}"
    for name in ("scores", "tensors"):
        if len(before[name]) != len(after[name]):
            yield f"it took {len(before[name])} steps with the older code, {len(after[name])} with the newer"
    for name in _parted(before["optimizer"], after["optimizer"]):
        yield f"after the last step: the optimiser's {name}"
    for number, (old, new) in enumerate(zip(before["outcomes"], after["outcomes"], strict=True), start=1):
        which = f" of network {number}" if len(before["outcomes"]) > 1 else ""
        for name in _parted(old["weights"], new["weights"]):
            yield f"after the last step: tensor {name}{which}"
        for name in ("history", "status", "divergence"):
            if old[name] != new[name]:
                yield f"after the last step: its {name}{which}, {old[name]} -> {new[name]}"


def _parted(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Names of the items that differ or are in only one of them, in the order of the first."""
    return [name for name in {**old, **new} if old.get(name) != new.get(name)]


def _values(name: str, old: Mapping[str, str], new: Mapping[str, str]) -> str:
    values = [float.fromhex(side[name]) if name in side else None for side in (old, new)]
    return f"{values[0]!r} -> {values[1]!r}"
