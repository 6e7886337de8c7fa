"""Asks git about a clone: its revisions, their files, and which of two came first.

An answer is None or False if git isn't installed, refuses, or the clone lacks the revision; `refusal` says which.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

_KEPT = (
    *("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_"),
    *("GIT_CONFIG_VALUE_", "GIT_EXEC_PATH", "GIT_SSL", "GIT_TRACE"),
)


class GitError(OSError):
    """Git failed or isn't installed; the message is in git's own words."""


def without_git_variables() -> dict[str, str]:
    """Return this process's environment without variables that choose a repository, which every git hook sets."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name.startswith(_KEPT)}


def run_git(root: Path, *arguments: str, given: bytes = b"", ceiling: str | None = None) -> bytes:
    """Run git in the repository that has the project at `root`, and return its output; `./` is `root` in its names.

    Repositories above `ceiling` are ignored; None means those that don't have the project's files.
    """
    if ceiling is None:
        ceiling = "" if _is_committed(root.resolve()) else str(root.resolve().parent)
    done = _run(root, ceiling, *arguments, given=given)
    if done.returncode:
        message = " ".join(done.stderr.decode(errors="replace").split())
        raise GitError(f"git {arguments[0]}: {message or f'exit code {done.returncode}'}")
    return done.stdout


@cache
def _is_committed(root: Path) -> bool:
    """Return True if a repository further up has the project's files; else it has nothing to do with their history."""
    is_top = (root / ".git").exists()
    return not is_top and _run(root, "", "ls-files", "--error-unmatch", "params.yaml").returncode == 0


def _run(root: Path, ceiling: str, *arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    environment = without_git_variables() | {
        "GIT_CEILING_DIRECTORIES": ceiling,
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "LC_ALL": "C",
    }
    command = ["git", *arguments]
    try:
        return subprocess.run(command, cwd=root, env=environment, input=given, capture_output=True, check=False)
    except OSError as error:
        raise GitError(f"git can't be run: {error.strerror}") from None


def prefix_in_git(root: Path) -> str | None:
    """Return the path of `root` within the git repository that it is in, empty for its top; None without one."""
    return ask_git(root, "rev-parse", "--show-prefix", ceiling="")


def read_objects(root: Path, names: Sequence[str]) -> list[bytes | None]:
    """Read blobs, trees or commits by names such as `<revision>:./<path>`; None for each that git lacks."""
    shown = run_git(root, "cat-file", "--batch", given="".join(f"{name}\n" for name in names).encode())
    place, found = 0, list[bytes | None]()
    for _ in names:
        start = shown.index(b"\n", place) + 1
        size = shown[place:start].split()[-1]
        found.append(shown[start : start + int(size)] if size.isdigit() else None)
        place = start + int(size) + 1 if size.isdigit() else start
    return found


def ask_git(root: Path, *arguments: str, ceiling: str | None = None) -> str | None:
    """Return the output of git as text, or None if it fails or isn't installed."""
    try:
        return run_git(root, *arguments, ceiling=ceiling).decode(errors="replace").strip()
    except GitError:
        return None


def refusal(root: Path) -> str | None:
    """Return git's error if it can't be used in `root`: it isn't installed, or this isn't a clone of this user."""
    try:
        run_git(root, "rev-parse", "--git-dir")
    except GitError as error:
        return str(error)
    return None


@cache
def has_revision(root: Path, revision: str) -> bool:
    is_name = re.fullmatch("[0-9a-f]{40}|HEAD", revision) is not None  # another lab's line may name anything
    return is_name and ask_git(root, "cat-file", "-t", revision) == "commit"


def is_full_clone(root: Path) -> bool:
    """Return True if the clone has the whole history, so that a revision that it lacks doesn't exist."""
    return ask_git(root, "rev-parse", "--is-shallow-repository") == "false"


def commit_of(root: Path, path: Path) -> str | None:
    """Return the last commit that changed a file below `root`; None if the file differs from it or isn't committed."""
    if ask_git(root, "status", "--porcelain", "--ignored", "--", str(path)) != "":
        return None
    return ask_git(root, "log", "-1", "--format=%H", "--", str(path)) or None


@cache
def is_ancestor(root: Path, earlier: str, later: str) -> bool | None:
    """Return True if `later` is the commit `earlier` or contains it; None if the clone lacks one of them."""
    if not (has_revision(root, earlier) and has_revision(root, later)):
        return None
    return ask_git(root, "merge-base", "--is-ancestor", earlier, later) is not None
