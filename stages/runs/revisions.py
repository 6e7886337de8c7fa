"""Questions to git about a clone: its revisions, and which of two came first.

Each answer is None if git isn't installed, the folder is no clone, or the clone lacks the revision.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path


def ask_git(root: Path, *arguments: str) -> str | None:
    """The output of git, or None if it fails or isn't installed."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=False, encoding="utf-8"
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


@cache
def has_revision(root: Path, revision: str) -> bool:
    return ask_git(root, "cat-file", "-t", revision) == "commit"


@cache
def is_full_clone(root: Path) -> bool:
    """True if a revision that is missing here is missing everywhere."""
    return ask_git(root, "rev-parse", "--is-shallow-repository") == "false"


def commit_of(root: Path, path: Path) -> str | None:
    """The last commit that changed a file below `root`; None if the file differs from it or was never committed."""
    if ask_git(root, "status", "--porcelain", "--ignored", "--", str(path)) != "":
        return None
    return ask_git(root, "log", "-1", "--format=%H", "--", str(path)) or None


@cache
def is_ancestor(root: Path, earlier: str, later: str) -> bool | None:
    """True if `later` contains the commit `earlier` or is it."""
    if not (has_revision(root, earlier) and has_revision(root, later)):
        return None
    return ask_git(root, "merge-base", "--is-ancestor", earlier, later) is not None
